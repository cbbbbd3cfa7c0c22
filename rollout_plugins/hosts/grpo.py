"""TRL's GRPOTrainer and its subclasses (GMPO, …), and RLOOTrainer.

Two instance-level wrappers suffice, with the same names and signatures since TRL 0.22: around
`_calculate_rewards`, where prompts and completions exist as messages (the snapshot is taken before any reward
function runs), and around `_generate_and_score_completions`, at whose end the advantages exist. `_generate` and
`_tool_call_loop`, where the trainer has them, add token counts and what happened in each tool call.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from rollout_hookspecs import Batch, Emit, Rollout, Tokens

from rollout_plugins.hosts.facts import describe_trl, reward_names
from rollout_plugins.hosts.toolcalls import Watch, tool_calls
from rollout_plugins.hosts.wrapping import Wraps
from rollout_plugins.snapshot import Snapshot

_FAMILY = {"GRPOTrainer", "RLOOTrainer"}
_NOT_COLUMNS = {"prompt"}


class GRPOHost:
    """See the module."""

    name = "grpo"

    def matches(self, trainer: Any) -> bool:
        return any(c.__name__ in _FAMILY and c.__module__.partition(".")[0] == "trl" for c in type(trainer).__mro__)

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        observer = _Observer(trainer, emit, options)
        return observer.wraps.detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_trl(trainer)

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """The generation that is in the trainer's own log although nobody was attached when it was made."""
        return Generation.from_log(trainer, count)


