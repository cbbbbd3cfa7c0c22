"""Call a TRL reward function with stored rollouts, as TRL calls it while training.

`score` takes an Arrow table of rollouts and returns one of scores, so it runs on any engine that has such tables.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import inspect
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pyarrow as pa

from rollout_plugins.content.exact_json import decode
from rollout_plugins.errors import RunError
from rollout_plugins.learn.stored_prompts import read_conversation

#: The columns that `score` reads, besides `tokens`.
COLUMNS = (
    "id", "step", "policy_step", "group", "prompt", "completion", "prompt_is_text", "completion_is_text", "columns",
    "extra",
)  # fmt: skip
SCORES = pa.schema(
    [("id", pa.large_string()), ("value", pa.float64()), ("error", pa.large_string()), ("logged", pa.large_string())]
)
#: What TRL passes that is not a column of the dataset.
_GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_TROUBLE = (Exception, SystemExit)


@dataclass
class RecordedState:
    """What is known of the trainer's state when the rollouts were scored, as `trainer_state`."""

    global_step: int
    max_steps: int = 0
    num_train_epochs: float = 0
    epoch: float | None = None
    is_world_process_zero: bool = True
    log_history: list[dict[str, Any]] = field(default_factory=list)


class MissingTokens(Sequence[Any]):
    """Stands in for `completion_ids` where they were not read; whoever looks at them learns how to get them."""

    def __init__(self, why: str, count: int) -> None:
        self._why, self._count = why, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        raise RunError(self._why)


@dataclass(frozen=True)
class RewardFunction:
    """A reward function in a file or a module, which each process loads for itself."""

    place: str
    """`my_rewards.py:judge` or `package.module:judge`."""

    @property
    def name(self) -> str:
        """What the function is called."""
        return self.place.rpartition(":")[2]

    def load(self) -> Callable[..., Any]:
        """Import the function, or raise one sentence that says why that is not possible."""
        path, _, name = self.place.rpartition(":")
        if not path or not name:
            raise RunError(f"{self.place!r} names no reward function; write FILE.py:FUNCTION or MODULE:FUNCTION")
        module = _module(path)
        function: Any = module
        for part in name.split("."):
            function = getattr(function, part, None)
        if not callable(function):
            others = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
            raise RunError(f"{path} has no function {name!r}; it has {', '.join(others) or 'none'}")
        if isinstance(function, type):
            raise RunError(f"{name} in {path} is a class; name a function or an instance that can be called")
        found: Callable[..., Any] = function
        return found

    def digest(self) -> str:
        """Return a hash of the file that the function is in: cached scores are those of this version."""
        function = self.load()
        try:
            source = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").read_bytes()
        except (TypeError, OSError):  # an object of a class, or one that has no file
            source = Path(sys.modules[type(function).__module__].__file__ or "").read_bytes()
        return blake2b(source + self.name.encode(), digest_size=6).hexdigest()


def _module(path: str) -> ModuleType:
    if path.endswith(".py") and not Path(path).is_file():
        raise RunError(f"there is no file {path}")
    try:
        return _run_file(Path(path).resolve()) if path.endswith(".py") else _import(path)
    except _TROUBLE as error:
        raise RunError(f"{path} cannot be imported: {_where(error)}") from error


def _import(module: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(module)


def _run_file(file: Path) -> ModuleType:
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))  # it may import what lies beside it
    name = f"rollouts_rewards_{file.stem}"
    loader = SourceFileLoader(name, str(file))
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=str(file)))
    module.__file__ = str(file)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


@dataclass
class Scored:
    """What a reward function said of a table of rollouts."""

    table: pa.Table
    """`SCORES`, in the order of the rollouts."""
    seconds: float
    """The time that the function took."""
    metrics: dict[str, list[float]]
    """What it gave to `log_metric`."""


def needs_tokens(function: Callable[..., Any]) -> bool:
    """Return whether to read token ids: the function names them, or it passes on all that it is given."""
    parameters = _signature(function).parameters
    return "completion_ids" in parameters or "completions" not in parameters


def check_signature(function: Callable[..., Any], name: str, known: Sequence[str], *, has_tokens: bool) -> None:
    """Raise one sentence if TRL's way of calling a reward function cannot work with it.

    `known`: the columns of the dataset that the run has.
    """
    parameters = _signature(function).parameters.values()
    required = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in {one.VAR_KEYWORD, one.VAR_POSITIONAL}
    ]
    if "environments" in required:
        raise RunError(f"{name} takes `environments`, which a run does not have: they ended with the training")
    if "completion_ids" in required and not has_tokens:
        raise RunError(f"{name} takes `completion_ids`, and this run has no token ids: record with tokens=True")
    if lacking := [one for one in required if one not in {*_GIVEN, *known}]:
        needs = ", ".join(map(repr, lacking))
        raise RunError(
            f"{name} cannot be called as a TRL reward function: it needs {needs}, and there are "
            f"{', '.join([*_GIVEN, *known])}; define {name}(completions, **kwargs)"
        )
    if not any(one.kind is one.VAR_KEYWORD or one.name in {"completions", "completion_ids"} for one in parameters):
        raise RunError(f"{name} takes no `completions`; define {name}(completions, **kwargs)")


