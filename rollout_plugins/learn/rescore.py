"""Score the rollouts of a run again with another reward function, and store the scores as annotations.

Scores are kept in a hidden file of the run as they arrive, so a run that was interrupted continues where it stopped,
and asking again costs nothing until the function's file changes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.content.exact_json import decode
from rollout_plugins.errors import RunError, need
from rollout_plugins.learn.advantages import Formula, advantages, formula_of, total_rewards
from rollout_plugins.learn.prompt_ids import prompt_ids
from rollout_plugins.learn.reward_calls import (
    COLUMNS,
    RewardFunction,
    Scored,
    check_signature,
    needs_tokens,
    score,
)
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: The most rollouts that a function is called with at once.
AT_ONCE = 256
_NUMBERS = ("id", "attempt", "split", "generation", "group", "step", "reward", "advantage", "rewards")
_GENERATION = ("attempt", "split", "generation")
Progress = Callable[[int, int], object]


@dataclass
class Rescored:
    """The old and the new scores of a run's rollouts."""

    name: str
    """What the new scores are stored under."""
    against: str
    """The reward function that the new one replaces, or `reward` where it replaces all of them."""
    table: pa.Table
    """A row for each rollout: `id`, `prompt_id`, `group` and `generation` as running numbers, `step`, `split`, `value`
    (the new score), `error`, and `old_value`, `old_reward`, `new_reward`, `old_advantage`, `new_advantage`."""
    formula: Formula
    """How the advantages were computed."""
    seconds: float = 0.0
    """The time that the function took, over all workers."""
    cached: int = 0
    """Scores that were known from an earlier call."""
    differing: int = 0
    """Rollouts whose recorded advantage is not what the formula makes of their recorded rewards."""
    unknown: int = 0
    """Rollouts without a recorded advantage."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The means of what the function gave to `log_metric`."""


def rescore(
    run: StoredRun,
    place: str,
    *,
    name: str | None = None,
    against: str | None = None,
    by_group: bool = False,
    workers: int = 1,
    again: bool = False,
    progress: Progress | None = None,
    **filters: Any,
) -> Rescored:
    """Score the run's rollouts with a TRL reward function, and store the scores as annotations under `name`.

    `place`: `FILE.py:FUNCTION` or `MODULE:FUNCTION`. `against`: the reward function that the new one takes the place
    of; by default the one of the same name, the only one, or else all of them. `by_group`: give the function whole
    groups, one at a time, as relative judges need them. `workers`: processes that call it. `again`: forget the scores
    of an earlier call. `filters`: as `run.rollouts` takes them.
    """
    reward = RewardFunction(place)
    function = reward.load()
    name = name or reward.name.rpartition(".")[2]
    if name.casefold() in TYPES or name.casefold().startswith("reward/"):
        raise RunError(f"{name!r} is a column of every run; store the scores under another name, with --as NAME")
    replaced = _replaced(run, name, against)
    reader = _Reader(run, function, reward.name, filters)
    cache = _Cache.of(run, f"{name}-{reward.digest()}{'-group' * by_group}", again=again)
    found = Rescored(name, replaced, pa.table({}), formula_of(run.info))
    total, done = run.count(**filters), 0
    numbers: list[pa.Table] = []
    if not total:
        raise RunError(f"{run.place} has no rollouts that match the filters, so there is nothing to score")
    with _calls(reward, workers, by_group=by_group, max_steps=int(run.info.settings.get("max_steps") or 0)) as calls:
        for table, scored in calls.run(_unscored(reader.batches(), cache, numbers)):
            if table is not None and scored is not None:
                if not done and not cache.scores:
                    _stop_if_all_failed(scored, reward.name)
                cache.add(scored.table)
                found.seconds += scored.seconds
                for metric, values in scored.metrics.items():
                    found.metrics.setdefault(metric, 0.0)
                    found.metrics[metric] += sum(values) / len(values) * table.num_rows
                done += table.num_rows
            if progress:
                progress(done + cache.known, total)
    found.cached = cache.known
    found.metrics = {metric: value / max(done, 1) for metric, value in found.metrics.items()}
    found.table = _compared(pa.concat_tables(numbers), cache, run, found)
    run.annotate(name, _annotations(found.table, cache))
    return found


