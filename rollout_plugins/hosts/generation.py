"""One generation of a GRPO-like trainer: what is observed of it on the training thread."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollout_hookspecs import Batch, Rollout

from rollout_plugins.hosts.building import Builder, LogTail
from rollout_plugins.hosts.facts import reward_names
from rollout_plugins.hosts.toolcalls import Watch, WatchedTools
from rollout_plugins.hosts.wrapping import Swap
from rollout_plugins.snapshot import Snapshot


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

    def snapshot(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> None:
        """Copy what reward functions might change, before they run."""
        started = time.perf_counter()
        copier = Snapshot()
        self.prompts = [copier.copy(prompt) for prompt in prompts]
        self.completions = [copier.copy(completion) for completion in completions]
        self.columns = [{k: copier.copy(v) for k, v in row.items() if k != "prompt"} for row in inputs]
        keep = bool(self.options.get("tokens"))
        self.ids = [list(row) if keep else [] for row in ids]
        self.lengths = [len(row) for row in ids]
        self.ends = [int(row[-1]) if len(row) else None for row in ids]
        self.count = len(self.prompts)
        self.time = time.time()
        self.bytes = copier.bytes + 512 * self.count
        self.seconds += time.perf_counter() - started

    def watched_rewards(self) -> Swap:
        """Reward functions whose raw results we see: the trainer's tensor cannot tell None from NaN."""
        functions = self.trainer.reward_funcs
        return Swap(self.trainer, reward_funcs=[self._watch_reward(i, f) for i, f in enumerate(functions)])

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

    def watched_tools(self) -> Swap:
        """Tools that note their calls. TRL keeps one dictionary of them for each rollout (since 1.0)."""
        sync = getattr(self.trainer, "_sync_tool_dicts", None)
        later = getattr(self.trainer, "_async_tool_dicts", None)
        if not isinstance(sync, list) or not isinstance(later, list) or len(sync) != len(later):
            return Swap(self.trainer)
        self.watches = [Watch((*a, *b)) for a, b in zip(sync, later, strict=True)]
        return Swap(
            self.trainer,
            _sync_tool_dicts=[
                WatchedTools(tools, w, is_async=False) for w, tools in zip(self.watches, sync, strict=True)
            ],
            _async_tool_dicts=[
                WatchedTools(tools, w, is_async=True) for w, tools in zip(self.watches, later, strict=True)
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
        log = self._log()
        here = slice(self.rank * self.count, (self.rank + 1) * self.count)
        self.rewards = self._reward_rows(log, here)
        if log is not None:
            self.advantages = log.advantages()[here]
            if self.options.get("gather") and self.rank == 0 and self.world > 1:
                self.peers = log.everything()
        else:
            self.advantages = out["advantages"].tolist()
        self._keep_tensors(out)
        self.seconds += time.perf_counter() - started

    def failed(self, error: BaseException) -> None:
        """The trainer raised: what was generated is still worth keeping."""
        self.error = f"{type(error).__name__}: {error}"

    def _log(self) -> LogTail | None:
        """This generation's rows of all ranks in the trainer's own log, if it holds all of them."""
        return LogTail.of(self.trainer, self.count * self.world, self.names)

    def _reward_rows(self, log: LogTail | None, here: slice) -> list[list[float | None]]:
        columns = [self._reward_column(i, log, here) for i in range(len(self.names))]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(self.count)]

    def _reward_column(self, index: int, log: LogTail | None, here: slice) -> list[float | None]:
        """One function's rewards: as it gave them, else as the trainer logged them, else from its tensor."""
        raw = self.raw_rewards.get(index, ())
        if len(raw) == self.count and all(value is None or type(value) in {int, float, bool} for value in raw):
            return [None if value is None else float(value) for value in raw]
        logged = log.reward(self.names[index]) if log is not None else None
        numbers = logged[here] if logged is not None else self.gathered[here, index].tolist()
        nothing = [value is None for value in raw] if len(raw) == self.count else [math.isnan(n) for n in numbers]
        return [None if none else number for none, number in zip(nothing, numbers, strict=True)]

    def _keep_tensors(self, out: Mapping[str, Any]) -> None:
        wanted = []
        if self.options.get("tokens"):
            wanted = ["sampling_per_token_logps", "old_per_token_logps", "completion_mask"]
        self.tensors = {k: out[k].detach().to("cpu", copy=True) for k in wanted if out.get(k) is not None}

    def batch(self) -> Batch:
        return Batch(
            build=Builder(self).rollouts,
            split="train" if self.split == "train" else "eval",
            step=self.step,
            count=self.count,
            bytes=self.bytes,
            gathered=self.peers is not None or self.world == 1,
            seconds=self.seconds,
        )

    @classmethod
    def from_log(cls, trainer: Any, count: int) -> Batch | None:
        """This rank's rows of the last generation in the trainer's log."""
        self = cls(trainer, {})
        self.count = count
        log = self._log()
        if log is None:
            return None
        logged = log.everything()
        start = self.rank * count
        builder = Builder(self)

        def build() -> list[Rollout]:
            return [builder.logged(logged, start + i, self.rank) for i in range(count)]

        return replace(self.batch(), build=build)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _group_size(trainer: Any, *, training: bool) -> int:
    size = trainer.num_generations if training else getattr(trainer, "num_generations_eval", trainer.num_generations)
    return max(int(size or 1), 1)


def _weights(trainer: Any, count: int) -> list[float]:
    """Weights as configured; those the trainer adds for environments are 1."""
    given = list(getattr(trainer.args, "reward_weights", None) or [])
    return given + [1.0] * (count - len(given))