class _Observer:
    """The wrappers on one trainer, and the generation they are in the middle of."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.emit = emit
        self.options = options
        self.now: Generation | None = None
        self.wraps = Wraps(trainer)
        self.wraps.wrap("_generate_and_score_completions", self._generation, ("inputs",))
        parameters = ("inputs", "prompts", "completions", "completion_ids_list")
        self.wraps.wrap("_calculate_rewards", self._rewards, parameters)
        for name, around in (("_generate", self._tokens), ("_tool_call_loop", self._tools)):
            if hasattr(trainer, name):
                self.wraps.wrap(name, around)

    def _generation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.wraps.guarded("begin a generation"):
            self.now = Generation(self.trainer, self.options)
        try:
            out = original(*args, **kwargs)
        except BaseException as error:
            self._hand_over(error)
            raise
        if self.now is None or not self.now.count:
            self._hand_over_logged(len(args[0]) if args else 0)
        self._hand_over(None, out)
        return out

    def _hand_over_logged(self, count: int) -> None:
        """The snapshot was not taken, so what the trainer logged has to do."""
        with self.wraps.guarded("record a generation from the trainer's log"):
            batch = Generation.from_log(self.trainer, count)
            if batch is not None:
                self.emit(batch)
            else:
                self.emit.lost("not_observed", count)

    def _hand_over(self, error: BaseException | None, out: Any = None) -> None:
        """What was generated is worth keeping however far the trainer, or we, got with it."""
        now, self.now = self.now, None
        if now is None or not now.count:
            return
        with self.wraps.guarded("read the advantages"):
            now.ended(out) if error is None else now.failed(error)
        with self.wraps.guarded("record a generation"):
            self.emit(now.batch())

    def _rewards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self.now
        if now is None:
            return original(*args, **kwargs)
        with self.wraps.guarded("take a snapshot of a generation"):
            now.snapshot(*_bound(original, args, kwargs))
        swap: _Swap | None = None
        with self.wraps.guarded("watch the reward functions"):
            swap = now.watched_rewards()
        with swap or nullcontext():
            gathered = original(*args, **kwargs)
        with self.wraps.guarded("read the rewards"):
            now.scored(gathered)
        return gathered

    def _tokens(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if self.now is not None and isinstance(out, tuple):
            self.now.generated = out
        return out

    def _tools(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self.now
        swap: _Swap | None = None
        with self.wraps.guarded("watch the tools"):
            swap = now.watched_tools() if now is not None else None
        with swap or nullcontext():
            out = original(*args, **kwargs)
        if now is not None and isinstance(out, tuple) and out:
            now.tool_mask = out[0]
        return out


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(inspect.signature(function).bind(*args, **kwargs).arguments.values())


class _Swap:
    """Set attributes of the trainer for the length of one call."""

    def __init__(self, target: Any, **values: Any) -> None:
        self._target, self._values = target, values

    def __enter__(self) -> None:
        self._before = {name: getattr(self._target, name) for name in self._values}
        for name, value in self._values.items():
            setattr(self._target, name, value)

    def __exit__(self, *exc: object) -> None:
        for name, value in self._before.items():
            setattr(self._target, name, value)


class Generation:
    """One generation batch of this rank: what was observed on the training thread, and how rollouts come of it."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.options = options
        training = bool(trainer.model.training)
        self.split = "train" if training else "eval"
        self.policy_step = int(trainer.state.global_step)
        self.step = self.policy_step + training
        self.rank = int(trainer.accelerator.process_index)
        self.world = int(trainer.accelerator.num_processes)
        self.group_size = _group_size(trainer, training=training)
        self.names = reward_names(trainer)
        self.weights = _weights(trainer, len(self.names))
        self.count = 0
        self.bytes = 0
        self.seconds = 0.0
        self.time = time.time()
        self.error: str | None = None
        self.prompts: list[Any] = []
        self.completions: list[Any] = []
        self.columns: list[dict[str, Any]] = []
        self.ids: list[list[int]] = []
        self.lengths: list[int] = []
        self.gathered: Any = None
        self.ends: list[int | None] = []
        self.generated: tuple[Any, ...] = ()
        self.tool_mask: Any = None
        self.watches: list[Watch] = []
        self.raw_rewards: dict[int, Sequence[Any]] = {}
        self.rewards: list[list[float | None]] = []
        self.advantages: list[float | None] = []
        self.extra: dict[str, list[Any]] = {}
        self.peers: dict[str, Any] | None = None
        self.tensors: dict[str, Any] = {}

    # --- on the training thread -----------------------------------------------------------------------------------

    def snapshot(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> None:
        """Copy what reward functions might change, before they run."""
        started = time.perf_counter()
        copier = Snapshot()
        self.prompts = [copier.copy(prompt) for prompt in prompts]
        self.completions = [copier.copy(completion) for completion in completions]
        self.columns = [{k: copier.copy(v) for k, v in row.items() if k not in _NOT_COLUMNS} for row in inputs]
        keep = bool(self.options.get("tokens"))
        self.ids = [list(row) if keep else [] for row in ids]
        self.lengths = [len(row) for row in ids]
        self.ends = [int(row[-1]) if len(row) else None for row in ids]
        self.count = len(self.prompts)
        self.time = time.time()
        self.bytes = copier.bytes + 512 * self.count
        self.seconds += time.perf_counter() - started

    def watched_rewards(self) -> _Swap:
        """Reward functions whose raw results we see: the trainer's tensor cannot tell None from NaN."""
        functions = self.trainer.reward_funcs
        return _Swap(self.trainer, reward_funcs=[self._watch_reward(i, f) for i, f in enumerate(functions)])

    def _watch_reward(self, index: int, function: Any) -> Any:
        if hasattr(function, "forward"):
            return function  # a model: the trainer needs it as it is
        if _is_async(function):

            @functools.wraps(function, updated=())
            async def watched_async(*args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                self.raw_rewards[index] = list(result) if isinstance(result, (list, tuple)) else ()
                return result

            return watched_async

        @functools.wraps(function, updated=())
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.raw_rewards[index] = list(result) if isinstance(result, (list, tuple)) else ()
            return result

        return watched

    def watched_tools(self) -> _Swap:
        """Tools that note their calls. TRL keeps one dictionary of them for each rollout (since 1.0)."""
        sync = getattr(self.trainer, "_sync_tool_dicts", None)
        later = getattr(self.trainer, "_async_tool_dicts", None)
        if not isinstance(sync, list) or not isinstance(later, list) or len(sync) != len(later):
            return _Swap(self.trainer)
        self.watches = [Watch(frozenset(a) | frozenset(b)) for a, b in zip(sync, later, strict=True)]
        return _Swap(
            self.trainer,
            _sync_tool_dicts=[
                _watch_all(w, tools, is_async=False) for w, tools in zip(self.watches, sync, strict=True)
            ],
            _async_tool_dicts=[
                _watch_all(w, tools, is_async=True) for w, tools in zip(self.watches, later, strict=True)
            ],
        )

    def scored(self, gathered: Any) -> None:
        """Rewards exist now, and so does what reward functions gave to log_extra."""
        started = time.perf_counter()
        self.gathered = gathered
        copier = Snapshot()
        pending = getattr(self.trainer, "_pending_extra_logs", None) or {}
        self.extra = {str(name): copier.copy(list(values)) for name, values in pending.items()}
        self.bytes += copier.bytes
        self.seconds += time.perf_counter() - started

    def ended(self, out: Mapping[str, Any]) -> None:
        """Advantages exist now, as numbers in the trainer's log; only if they don't is its tensor read."""
        started = time.perf_counter()
        logged = self._logged()
        here = slice(self.rank * self.count, (self.rank + 1) * self.count)
        self.rewards = self._reward_rows(logged, here)
        if logged is not None:
            self.advantages = logged["advantages"][here]
            if self.options.get("gather") and self.rank == 0 and self.world > 1:
                self.peers = logged
        else:
            self.advantages = out["advantages"].tolist()
        self._keep_tensors(out)
        self.seconds += time.perf_counter() - started

    def failed(self, error: BaseException) -> None:
        """The trainer raised: what was generated is still worth keeping."""
        self.error = f"{type(error).__name__}: {error}"

    def _logged(self) -> dict[str, Any] | None:
        """This generation's rows of all ranks in the trainer's own log, if it holds all of them."""
        return logged_tail(self.trainer, self.count * self.world, self.names)

    def _reward_rows(self, logged: Mapping[str, Any] | None, here: slice) -> list[list[float | None]]:
        columns = [self._reward_column(i, logged, here) for i in range(len(self.names))]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(self.count)]

    def _reward_column(self, index: int, logged: Mapping[str, Any] | None, here: slice) -> list[float | None]:
        """One function's rewards: as it gave them, else as the trainer logged them, else from its tensor."""
        raw = self.raw_rewards.get(index, ())
        if len(raw) == self.count and all(value is None or type(value) in {int, float, bool} for value in raw):
            return [None if value is None else float(value) for value in raw]
        if logged is not None and self.names[index] in logged["rewards"]:
            numbers = logged["rewards"][self.names[index]][here]
        else:
            numbers = self.gathered[here, index].tolist()
        nothing = [value is None for value in raw] if len(raw) == self.count else [math.isnan(n) for n in numbers]
        return [None if none else number for none, number in zip(nothing, numbers, strict=True)]

    def _keep_tensors(self, out: Mapping[str, Any]) -> None:
        wanted = []
        if self.options.get("tokens"):
            wanted = ["sampling_per_token_logps", "old_per_token_logps", "completion_mask"]
        self.tensors = {k: out[k].detach().to("cpu", copy=True) for k in wanted if out.get(k) is not None}

    def batch(self) -> Batch:
        return Batch(
            build=self.build,
            split="train" if self.split == "train" else "eval",
            step=self.step,
            count=self.count,
            bytes=self.bytes,
            gathered=self.peers is not None or self.world == 1,
            seconds=self.seconds,
        )

    # --- on the worker thread -------------------------------------------------------------------------------------

    def build(self) -> list[Rollout]:
        """The rollouts of this rank, then, when asked for, those of the other ranks from the trainer's log."""
        own = [self._rollout(i) for i in range(self.count)]
        return own + (self._peer_rollouts() if self.peers is not None else [])

    def _common(self, index: int) -> dict[str, Any]:
        return {
            "id": "",
            "policy_step": self.policy_step,
            "index": index,
            "group": index // self.group_size,
            "group_size": self.group_size,
            "time": self.time,
        }

    def _rollout(self, i: int) -> Rollout:
        watch = self.watches[i] if i < len(self.watches) else None
        completion, completion_is_text = as_messages(self.completions[i], "assistant")
        prompt, prompt_is_text = as_messages(self.prompts[i], "user")
        calls = tool_calls(completion, watch, self._tool_names())
        rewards = dict(zip(self.names, self.rewards[i], strict=True)) if self.rewards else dict.fromkeys(self.names)
        extra, marks = self._extra(i)
        return Rollout(
            **self._common(self.rank * self.count + i),
            rank=self.rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=calls,
            rewards=rewards,
            reward=weighted(rewards, self.weights),
            advantage=self.advantages[i] if self.advantages else None,
            prompt_tokens=self._prompt_length(i),
            completion_tokens=self._completion_length(i),
            finish="error" if self.error else self._finish(i, calls, watch),
            columns=self.columns[i],
            extra=extra,
            marks=marks,
            rendered=self._rendered(i),
            tokens=self._token_data(i),
            error=self.error,
        )

    def _tool_names(self) -> list[str]:
        return [getattr(tool, "__name__", "") for tool in getattr(self.trainer, "tools", None) or ()]

    def _extra(self, i: int) -> tuple[dict[str, Any], dict[str, str]]:
        """This rollout's values. A column of another length belongs to no rollout: the first one keeps it whole."""
        extra, marks = {}, {}
        for name, values in self.extra.items():
            if len(values) == self.count:
                extra[name] = values[i]
            elif i == 0:
                extra[name] = values
                marks[f"extra:{name}"] = f"all {len(values)} values that {self.count} rollouts got; kept here whole"
        return extra, marks

    def _prompt_length(self, i: int) -> int | None:
        ids = self.generated[0] if self.generated else None
        return len(ids[i]) if isinstance(ids, list) and len(ids) == self.count else None

    def _mask(self) -> Any:
        """1 for tokens the model wrote, 0 for tool results; None when all are the model's."""
        masks = self.tool_mask
        if masks is None and len(self.generated) > 3:
            masks = self.generated[2]
        if isinstance(masks, list) and [len(m) for m in masks] == self.lengths:
            return masks
        return None

    def _completion_length(self, i: int) -> int:
        masks = self._mask()
        return int(sum(masks[i])) if masks is not None else self.lengths[i]

    def _finish(self, i: int, calls: Sequence[Any], watch: Watch | None) -> Any:
        ends = _end_ids(self.trainer)
        if not ends or self.ends[i] is None:
            return "unknown"
        if self.ends[i] not in ends:
            return "length"
        waiting = [call for call in calls if call.status == "not_run"]
        if waiting:
            return "length" if any(call.error for call in waiting) else "tool_limit"
        return "stop"

    def _rendered(self, i: int) -> str | None:
        tokenizer = self.options.get("rendered")
        ids = self.generated[0] if self.generated else None
        if not tokenizer or not isinstance(ids, list) or len(ids) != self.count:
            return None
        return str(tokenizer.decode(ids[i], skip_special_tokens=False))

    def _token_data(self, i: int) -> Tokens | None:
        if not self.options.get("tokens"):
            return None
        prompt = self.generated[0] if self.generated else None
        masks = self._mask()
        length = self.lengths[i]
        return Tokens(
            prompt=list(prompt[i]) if isinstance(prompt, list) and len(prompt) == self.count else None,
            completion=self.ids[i],
            mask=list(masks[i]) if masks is not None else [1] * length,
            logprobs=self._per_token("sampling_per_token_logps", i, length),
            trainer_logprobs=self._per_token("old_per_token_logps", i, length),
        )

    def _per_token(self, name: str, i: int, length: int) -> list[float] | None:
        tensor = self.tensors.get(name)
        return tensor[i][:length].tolist() if tensor is not None else None

    def _peer_rollouts(self) -> list[Rollout]:
        logged = self.peers or {}
        indices = [i for i in range(self.count * self.world) if i // self.count != self.rank]
        return [self._logged_rollout(logged, i, i // self.count) for i in indices]

    def _logged_rollout(self, logged: Mapping[str, Any], i: int, rank: int) -> Rollout:
        """What the trainer's log knows: no columns, no token counts, no timing of tools."""
        completion, completion_is_text = as_messages(logged["completion"][i], "assistant")
        prompt, prompt_is_text = as_messages(logged["prompt"][i], "user")
        rewards = {name: _number(logged["rewards"][name][i]) for name in self.names if name in logged["rewards"]}
        return Rollout(
            **self._common(i),
            rank=rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=tool_calls(completion, None, self._tool_names()),
            rewards=rewards,
            reward=weighted(rewards, self.weights),
            advantage=logged["advantages"][i],
            extra={name: values[i] for name, values in logged["extra"].items()},
            marks={"source": "the trainer's own log"},
        )

    @classmethod
    def from_log(cls, trainer: Any, count: int) -> Batch | None:
        """This rank's rows of the last generation in the trainer's log."""
        self = cls(trainer, {})
        self.count = count
        logged = self._logged()
        if logged is None:
            return None
        start = self.rank * count
        batch = self.batch()
        rollouts = [self._logged_rollout(logged, start + i, self.rank) for i in range(count)]
        return Batch(build=lambda: rollouts, split=batch.split, step=self.step, count=count, gathered=self.world == 1)


def logged_tail(trainer: Any, total: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The last `total` rows of TRL's in-memory log, None when it doesn't hold that many."""
    logs = getattr(trainer, "_logs", None)
    if not isinstance(logs, dict) or not total or len(logs.get("advantages", ())) < total:
        return None

    def tail(rows: Any) -> list[Any]:
        return list(islice(rows, len(rows) - total, None))

    columns = {name: logs["rewards"][name] for name in names if name in logs["rewards"]}
    extra = {name: rows for name, rows in (logs.get("extra") or {}).items() if len(rows) == len(logs["advantages"])}
    return {
        "prompt": tail(logs["prompt"]),
        "completion": tail(logs["completion"]),
        "advantages": tail(logs["advantages"]),
        "rewards": {name: tail(rows) for name, rows in columns.items() if len(rows) >= total},
        "extra": {name: tail(rows) for name, rows in extra.items()},
    }


def as_messages(value: Any, role: str) -> tuple[tuple[Any, ...], bool]:
    """Messages as they are; a plain string becomes one message, and that is remembered."""
    if isinstance(value, str):
        return ({"role": role, "content": value},), True
    if isinstance(value, (list, tuple)):
        return tuple(value), False
    return (value,), False


def weighted(rewards: Mapping[str, float | None], weights: Sequence[float]) -> float | None:
    """The sum the trainer uses: functions that gave nothing (or NaN) don't count; None when none gave anything."""
    terms = [
        value * weight
        for value, weight in zip(rewards.values(), weights, strict=False)
        if value is not None and not math.isnan(value)
    ]
    return sum(terms) if terms else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _watch_all(watch: Watch, tools: Mapping[str, Any], *, is_async: bool) -> dict[str, Any]:
    return {name: watch.watched(name, tool, is_async=is_async) for name, tool in tools.items()}


def _group_size(trainer: Any, *, training: bool) -> int:
    size = trainer.num_generations if training else getattr(trainer, "num_generations_eval", trainer.num_generations)
    return max(int(size or 1), 1)


def _weights(trainer: Any, count: int) -> list[float]:
    """Weights as configured; those the trainer adds for environments are 1."""
    given = list(getattr(trainer.args, "reward_weights", None) or [])
    return given + [1.0] * (count - len(given))


def _end_ids(trainer: Any) -> set[int]:
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(trainer, "processing_class", None)
    many = getattr(trainer, "eos_token_ids", None) or ()
    ones = (getattr(trainer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None))
    if not many and ones[0] is None:
        ones = (getattr(tokenizer, "eos_token_id", None), ones[1])
    return {int(token) for token in (*many, *ones) if isinstance(token, int)}