def _replaced(run: StoredRun, name: str, against: str | None) -> str:
    names = run.info.reward_names
    if against is not None:
        short = against.removeprefix("reward/")
        if short not in names and against != "reward":
            known = ", ".join([*names, "reward"])
            raise RunError(f"--against {against!r} is no reward function of {run.place}; it has {known}")
        return short
    if name in names:
        return name
    return names[0] if len(names) == 1 else "reward"


class _Reader:
    """Reads the rollouts of a run, a generation or a part of one at a time, whole groups only."""

    def __init__(self, run: StoredRun, function: Any, name: str, filters: dict[str, Any]) -> None:
        self._run, self._filters = run, filters
        first = next(run.batches(["columns", "extra"], limit=1, **filters), None)
        rows = first.to_pylist() if first is not None else []
        known = [key for row in rows for text in row.values() if text for key in decode(text)]
        with_tokens = False
        if needs_tokens(function):
            first = next(run.batches(["tokens"], limit=1, **filters), None)
            with_tokens = first is not None and first["tokens"].null_count < first.num_rows
        check_signature(function, name, known, has_tokens=with_tokens)
        self._columns = list(dict.fromkeys([*_NUMBERS, *COLUMNS, "marks", *["tokens"] * with_tokens]))

    def batches(self) -> Iterator[pa.Table]:
        """Yield tables of whole groups of one generation."""
        pending: list[pa.Table] = []
        for table in self._run.batches(self._columns, **self._filters):
            pending.append(table)
            whole = pa.concat_tables(pending, promote_options="permissive")
            starts = _changes(whole, _GENERATION)
            for start, end in pairwise(starts):
                yield from _pieces(whole.slice(start, end - start))
            pending = [whole.slice(starts[-1])]
        if pending:
            yield from _pieces(pa.concat_tables(pending, promote_options="permissive"))


def _changes(table: pa.Table, columns: Sequence[str]) -> list[int]:
    """Return the rows at which one of these columns has another value than in the row before."""
    if table.num_rows < 2:
        return [0]
    differs: Any = None
    for column in columns:
        values = table[column].combine_chunks()
        here = pc.not_equal(values.slice(1), values.slice(0, table.num_rows - 1))
        here = pc.fill_null(here, fill_value=True)
        differs = here if differs is None else pc.or_(differs, here)
    return [0, *(int(row) + 1 for row in pc.indices_nonzero(differs).to_pylist())]


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Cut a generation into tables of whole groups, each of `AT_ONCE` rollouts unless one group has more."""
    table = table.sort_by([("group", "ascending")])  # groups of several ranks may alternate
    starts = [*_changes(table, ["group"]), table.num_rows]
    first = 0
    for start, end in pairwise(starts):
        if end - first > AT_ONCE and start > first:
            yield table.slice(first, start - first)
            first = start
    if table.num_rows > first:
        yield table.slice(first)


def _unscored(batches: Iterator[pa.Table], cache: _Cache, numbers: list[pa.Table]) -> Iterator[pa.Table]:
    """Keep the numbers of every batch, and yield the rollouts that have text and are not in the cache."""
    for table in batches:
        numbers.append(table.select(_NUMBERS).append_column("prompt_id", prompt_ids(table)))
        pruned = pc.match_substring(pc.fill_null(table["marks"], ""), '"pruned":')
        left = table.filter(pc.invert(pc.or_(pruned, cache.holds(table["id"]))))
        yield left.drop_columns(["marks"])


class _Cache:
    """Scores of one function, by rollout, in a file of the run that grows with every batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.scores: dict[str, tuple[float | None, str | None]] = {}
        self.errors: dict[str, str] = {}
        self.known = 0
        self._earlier: set[str] = set()

    @classmethod
    def of(cls, run: StoredRun, name: str, *, again: bool) -> _Cache:
        """Read what an earlier call left behind."""
        # Readers, mirrors and exports skip files that begin with a dot.
        key = blake2b(name.encode(), digest_size=8).hexdigest()
        cache = cls(nodes_of(run.dir)[0] / f".rescored-{key}.jsonl")
        try:
            if again:
                cache._path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                cache._read()
        except OSError as error:
            raise RunError(
                f"{run.place} cannot be written to, so no scores can be stored: {error.strerror}"
            ) from error
        return cache

    def _read(self) -> None:
        for line in self._path.read_bytes().splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line may be truncated
                row = orjson.loads(line)
                value = row["value"]
                self.scores[row["id"]] = (None if value is None else float(value), row["logged"])
        self._earlier = set(self.scores)

    def holds(self, ids: pa.ChunkedArray) -> pa.Array:
        """Return which of these rollouts have a score from an earlier call."""
        held = [name in self._earlier for name in ids.to_pylist()]
        self.known += sum(held)
        return pa.array(held, pa.bool_())

    def add(self, table: pa.Table) -> None:
        """Store new scores; errors are not stored, so that the next call tries again."""
        lines = []
        for row in table.to_pylist():
            name, value = row["id"], row["value"]
            if row["error"] is not None:
                self.errors[name] = row["error"]
                continue
            self.scores[name] = (value, row["logged"])
            # JSON has no infinity, so numbers are written as text.
            written = None if value is None else repr(value)
            lines.append(orjson.dumps({"id": name, "value": written, "logged": row["logged"]}))
        with self._path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))


