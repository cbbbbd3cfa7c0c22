"""Hold generations that are not scored yet until the batch that scores them, on whichever thread that runs.

Most trainers score a generation immediately. Some generate ahead on a thread of their own, or discard rollouts
before scoring. Rows are recognised by their token ids.
"""

from __future__ import annotations

import copy
import os
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.kit.decoding import Decoder, unpadded
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.observed_rewards import Rewards
from rollout_plugins.system.warn_once import Once

_MAX_WAITING: Final = 8
NEVER_SCORED: Final = "the trainer did not score it in a method that is observed"
NOT_SEEN: Final = "the trainer scored it in its own way"
RETURNED: Final = "the token ids that the trainer trains on"
NO_ADVANTAGE: Final = "the trainer did not compute it in a method that is observed"


@dataclass(frozen=True, slots=True)
class GeneratedRows:
    """The arguments and the result of one call of the trainer's `_generate`."""

    prompts: Sequence[Any]
    completions: Sequence[Any] | None
    ids: Sequence[Sequence[int]]

    @classmethod
    def of(cls, prompts: Any, out: Any) -> GeneratedRows | None:
        """Read the result of `_generate`; return None if its second value is not lists of token ids.

        Completions as messages or text, where TRL returns them, come after the ids.
        """
        if not isinstance(out, tuple) or len(out) < 2 or not _are_rows(out[1], int):
            return None
        ids = out[1]
        if not isinstance(prompts, (list, tuple)) or len(prompts) != len(ids) or _are_rows(prompts, int):
            prompts = [None] * len(ids)
        messages = (
            rows for rows in out[2:] if isinstance(rows, list) and len(rows) == len(ids) and _are_messages(rows)
        )
        return cls(prompts, next(messages, None), ids)


class Sampled(Generation):
    """A generation whose sampling is observed separately from its scoring."""

    def __init__(self, trainer: Any, options: Mapping[str, Any], *, training: bool | None = None) -> None:
        super().__init__(trainer, options, training=training)
        self.generated_rows: GeneratedRows | None = None
        self.generated_count = 0
        """The number of generated rollouts, in whatever form they were returned."""
        self.turns: list[Sequence[Any]] = []
        """The prompts of each turn, where the trainer's class overrides `_generate`."""
        self.scored_ids: Sequence[Any] = ()
        self.logged: Sequence[Any] | None = None
        """The advantages in the trainer's log before this generation."""
        self.returned: Any = None
        """The result of the trainer's scoring method, where neither generation nor scoring was observed."""
        self.is_one_of_several = False
        self.earlier: list[Sampled] = []
        """Earlier generations in the same call of the trainer's method."""
        self.claimed: Sequence[tuple[Sampled, int]] = ()
        """The earlier generation of each row and the row's index there, if it was generated ahead."""
        self.is_played = getattr(trainer, "rollout_func", None) is not None
        """Whether the user's `rollout_func` generates the rollouts."""
        self.fields: Mapping[str, Any] = {}
        """Additional fields that `rollout_func` returned; the trainer merges them into the dataset's rows."""
        self.before: list[dict[str, Any]] = []
        """Copies of the rows from before the trainer merged those fields."""

    def keep_columns(self) -> None:
        if self.is_played:
            self.before = [dict(row) for row in self.rows]

    def see_fields(self, out: Any) -> None:
        """Store the fields of `rollout_func`: the only dictionary among the values that `_generate` returns."""
        if self.is_played and isinstance(out, tuple):
            self.fields = next((value for value in out if isinstance(value, dict)), {})

    def claim_fields(self, claims: Sequence[tuple[Sampled, int]]) -> None:
        """Take the fields of `rollout_func`, and the rows before them, from the generations that were claimed."""
        first = claims[0][0]
        if claims == [(first, i) for i in range(first.count)]:
            self.fields, self.before = first.fields, first.before
            return
        names = dict.fromkeys(name for generation, _ in claims for name in generation.fields)
        self.fields = {name: [_at(generation.fields.get(name), i) for generation, i in claims] for name in names}
        self.before = [_at(generation.before, i) or {} for generation, i in claims]

    def snapshot(self, rows: Any, prompts: Any, completions: Any, ids: Any = None) -> None:
        """Take the snapshot, with the fields of `rollout_func` separate from the dataset's columns."""
        if self.fields:
            before = self.before if len(self.before) == len(rows) else [{}] * len(rows)
            rows = [self._without_fields(row, old) for row, old in zip(rows, before, strict=True)]
        super().snapshot(rows, prompts, completions, ids)
        copier = Snapshot()
        for name, value in self.fields.items():
            self.extra[str(name)] = copier.copy(value if isinstance(value, list) else [value] * self.count)
        self.bytes += copier.bytes

    def _without_fields(self, row: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in row.items() if name not in self.fields}
        return own | {name: value for name, value in before.items() if name in self.fields}

    def answer(self, ids: Sequence[Sequence[int]]) -> None:
        """Store the answers, and their token ids where a `rollout_func` needs them to separate turns."""
        super().answer(ids)
        if self.is_played:
            self.ids = [array("q", row) for row in ids]

    def take_returned(self, decoder: Decoder) -> bool:
        """Build rollouts from the trainer's result; return whether it holds completions."""
        out = self.returned if isinstance(self.returned, Mapping) else {}
        if out.get("completion_ids") is None or out.get("completion_mask") is None:
            return False
        ids = unpadded(out["completion_ids"], out["completion_mask"])
        rows = self.rows if len(self.rows) == len(ids) else ()
        if out.get("prompt_ids") is not None and out.get("prompt_mask") is not None:
            self.prompt_ids = unpadded(out["prompt_ids"], out["prompt_mask"])
        elif not rows:
            return False
        self.decoder = decoder
        self.snapshot(rows, [row.get("prompt") for row in rows] or [None] * len(ids), None, ids)
        advantages = out.get("advantages")
        if advantages is not None and tuple(advantages.shape) == (len(ids),):
            self.advantages = advantages.tolist()
            self.unknown.pop("advantage", None)
        self.unknown |= {"rewards": NOT_SEEN, "source": RETURNED}
        return True

    def split_off(self) -> Sampled:
        """Return what was observed so far as a separate generation, and reset this one for the next."""
        earlier = copy.copy(self)
        earlier.earlier = []
        self.is_one_of_several = True
        self.count = self.bytes = 0
        self.generated_rows = self.prompt_ids = self.tool_mask = self.tool_loop_completions = None
        self.seconds = 0.0
        self.watches, self.later, self.marks, self.extra, self.unknown = [], [], [], {}, {}
        self.tensors = {}
        self.scored_ids, self.claimed, self.rewards = (), (), Rewards(self.trainer)
        return earlier

    def forget_trainers_lists(self) -> None:
        """Drop references to the trainer's lists, so that the worker's queue does not keep them in memory."""
        self.generated_rows, self.logged, self.scored_ids, self.claimed = None, None, (), ()
        self.fields, self.before = {}, []
        self.returned = None


