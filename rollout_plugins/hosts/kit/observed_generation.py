"""One generation of a trainer, as it is observed on the training thread."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from sys import getsizeof
from typing import Any, Final

from rollout_plugins.content.message_columns import MessageColumns, size_of
from rollout_plugins.content.snapshot import Snapshot, leaf_bytes
from rollout_plugins.content.tokens import pack
from rollout_plugins.hosts.kit.observed_rewards import Rewards
from rollout_plugins.hosts.kit.stand_ins import StandIns, swapped
from rollout_plugins.hosts.kit.watch_tools import Watch, WatchedTools, describe_error, split_watch

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
#: Measured overhead in bytes of a generation and of a rollout, without their content.
_GENERATION, _ROLLOUT = 6500, 64
#: Measured overhead in bytes of a `Watch` and of each of its notes.
_WATCH, _NOTE = 256, 43
_EACH: Final = (
    "prompts", "completions", "columns", "ids", "lengths", "ends", "prompt_ids", "tool_mask", "watches", "marks",
)  # fmt: skip


class Generation:
    """The observed prompts, completions, tokens, tool calls and scores of one generation of this rank."""

    def __init__(self, trainer: Any, options: Mapping[str, Any], *, training: bool | None = None) -> None:
        self.trainer = trainer
        self.options = options
        training = bool(trainer.model.training) if training is None else training
        self.split = "train" if training else "eval"
        self.policy_step: int | None = int(trainer.state.global_step)
        self.step = self.policy_step + training
        self.rank = int(trainer.accelerator.process_index)
        self.world = int(trainer.accelerator.num_processes)
        # A trainer that leaves its model in training mode also evaluates with the group size of training.
        self.group_size = _group_size(trainer, training=training or bool(trainer.model.training))
        # The number of rollouts to expect, the number observed, and the bytes and seconds they cost.
        self.expected = self.count = self.bytes = 0
        self.seconds = 0.0
        self.time = time.time()
        self.error: str | None = None
        # Messages: the dataset's rows, the prompts built from them, the tool loop's completions, and our copies.
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.built_prompts: list[Any] = []
        self.tool_loop_completions: Sequence[Any] | None = None
        self.prompts: Any = []
        self.completions: Any = None
        self.columns: list[dict[str, Any]] = []
        # Tokens; the decoder turns them into text where the trainer has no messages.
        self.prompt_ids: Any = None
        self.prompt_lengths: list[int] | None = None
        self.written_counts: list[int] | None = None
        self.ids: list[Sequence[int]] = []
        self.lengths: list[int] = []
        self.ends: list[int | None] = []
        self.tool_mask: Any = None
        self.tensors: dict[str, Any] = {}
        self.decoder: Any = None
        # Tools and scores.
        self.watches: list[Watch] = []
        self.rewards = Rewards(trainer)
        self.totals: list[float | None] = []
        self.advantages: list[float | None] = []
        self.extra: dict[str, list[Any]] = {}
        # Marks of each rollout, marks of all rollouts that explain a missing value, and rows replaced in training.
        self.marks: list[dict[str, str]] = []
        self.unknown: dict[str, str] = {}
        self.replaced: frozenset[int] = frozenset()
        # The index of each row and the batch size, if rows are not contiguous; rollouts of other ranks.
        self.places: list[int] = []
        self.width = 0
        self.peers: dict[str, Any] | None = None
        # Work that the worker thread does before it builds the rollouts.
        self.later: list[Callable[[], None]] = []

    def snapshot(self, rows: Any, prompts: Any, completions: Any, ids: Any = None) -> None:
        """Copy all mutable values. Pass None as `completions` where only token ids exist: they are decoded later."""
        copier = Snapshot()
        self.completions = None if completions is None else MessageColumns(completions, "assistant", copier.copy)
        size = 0 if self.completions is None else self.completions.bytes()
        if any(prompt is None for prompt in prompts):
            self.prompts = [copier.copy(prompt) for prompt in prompts]
        else:
            self.prompts = MessageColumns(prompts, "user", copier.copy)
            size += self.prompts.bytes(are_shared=True)
        self.columns = copied_rows(rows, copier.copy)
        self.count = len(self.prompts)
        self.columns = self.columns or [{} for _ in self.prompts]
        self.time = time.time()
        self.bytes = copier.bytes + _ROLLOUT * self.count + size + _texts(self.columns)
        if ids is not None:
            self.answer(ids)

    def answer(self, ids: Sequence[Sequence[int]]) -> None:
        """Record the completions' lengths and last tokens, and their ids if they are stored or decoded."""
        keep = bool(self.options.get("tokens")) or self.completions is None
        self.ids = [packed_ids(row) for row in ids] if keep else []
        self.lengths = list(map(len, ids))
        self.ends = [int(row[-1]) if length else None for row, length in zip(ids, self.lengths, strict=True)]

    def keep(self, **tensors: Any) -> None:
        """Copy per-token tensors, such as log-probabilities, from the device if the option `tokens` is set."""
        if self.options.get("tokens"):
            self.tensors |= {k: v.detach().to("cpu", copy=True) for k, v in tensors.items() if v is not None}

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Remove all other rows; these keep their place in the batch."""
        for name in _EACH:
            values = getattr(self, name)
            if isinstance(values, MessageColumns):
                setattr(self, name, values.take(rows))
            elif isinstance(values, list) and len(values) == self.count:
                setattr(self, name, [values[i] for i in rows])
        self.places, self.width, self.count = list(rows), self.width or self.count, len(rows)

    def failed(self, error: BaseException) -> None:
        """Record the exception that the trainer raised; the rollouts so far are still submitted."""
        self.error = describe_error(error)

    def snapshot_after_error(self, given: Mapping[str, Any]) -> None:
        """Take a snapshot after the tool loop raised; its arguments hold the conversation up to that point."""
        prompts = [row["prompt"] for row in self.rows] or given["prompts"]
        self.snapshot(self.rows, prompts, given["completions"], given["completion_ids"])

    def watched_tools(self) -> AbstractContextManager[None]:
        """Replace the trainer's tools for one call by tools that record their calls.

        TRL has one dictionary of tools for each rollout, or one that all rollouts share.
        """
        shared = getattr(self.trainer, "_tool_dict", None)
        if isinstance(shared, (dict, WatchedTools)):
            watch = Watch(tuple(shared))
            self.later.append(lambda: self._split_watch(watch))
            return swapped(self.trainer, _tool_dict=WatchedTools(shared, watch, is_async=False))
        sync, deferred = (getattr(self.trainer, f"_{kind}_tool_dicts", None) for kind in ("sync", "async"))
        if not isinstance(sync, list) or not isinstance(deferred, list) or len(sync) != len(deferred):
            return nullcontext()
        tools: dict[tuple[str, ...], tuple[str, ...]] = {}  # most rollouts have the same tools
        names = (
            sync_names + async_names
            for sync_names, async_names in zip(map(tuple, sync), map(tuple, deferred), strict=True)
        )
        self.watches = watches = [Watch(tools.setdefault(tool_names, tool_names)) for tool_names in names]
        return swapped(
            self.trainer,
            _sync_tool_dicts=StandIns(sync, lambda i, tools: WatchedTools(tools, watches[i], is_async=False)),
            _async_tool_dicts=StandIns(deferred, lambda i, tools: WatchedTools(tools, watches[i], is_async=True)),
        )

    def _split_watch(self, together: Watch) -> None:
        self.watches = split_watch(together, self.completions or ())

    def read_rewards(self) -> None:
        """Read the results of the reward functions, or mark why they are unknown."""
        if self.rewards.rows:
            return
        unseen = self.rewards.read(self.count)
        reason = self.unknown.pop("rewards", "") or ("the trainer failed before they were known" if self.error else "")
        if unseen:
            self.unknown["rewards"] = reason or f"the results of {', '.join(unseen)} were not observed"
        elif self.rewards.changed:
            changed = ", ".join(self.rewards.changed)
            self.unknown["rewards"] = f"as the functions returned them; the trainer changed those of {changed}"
            self.totals = self.rewards.totals()

    def drop_unneeded(self) -> None:
        """Drop all that rollouts are not built from; of tokens, only the counts stay unless they are stored.

        Stored tokens are packed, because a list takes five times the memory.
        """
        self.rows, self.built_prompts, self.tool_loop_completions, self.rewards.numbers = (), [], None, lambda _: None
        self.prompt_lengths = _each(len, self.prompt_ids, self.count)
        self.written_counts = self._count_written()
        if self.ids or self.options.get("rendered") or not isinstance(self.prompts, MessageColumns):
            self.prompt_ids = _packed(self.prompt_ids, packed_ids)
            self.tool_mask = _packed(self.tool_mask, bytes)
        else:
            self.prompt_ids = self.tool_mask = None

    def _count_written(self) -> list[int] | None:
        """Return the number of tokens that the model wrote in each completion, without tool results."""
        has_mask = _each(len, self.tool_mask, self.count) == self.lengths
        return _each(lambda mask: mask.count(1), self.tool_mask, self.count) if has_mask else None

    @property
    def occupied_bytes(self) -> int:
        """The bytes that the generation occupies until its rollouts are stored."""
        peers = Snapshot()
        peers.copy(self.peers)
        tokens = sum(map(_bytes, (self.prompt_ids, self.tool_mask, self.ids, *self.tensors.values())))
        watched = sum(watch.bytes + _WATCH + _NOTE * len(watch.notes) for watch in self.watches)
        return self.bytes + peers.bytes + tokens + _GENERATION + watched


def copied_rows(rows: Iterable[Mapping[str, Any]], copy: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Copy the columns of the rows, without the prompt."""
    copies = [{name: value for name, value in row.items() if name != "prompt"} for row in rows]
    if not set(map(type, chain.from_iterable(map(dict.values, copies)))) <= _ATOMS:
        for row_copy in copies:
            row_copy.update((name, copy(value)) for name, value in row_copy.items() if type(value) not in _ATOMS)
    return copies