def _stop_if_all_failed(scored: Scored, name: str) -> None:
    """Raise if the function failed for each of the first rollouts: that is a mistake in it, not in them."""
    errors = scored.table["error"]
    if errors.null_count == 0 and len(errors):
        raise RunError(f"{name} failed for each of the first {len(errors)} rollouts: {errors[0]}; nothing was stored")


class _Calls:
    """Calls the function with one batch after the other, here or in processes of their own."""

    def __init__(self, call: Callable[[pa.Table], Scored], pool: ProcessPoolExecutor | None, workers: int) -> None:
        self._call, self._pool, self._workers = call, pool, workers

    def run(self, batches: Iterator[pa.Table]) -> Iterator[tuple[pa.Table | None, Scored | None]]:
        """Yield each batch with its scores, in any order; (None, None) for a batch with nothing left to score."""
        if self._pool is None:
            for table in batches:
                yield (table, self._call(table)) if table.num_rows else (None, None)
            return
        running: dict[Future[Scored], pa.Table] = {}
        while True:
            for table in islice(batches, 2 * self._workers - len(running)):
                if table.num_rows:
                    running[self._pool.submit(_in_process, table)] = table
                else:
                    yield None, None
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


@contextmanager
def _calls(reward: RewardFunction, workers: int, *, by_group: bool, max_steps: int) -> Iterator[_Calls]:
    options = {"by_group": by_group, "max_steps": max_steps}
    if workers <= 1:
        function = reward.load()
        yield _Calls(lambda table: score(function, table, **options), None, 1)  # type: ignore[arg-type]
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _begin_process, (reward, Path.cwd(), options))
    try:
        yield _Calls(_in_process, pool, workers)
    except BaseException:
        for process in list((pool._processes or {}).values()):  # noqa: SLF001 - Python 3.14 has terminate_workers
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


_of_process: dict[str, Any] = {}


