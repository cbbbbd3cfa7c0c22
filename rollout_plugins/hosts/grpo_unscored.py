"""What a trainer generated and has not scored yet: it waits for the batch that scores it, on whatever thread.

Most trainers score at once what they generate. Some generate ahead, on a thread of their own, or throw away what
they don't like before it is scored. Rows are recognised by their token ids.
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

from rollout_plugins.content.once import Once
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.kit.decoding import Decoder, unpadded
from rollout_plugins.hosts.kit.generation import Generation
from rollout_plugins.hosts.kit.rewards import Rewards

_MOST: Final = 8
NEVER_SCORED: Final = "the trainer did not score it where that can be seen"
NOT_SEEN: Final = "the trainer scored it in a way of its own"
RETURNED: Final = "the token ids that the trainer trains on"
NO_ADVANTAGE: Final = "the trainer did not compute it where that can be seen"


@dataclass(frozen=True, slots=True)
class Made:
    """What one call of the trainer's `_generate` was given and returned."""

    prompts: Sequence[Any]
    completions: Sequence[Any] | None
    ids: Sequence[Sequence[int]]

    @classmethod
    def of(cls, prompts: Any, out: Any) -> Made | None:
        """None if completions are not there as lists of token ids. As messages or text they stand further on."""
        if not isinstance(out, tuple) or len(out) < 2 or not _are_rows(out[1], int):
            return None
        ids = out[1]
        if not isinstance(prompts, (list, tuple)) or len(prompts) != len(ids) or _are_rows(prompts, int):
            prompts = [None] * len(ids)
        spoken = (one for one in out[2:] if isinstance(one, list) and len(one) == len(ids) and _is_spoken(one))
        return cls(prompts, next(spoken, None), ids)


class Sampled(Generation):
    """A generation whose sampling is seen apart from its scoring."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, options)
        self.made: Made | None = None
        self.generated = 0
        """How many rollouts were generated, in whatever form."""
        self.turns: list[Sequence[Any]] = []
        """What the model was asked in each turn, where the trainer's class has a way of its own to generate."""
        self.scored_ids: Sequence[Any] = ()
        self.logged: Sequence[Any] | None = None
        """What was in the trainer's log before."""
        self.returned: Any = None
        """What the whole method gave back, where nothing else was seen."""
        self.is_one_of_several = False
        self.earlier: list[Sampled] = []
        """What was generated and scored before it, in the same call of the trainer's method."""
        self.claimed: Sequence[tuple[Sampled, int]] = ()
        """For each row, the generation it was made in and its place there, if it was made before it was scored."""
        self.is_played = getattr(trainer, "rollout_func", None) is not None
        """Whether the user's own function makes the rollouts."""
        self.fields: Mapping[str, Any] = {}
        """What that function gave besides: the trainer puts it into the dataset's rows."""
        self.before: list[dict[str, Any]] = []
        """The rows as they were until then."""

    def keep_columns(self) -> None:
        if self.is_played:
            self.before = [dict(row) for row in self.rows]

    def see_fields(self, out: Any) -> None:
        """Fields are the one dictionary among what `_generate` returns."""
        if self.is_played and isinstance(out, tuple):
            self.fields = next((one for one in out if isinstance(one, dict)), {})

    def claim_fields(self, found: Sequence[tuple[Sampled, int]]) -> None:
        """What the function gave when it was generated, and the rows as they were then."""
        first = found[0][0]
        if [(one, i) for one, i in found] == [(first, i) for i in range(first.count)]:
            self.fields, self.before = first.fields, first.before
            return
        names = dict.fromkeys(name for one, _ in found for name in one.fields)
        self.fields = {name: [_at(one.fields.get(name), i) for one, i in found] for name in names}
        self.before = [_at(one.before, i) or {} for one, i in found]

    def snapshot(self, rows: Any, prompts: Any, completions: Any, ids: Any = None) -> None:
        """The function's fields are kept apart from the columns of the dataset."""
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
        """Turns are told apart by their ids."""
        super().answer(ids)
        if self.is_played:
            self.ids = [array("q", row) for row in ids]

    def take_returned(self, decoder: Decoder) -> bool:
        """Make rollouts of what the trainer goes on with; whether there is anything."""
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
        """What was seen so far, as a generation of its own: the trainer goes on with another one."""
        earlier = copy.copy(self)
        earlier.earlier = []
        self.is_one_of_several = True
        self.count = self.bytes = 0
        self.made, self.seconds, self.prompt_ids, self.tool_mask, self.said = None, 0.0, None, None, None
        self.watches, self.later, self.marks, self.extra, self.unknown = [], [], [], {}, {}
        self.tensors = {}
        self.scored_ids, self.claimed, self.rewards = (), (), Rewards(self.trainer)
        return earlier

    def forget_trainers_lists(self) -> None:
        """They need not wait for the worker thread."""
        self.made, self.logged, self.scored_ids, self.claimed = None, None, (), ()
        self.fields, self.before = {}, []
        self.returned = None