def _texts(columns: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of all texts in the columns, counting a text that several rows share once."""
    texts = {id(value): value for row in columns for value in row.values() if type(value) is str}
    return size_of(texts.values())


def _each(measure: Callable[[Any], int], rows: Any, count: int) -> list[int] | None:
    """Return `function` of each row; None if `rows` is not a list of `count` rows."""
    return [measure(row) for row in rows] if isinstance(rows, list) and len(rows) == count else None


def packed_ids(row: Any) -> array[int]:
    """Pack token ids, from a list, an array or a tensor, into an array."""
    packed = pack(row, "i")
    return array("q", row) if packed is None else packed


def _packed(rows: Any, pack: Callable[[Any], Any]) -> Any:
    """Pack rows of integers; return anything else unchanged."""
    try:
        return [pack(row) for row in rows] if isinstance(rows, list) else rows
    except (TypeError, ValueError, OverflowError):
        return rows


def _bytes(rows: Any) -> int:
    """Return the bytes of tokens or per-token numbers."""
    return getsizeof(rows) + sum(map(_bytes, rows)) if isinstance(rows, list) else leaf_bytes(rows)


def _group_size(trainer: Any, *, training: bool) -> int:
    size = getattr(trainer, "num_generations", 1)
    if not training:
        size = getattr(trainer, "num_generations_eval", size)
    return max(int(size or 1), 1)