def _begin_process(reward: RewardFunction, folder: Path, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    os.chdir(folder)
    _of_process.update(function=reward.load(), options=options)


def _in_process(table: pa.Table) -> Scored:
    return score(_of_process["function"], table, **_of_process["options"])


def _compared(numbers: pa.Table, cache: _Cache, run: StoredRun, found: Rescored) -> pa.Table:
    """Return the old and the new values, totals and advantages of all rollouts."""
    np: Any = need("numpy")
    ids = numbers["id"].to_pylist()
    new = np.array([_number(cache.scores.get(name, (None, None))[0]) for name in ids])
    generations = _codes(numbers, _GENERATION)
    groups = _codes(numbers, (*_GENERATION, "group"))
    names, weights = list(run.info.reward_names), list(run.info.reward_weights or [1.0] * len(run.info.reward_names))
    old_values = _old_values(numbers, names)
    recorded = np.asarray(numbers["reward"].fill_null(float("nan")).to_numpy(), dtype=float)
    if found.against == "reward" or not names:
        compared, new_values, new_weights = recorded, new[:, None], [1.0]
    else:
        at = names.index(found.against)
        compared, new_values, new_weights = old_values[:, at], old_values.copy(), weights
        new_values[:, at] = new
    if not names:
        old_values, weights = recorded[:, None], [1.0]
    old = advantages(old_values, weights, groups, generations, found.formula)
    made = numbers["advantage"].fill_null(float("nan")).to_numpy()
    found.unknown = int(np.isnan(made).sum())
    found.differing = int((np.abs(made - old) > 1e-3 * np.maximum(1.0, np.abs(old))).sum())
    return pa.table(
        {
            "id": numbers["id"],
            "prompt_id": numbers["prompt_id"],
            "group": groups,
            "generation": generations,
            "step": numbers["step"],
            "split": numbers["split"],
            "value": pa.array(new, from_pandas=True),
            "error": pa.array([cache.errors.get(name) for name in ids], pa.large_string()),
            "old_value": pa.array(compared, from_pandas=True),
            "old_reward": pa.array(recorded, from_pandas=True),
            "new_reward": pa.array(total_rewards(new_values, new_weights), from_pandas=True),
            "old_advantage": old,
            "new_advantage": advantages(new_values, new_weights, groups, generations, found.formula),
        }
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _codes(table: pa.Table, columns: Sequence[str]) -> Any:
    """Return a running number for each row, equal where all of these columns are."""
    np: Any = need("numpy")
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        found = table[column].combine_chunks().dictionary_encode()
        found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        number = found.indices.fill_null(len(found.dictionary)).to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes * (len(found.dictionary) + 1) + number, return_inverse=True)
    return codes


def _old_values(numbers: pa.Table, names: Sequence[str]) -> Any:
    """Return what each reward function gave, a column for each; NaN where it gave nothing."""
    np: Any = need("numpy")
    values = np.full((numbers.num_rows, len(names)), np.nan)
    places = {name: at for at, name in enumerate(names)}
    lengths = pc.fill_null(pc.list_value_length(numbers["rewards"]), 0).to_numpy()
    rows = np.repeat(np.arange(numbers.num_rows), lengths)
    pairs = pc.list_flatten(numbers["rewards"])
    at = np.array([places.get(name, -1) for name in pc.struct_field(pairs, "name").to_pylist()], dtype=np.int64)
    given = pc.struct_field(pairs, "value").fill_null(float("nan")).to_numpy()
    values[rows[at >= 0], at[at >= 0]] = given[at >= 0]
    return values


def _annotations(table: pa.Table, cache: _Cache) -> Iterator[dict[str, Any]]:
    """Yield what is stored of each rollout."""
    columns = [table[name].to_pylist() for name in ("id", "value", "new_reward", "new_advantage", "error")]
    has_errors = bool(cache.errors)
    for name, value, reward, advantage, error in zip(*columns, strict=True):
        if name not in cache.scores and error is None:
            continue
        row = {"id": name, "value": value, "reward": reward, "advantage": advantage}
        logged = cache.scores.get(name, (None, None))[1]
        extras = orjson.loads(logged) if logged else {}
        yield {**extras, **row, **({"error": error} if has_errors else {})}