def score(function: Callable[..., Any], table: pa.Table, *, by_group: bool = False, max_steps: int = 0) -> Scored:
    """Call the function with a table of rollouts, all of them at once or each group by itself.

    Where it raises, the rollouts are given to it in ever smaller parts, so that the error costs those alone that
    cause it.
    """
    call = _Call(function, max_steps)
    rows = table.to_pylist()
    parts = _by_group(rows) if by_group else [rows] if rows else []
    for part in parts:
        call.score(part, is_whole=by_group)
    found = [call.found[row["id"]] for row in rows]
    columns = dict(zip(SCORES.names, zip(*found, strict=True), strict=True)) if found else {}
    arrays = [pa.array(columns.get(one.name, ()), one.type) for one in SCORES]
    return Scored(pa.Table.from_arrays(arrays, schema=SCORES), call.seconds, dict(call.metrics))


def _by_group(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    yield from groups.values()


class _Call:
    """Calls of one function."""

    def __init__(self, function: Callable[..., Any], max_steps: int) -> None:
        self._function, self._max_steps = function, max_steps
        parameters = _signature(function).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._names = None if takes_all else frozenset(parameters)
        self._named = frozenset(parameters)
        self.found: dict[str, tuple[str, float | None, str | None, str | None]] = {}
        self.seconds = 0.0
        self.metrics: dict[str, list[float]] = defaultdict(list)

    def score(self, rows: Sequence[Mapping[str, Any]], *, is_whole: bool) -> None:
        """Score these rows, and each half by itself if the function raises; a whole group is not divided."""
        arguments, logged = self._arguments(rows)
        started = time.perf_counter()
        try:
            values: Any = self._called(arguments)
        except RunError:
            raise
        except _TROUBLE as error:
            self.seconds += time.perf_counter() - started
            if is_whole or len(rows) == 1:
                self.found.update((row["id"], (row["id"], None, _where(error), None)) for row in rows)
                return
            middle = len(rows) // 2
            self.score(rows[:middle], is_whole=False)
            self.score(rows[middle:], is_whole=False)
            return
        self.seconds += time.perf_counter() - started
        extras = [logged.extras_of(place) for place in range(len(rows))]
        for row, value, extra in zip(rows, self._checked(values, len(rows)), extras, strict=True):
            number, error_text = _as_number(value)
            self.found[row["id"]] = (row["id"], number, error_text, extra)
        for name, values_of in logged.metrics.items():
            self.metrics[name] += values_of

    def _called(self, arguments: Mapping[str, Any]) -> Any:
        given = arguments if self._names is None else {k: v for k, v in arguments.items() if k in self._names}
        said = self._function(**given)
        return _event_loop().run_until_complete(_awaited(said)) if inspect.isawaitable(said) else said

    def _checked(self, values: Any, count: int) -> Sequence[Any]:
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, (list, tuple)):
            raise RunError(f"the reward function returned {type(values).__name__}, not a list of one reward each")
        if len(values) != count:
            raise RunError(
                f"the reward function returned {len(values)} rewards for {count} rollouts; give one for each"
            )
        return values

    def _arguments(self, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], _Logged]:
        logged = _Logged()
        columns = [decode(row["columns"]) if row["columns"] else {} for row in rows]
        names = dict.fromkeys(name for known in columns for name in known)
        given: dict[str, Any] = {name: [known.get(name) for known in columns] for name in names}
        # What the environment or `rollout_func` gave was among TRL's columns too; `extra` has it with what was logged.
        extras = [decode(row["extra"]) if row["extra"] else {} for row in rows]
        for name in self._named - given.keys():
            if any(name in known for known in extras):
                given[name] = [known.get(name) for known in extras]
        given["prompts"] = [read_conversation(row["prompt"], is_text=row["prompt_is_text"]) for row in rows]
        given["completions"] = [
            read_conversation(row["completion"], is_text=row["completion_is_text"]) for row in rows
        ]
        given["completion_ids"] = _token_ids(rows)
        step = rows[0]["policy_step"] if rows[0]["policy_step"] is not None else (rows[0]["step"] or 1) - 1
        given["trainer_state"] = RecordedState(int(step), self._max_steps)
        given["log_extra"], given["log_metric"] = logged.log_extra, logged.log_metric
        return given, logged


class _Logged:
    """What a function logs during one call."""

    def __init__(self) -> None:
        self.extra: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = defaultdict(list)

    def log_extra(self, column: str, values: list[Any]) -> None:
        self.extra[str(column)] = list(values)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics[str(name)].append(float(value))

    def extras_of(self, place: int) -> str | None:
        values = {name: some[place] for name, some in self.extra.items() if place < len(some)}
        return orjson.dumps(values, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode() if values else None


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return one loop for all calls, as TRL has one: clients of a judge belong to the loop that they were made in."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _token_ids(rows: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    if "tokens" not in rows[0]:
        return MissingTokens(
            "name `completion_ids` among the function's arguments to be given the token ids", len(rows)
        )
    ids = [(row["tokens"] or {}).get("completion") for row in rows]
    if any(one is None for one in ids):
        return MissingTokens("some rollouts have no token ids: record with tokens=True", len(rows))
    return ids


def _as_number(value: Any) -> tuple[float | None, str | None]:
    """Return a reward as a number, and what is wrong with it if it is neither that nor None."""
    if value is None:
        return None, None
    try:
        return float(value), None
    except (TypeError, ValueError):
        return None, f"returned {type(value).__name__}, not a number"


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a function in C: TRL's way of calling is tried
        return inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])


def _where(error: BaseException) -> str:
    """Return what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{error!r} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else repr(error)


def count_errors(errors: Sequence[str | None]) -> list[tuple[str, int]]:
    """Return the different errors, the most frequent first."""
    return Counter(error for error in errors if error is not None).most_common()