def _at(values: Any, i: int) -> Any:
    """Return the value at index `i`; a value that is not a list applies to every row."""
    if not isinstance(values, list):
        return values
    return values[i] if i < len(values) else None


def _are_rows(value: Any, kind: type) -> bool:
    """Return whether `value` is a list of lists whose first items are of `kind`; an empty list fits any kind."""
    if not isinstance(value, list) or not all(map(isinstance, value, repeat(list))):
        return False
    return all(map(isinstance, map(itemgetter(0), filter(None, value)), repeat(kind)))


def _are_messages(rows: list[Any]) -> bool:
    return all(isinstance(row, str) for row in rows) or (_are_rows(rows, dict) and all(rows))


class _Waiting:
    def __init__(self, generation: Sampled, ids: Sequence[Sequence[int]]) -> None:
        self.generation = generation
        self.pid = os.getpid()
        self.rows: dict[tuple[int, ...], list[int]] = {}
        for i in reversed(range(len(ids))):
            self.rows.setdefault(tuple(ids[i]), []).append(i)

    @property
    def left(self) -> list[int]:
        return sorted(i for rows in self.rows.values() for i in rows)

    def take(self, ids: tuple[int, ...]) -> int | None:
        rows = self.rows.get(ids)
        return rows.pop() if rows else None


class Unscored:
    """Generations that wait to be scored. Those that are never claimed are submitted unscored, oldest first."""

    def __init__(self, submit: Callable[[Sampled], None], changed: Callable[[int], None]) -> None:
        """Call `changed` with the number of waiting rollouts whenever it changes."""
        self._submit = submit
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._once = Once()
        self.max_waiting = _MAX_WAITING
        self._unknown = 0

    @property
    def count(self) -> int:
        with self._lock:
            return sum(len(waiting.left) for waiting in self._waiting) + self._unknown

    def _report(self) -> None:
        self._changed(self.count)

    def wait(self, generation: Sampled, ids: Sequence[Sequence[int]]) -> None:
        with self._lock:
            self._waiting.append(_Waiting(generation, ids))
            late = self._waiting[: -self.max_waiting]
            del self._waiting[: -self.max_waiting]
        self._give_up(late)
        self._report()

    def wait_unknown(self, count: int) -> None:
        """Change the count of waiting rollouts in an unknown form, which cannot be recognised when they are scored."""
        before, self._unknown = self._unknown, max(0, self._unknown + count)
        if self._unknown != before:
            self._report()

    def claim(self, ids: Sequence[Sequence[int]]) -> list[tuple[Sampled, int] | None]:
        """Return each row's waiting generation and its index there; None for rows that do not wait."""
        with self._lock:
            claims = [self._claim(tuple(row)) if self._waiting else None for row in ids]
            self._waiting = [waiting for waiting in self._waiting if waiting.left]
        if any(claims):
            self._report()
        return claims

    def _claim(self, ids: tuple[int, ...]) -> tuple[Sampled, int] | None:
        for waiting in self._waiting:
            if (i := waiting.take(ids)) is not None:
                return waiting.generation, i
        return None

    def end(self) -> int:
        """Submit every waiting generation at the end of training; return how many rollouts had an unknown form."""
        with self._lock:
            late, self._waiting = self._waiting, []
            unknown, self._unknown = self._unknown, 0
        self._give_up(late)
        self._report()
        return unknown

    def _give_up(self, late: Sequence[_Waiting]) -> None:
        late = [waiting for waiting in late if waiting.pid == os.getpid()]  # after a fork, the parent submits its own
        for waiting in late:
            waiting.generation.keep_rows(waiting.left)
            self._submit(waiting.generation)
        if any(waiting.generation.unknown.get("rewards") == NEVER_SCORED for waiting in late):
            self._once.warn(
                "the trainer generates rollouts that it does not score in a method that is observed; they are stored "
                "without rewards, and marked"
            )
