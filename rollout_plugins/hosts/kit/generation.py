"""One generation of a trainer: what is observed of it on the training thread."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.kit.stand_ins import AsyncStandIn, StandIn, swapped
from rollout_plugins.hosts.kit.trainer_facts import reward_names
from rollout_plugins.hosts.kit.watching import Watch, WatchedTools, shared_out

_EACH: Final = (
    "prompts", "completions", "columns", "ids", "lengths", "ends", "prompt_ids", "tool_mask", "watches", "marks",
)  # fmt: skip


class Generation:
    """One generation batch of this rank: what was observed on the training thread, and how rollouts come of it."""

    def __init__(self, trainer: Any, options: Mapping[str, Any], *, training: bool | None = None) -> None:
        self.trainer = trainer
        self.options = options
        training = bool(trainer.model.training) if training is None else training
        self.split = "train" if training else "eval"
        self.policy_step: int | None = int(trainer.state.global_step)
        self.step = self.policy_step + training
        self.rank = int(trainer.accelerator.process_index)
        self.world = int(trainer.accelerator.num_processes)
        self.group_size = _group_size(trainer, training=training)
        self.names = reward_names(trainer)
        self.weights = _weights(trainer, len(self.names))
        self.marks: list[dict[str, str]] = []
        self.error: str | None = None
        # How many rollouts the trainer is about to make, how many were seen, and what keeping them costs.
        self.expected = self.count = self.bytes = 0
        self.seconds = 0.0
        self.time = time.time()
        # Messages: the rows given, prompts composed of them, what tool loops said, and the copies that are kept.
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.asked: list[Any] = []
        self.said: Sequence[Any] | None = None
        self.prompts: list[Any] = []
        self.completions: list[Any] | None = None
        self.columns: list[dict[str, Any]] = []
        # Tokens; where there is nothing else, the decoder makes text of them.
        self.prompt_ids: Any = None
        self.ids: list[Sequence[int]] = []
        self.lengths: list[int] = []
        self.ends: list[int | None] = []
        self.tool_mask: Any = None
        self.tensors: dict[str, Any] = {}
        self.decoder: Any = None
        # Tools and rewards. `numbers` reads one function's rewards off the trainer, where they were not seen raw.
        self.watches: list[Watch] = []
        self.raw_rewards: dict[int, Sequence[Any]] = {}
        self.numbers: Callable[[int], Sequence[float] | None] = lambda _: None
        self.rewards: list[list[float | None]] = []
        self.totals: list[float] = []
        self.advantages: list[float | None] = []
        self.extra: dict[str, list[Any]] = {}
        # Why rewards and advantages are not known; rows that the trainer trains on others in place of.
        self.unknown: dict[str, str] = {}
        self.replaced: frozenset[int] = frozenset()
        # What the trainer generated, the ids of what it scored, and what was in its log before.
        self.is_one_of_several = False
        self.logged: Sequence[Any] | None = None
        self.made: Any = None
        self.generated = 0
        self.scored_ids: Sequence[Any] = ()
        self.peers: dict[str, Any] | None = None
        # Where each row stands in a batch of how many, if it is not one after the other.
        self.places: list[int] = []
        self.width = 0
        # What is left to do on the worker thread before rollouts are built.
        self.later: list[Callable[[], None]] = []

    def snapshot(self, rows: Any, prompts: Any, completions: Any, ids: Any = None) -> None:
        """Copy what others might change. `completions` is None where the trainer has ids alone: those are decoded."""
        copier = Snapshot()
        self.prompts = [copier.copy(prompt) for prompt in prompts]
        self.completions = None if completions is None else [copier.copy(completion) for completion in completions]
        self.columns = [{k: copier.copy(v) for k, v in row.items() if k != "prompt"} for row in rows]
        self.count = len(self.prompts)
        self.columns = self.columns or [{} for _ in self.prompts]
        self.time = time.time()
        self.bytes = copier.bytes + 512 * self.count + sum(watch.bytes for watch in self.watches)
        if ids is not None:
            self.answer(ids)

    def answer(self, ids: Sequence[Sequence[int]]) -> None:
        """Token ids of the completions. They are kept where they are asked for or have to be decoded."""
        keep = bool(self.options.get("tokens")) or self.completions is None
        self.ids = [array("q", row) for row in ids] if keep else []
        self.lengths = [len(row) for row in ids]
        self.ends = [int(row[-1]) if len(row) else None for row in ids]

    def split_off(self) -> Generation:
        """What was seen so far, as a generation of its own: the trainer goes on with another one."""
        earlier = copy.copy(self)
        self.is_one_of_several = True
        self.count = self.bytes = 0
        self.made, self.seconds, self.prompt_ids, self.tool_mask, self.said = None, 0.0, None, None, None
        self.watches, self.later, self.marks, self.raw_rewards = [], [], [], {}
        self.scored_ids, self.extra, self.unknown, self.numbers = (), {}, {}, lambda _: None
        return earlier

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Leave only these rows, at the places where they were."""
        for name in _EACH:
            values = getattr(self, name)
            if isinstance(values, list) and len(values) == self.count:
                setattr(self, name, [values[i] for i in rows])
        self.places, self.width, self.count = list(rows), self.width or self.count, len(rows)

    def broken_off(self, given: Mapping[str, Any]) -> None:
        """The tool loop raised: what it had said and heard until then stands in the lists it was given."""
        prompts = [row["prompt"] for row in self.rows] or given["prompts"]
        self.snapshot(self.rows, prompts, given["completions"], given["completion_ids"])

    def watched_rewards(self) -> AbstractContextManager[None]:
        """Reward functions whose raw results we see: the trainer's tensor cannot tell None from NaN."""
        functions = self.trainer.reward_funcs
        if not isinstance(functions, list):
            return nullcontext()
        return swapped(self.trainer, reward_funcs=[self._watch_reward(i, f) for i, f in enumerate(functions)])

    def _watch_reward(self, index: int, function: Any) -> Any:
        if hasattr(function, "forward"):
            return function  # a model: the trainer needs it as it is
        if _is_async(function):

            async def watched_async(function: Any, *args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                self.raw_rewards[index] = _as_given(result)
                return result

            return AsyncStandIn(function, watched_async)

        def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.raw_rewards[index] = _as_given(result)
            return result

        return StandIn(function, watched)

    def read_rewards(self) -> None:
        """Each function's rewards: as it gave them, else from the trainer's numbers for it."""
        columns = [self._reward_column(i) for i in range(len(self.names))]
        self.rewards = [list(row) for row in zip(*columns, strict=True)]
        unseen = [n for i, n in enumerate(self.names) if i not in self.raw_rewards and set(columns[i]) == {None}]
        why = self.unknown.pop("rewards", "") or ("the trainer broke off before they were known" if self.error else "")
        if unseen:
            self.unknown["rewards"] = why or f"nobody saw what was given by {', '.join(unseen)}"

    def _reward_column(self, index: int) -> list[float | None]:
        raw = self.raw_rewards.get(index, ())
        if len(raw) == self.count and all(value is None or type(value) in {int, float, bool} for value in raw):
            return [None if value is None else float(value) for value in raw]
        known = self.numbers(index)
        if known is None:
            return [None] * self.count
        nothing = [value is None for value in raw] if len(raw) == self.count else [math.isnan(n) for n in known]
        return [None if none else number for none, number in zip(nothing, known, strict=True)]

    def watched_tools(self) -> AbstractContextManager[None]:
        """Tools that note their calls: one dictionary of them for each rollout, or one that all rollouts share."""
        shared = getattr(self.trainer, "_tool_dict", None)
        if isinstance(shared, (dict, WatchedTools)):
            together = Watch(tuple(shared))
            self.later.append(lambda: self._share_out(together))
            return swapped(self.trainer, _tool_dict=WatchedTools(shared, together, is_async=False))
        sync, later = (getattr(self.trainer, f"_{kind}_tool_dicts", None) for kind in ("sync", "async"))
        if not isinstance(sync, list) or not isinstance(later, list) or len(sync) != len(later):
            return nullcontext()
        self.watches = [Watch((*a, *b)) for a, b in zip(sync, later, strict=True)]
        return swapped(
            self.trainer,
            _sync_tool_dicts=[WatchedTools(t, w, is_async=False) for t, w in zip(sync, self.watches, strict=True)],
            _async_tool_dicts=[WatchedTools(t, w, is_async=True) for t, w in zip(later, self.watches, strict=True)],
        )

    def _share_out(self, together: Watch) -> None:
        self.watches = shared_out(together, self.completions or ())

    def keep(self, **tensors: Any) -> None:
        """Log-probabilities and the like, copied from the device; only when they were asked for."""
        if self.options.get("tokens"):
            self.tensors |= {k: v.detach().to("cpu", copy=True) for k, v in tensors.items() if v is not None}

    def failed(self, error: BaseException) -> None:
        """The trainer raised: what was generated is still worth keeping."""
        self.error = f"{type(error).__name__}: {error}"

    def let_go(self) -> None:
        """What rollouts are made of stays, packed; a list takes five times as much for a token."""
        self.rows, self.asked, self.said, self.numbers = (), [], None, lambda _: None
        self.prompt_ids = _packed(self.prompt_ids, lambda row: array("q", row))
        self.tool_mask = _packed(self.tool_mask, bytes)

    @property
    def held(self) -> int:
        """Bytes that it takes until its rollouts are stored."""
        beside = Snapshot()
        beside.copy([self.prompt_ids, self.tool_mask, self.ids, list(self.tensors.values()), self.peers])
        beside.copy([[dict(seen.arguments) for seen in watch.seen] for watch in self.watches])
        return self.bytes + beside.bytes + 2048 + 256 * sum(1 + len(watch.seen) for watch in self.watches)


def _as_given(result: Any) -> list[Any]:
    """Rewards as a function gave them, copied: it may use its array again. A generator is the trainer's to read."""
    with suppress(Exception):  # the trainer reads it next, and says what is wrong with it
        if isinstance(result, (list, tuple)):
            return [_number(value) for value in result]
        if hasattr(result, "tolist"):
            return list(result if _is_on_device(result) else result.tolist())
    return []


def _number(value: Any) -> Any:
    """A scalar of NumPy or torch as a number; one that a device has is not waited for."""
    if value is None or type(value) in {int, float, bool} or not hasattr(value, "item") or _is_on_device(value):
        return value
    return value.item()


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def _packed(rows: Any, pack: Callable[[Any], Any]) -> Any:
    """Rows of whole numbers in little memory; whatever else it is stays as it is."""
    try:
        return [pack(row) for row in rows] if isinstance(rows, list) else rows
    except (TypeError, ValueError, OverflowError):
        return rows


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _group_size(trainer: Any, *, training: bool) -> int:
    size = getattr(trainer, "num_generations", 1)
    if not training:
        size = getattr(trainer, "num_generations_eval", size)
    return max(int(size or 1), 1)


def _weights(trainer: Any, count: int) -> list[float]:
    """Weights as configured; those the trainer adds for environments are 1."""
    given = list(getattr(trainer.args, "reward_weights", None) or [])
    return given + [1.0] * (count - len(given))