def _at(values: Any, i: int) -> Any:
    """One of these values; what is not a list is the same for all."""
    if not isinstance(values, list):
        return values
    return values[i] if i < len(values) else None


def _are_rows(value: Any, kind: type) -> bool:
    """Whether these are lists of that; an empty list may be one of anything."""
    if not isinstance(value, list) or not all(map(isinstance, value, repeat(list))):
        return False
    return all(map(isinstance, map(itemgetter(0), filter(None, value)), repeat(kind)))


def _is_spoken(rows: list[Any]) -> bool:
    return all(isinstance(row, str) for row in rows) or (_are_rows(rows, dict) and all(rows))


class _Waiting:
    def __init__(self, now: Sampled, ids: Sequence[Sequence[int]]) -> None:
        self.now = now
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
    """Generations that wait; those that are never claimed are handed over as they are, oldest first."""

    def __init__(self, hand_over: Callable[[Sampled], None], changed: Callable[[int], None]) -> None:
        """`changed` hears how many rollouts wait."""
        self._hand_over = hand_over
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._once = Once()
        self.most = _MOST
        self._unknown = 0

    @property
    def count(self) -> int:
        with self._lock:
            return sum(len(one.left) for one in self._waiting) + self._unknown

    def _tell(self) -> None:
        self._changed(self.count)

    def wait(self, now: Sampled, ids: Sequence[Sequence[int]]) -> None:
        with self._lock:
            self._waiting.append(_Waiting(now, ids))
            late = self._waiting[: -self.most]
            del self._waiting[: -self.most]
        self._give_up(late)
        self._tell()

    def wait_unknown(self, count: int) -> None:
        """Rollouts that were generated in a form that is not known: they can be scored, but not be recognised."""
        before, self._unknown = self._unknown, max(0, self._unknown + count)
        if self._unknown != before:
            self._tell()

    def claim(self, ids: Sequence[Sequence[int]]) -> list[tuple[Sampled, int] | None]:
        """For each row, the generation it was made in and its place there, if it waits here."""
        with self._lock:
            found = [self._claim(tuple(row)) if self._waiting else None for row in ids]
            self._waiting = [one for one in self._waiting if one.left]
        if any(found):
            self._tell()
        return found

    def _claim(self, ids: tuple[int, ...]) -> tuple[Sampled, int] | None:
        for one in self._waiting:
            if (i := one.take(ids)) is not None:
                return one.now, i
        return None

    def end(self) -> int:
        """Nothing will be scored any more. How many there were whose form is not known."""
        with self._lock:
            late, self._waiting = self._waiting, []
            unknown, self._unknown = self._unknown, 0
        self._give_up(late)
        self._tell()
        return unknown

    def _give_up(self, late: Sequence[_Waiting]) -> None:
        late = [one for one in late if one.pid == os.getpid()]  # what a parent waits for is the parent's
        for one in late:
            one.now.keep_rows(one.left)
            self._hand_over(one.now)
        if any(one.now.unknown.get("rewards") == NEVER_SCORED for one in late):
            self._once.warn(
                "the trainer generates rollouts that it does not score where that can be seen; they are stored "
                "without rewards, and marked"
            )
