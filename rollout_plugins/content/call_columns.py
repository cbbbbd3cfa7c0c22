"""The tool calls of many conversations as columns, with what became of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from itertools import chain, pairwise, repeat
from operator import sub
from typing import Any, Final, overload

from rollout_hookspecs import ToolCall

from rollout_plugins.content.message_columns import Talk
from rollout_plugins.content.tool_calls import ANSWERING, Ran, fate, tool_calls

_FIELDS: Final = tuple(field.name for field in fields(ToolCall))


class Outcomes(Sequence[tuple[ToolCall, ...]]):
    """`outcomes[i]` makes the calls of one rollout; `columns` has each field of a call, for all of them in order."""

    def __init__(self, rollouts: Iterable[Sequence[ToolCall]] = ()) -> None:
        self.starts = [0]
        self.columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
        self.is_as_said = False
        """Whether names and arguments are those in the messages, and results the texts of the replies."""
        for calls in rollouts:
            self.add(calls)

    def add(self, calls: Sequence[ToolCall]) -> None:
        """The calls of the next rollout."""
        self.starts.append(self.starts[-1])
        self.put(len(self) - 1, calls)

    def put(self, index: int, calls: Sequence[ToolCall]) -> None:
        """Other calls for one of the rollouts."""
        here = slice(*self.starts[index : index + 2])
        for name, column in self.columns.items():
            column[here] = [getattr(call, name) for call in calls]
        more = len(calls) - (here.stop - here.start)
        if more:
            self.starts[index + 1 :] = [start + more for start in self.starts[index + 1 :]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[ToolCall, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[ToolCall, ...]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        here = range(self.starts[index], self.starts[index + 1])
        return tuple(ToolCall(**{name: column[at] for name, column in self.columns.items()}) for at in here)

    def place_of(self, call: int) -> int:
        """The rollout that a call is of."""
        return bisect_right(self.starts, call) - 1

    def take(self, order: Sequence[int]) -> Outcomes:
        """The calls of some of the rollouts."""
        return Outcomes(self[i] for i in order)

    def of(self, index: int, name: str) -> list[Any]:
        """One field of the calls of one rollout."""
        return self.columns[name][self.starts[index] : self.starts[index + 1]]


Read = Callable[[int], Sequence[ToolCall]]
Watched = tuple[list[str | None], list[float | None]]
"""The errors of calls, and the seconds they took; None for those that did not run."""


class Reader:
    """Finds out what became of the calls in completions; those that are out of the ordinary by `read`, one by one."""

    def __init__(self, talk: Talk, *, known: Sequence[Collection[str]] = (), read: Read | None = None) -> None:
        """`known` are the names of each rollout's tools, where they are known."""
        self._talk = talk
        self._known = known or [()] * len(talk)
        self._read = read or (lambda i: tool_calls(talk[i], known=self._known[i]))
        self._roles, self._texts, self._answers = map(talk.column, ("role", "content", "tool_call_id"))

    def outcomes(self, ran: Callable[[int, slice], Watched | None] | None = None) -> Outcomes:
        """`ran(i, calls)` gives what was watched of a rollout's calls, and None where that is not plain to see."""
        talk, out, odd = self._talk, Outcomes(), self._talk.odd_ones()
        out.starts = [talk.call_starts[bisect_left(talk.asking, start)] for start in talk.starts]
        replies = self._replies(odd)
        errors, seconds = self._watched(ran, out.starts, odd)
        begins, rollouts = (_for_each(out.starts, values) for values in (talk.starts, range(len(talk))))
        results = [None if at is None else self._texts[at] for at in replies]
        turns = _for_each(talk.call_starts, talk.asking)
        out.columns = {
            "turn": list(map(sub, turns, begins)),
            "position": [at for a, b in pairwise(talk.call_starts) for at in range(b - a)],
            "reply": [None if at is None else at - begin for at, begin in zip(replies, begins, strict=True)],
            "name": list(talk.call_names),
            "arguments": list(talk.arguments),
            "result": results,
            "status": ["ok"] * len(replies),
            "error": [None] * len(replies),
            "seconds": seconds,
        }
        told = zip(talk.call_names, results, replies, errors, seconds, rollouts, strict=True)
        for at, (name, result, reply, error, took, i) in enumerate(told):
            if reply is None or took is None or error is not None:
                seen = None if took is None else Ran(error, took)
                known = fate(name, result, reply, seen, known=self._known[i], is_watched=ran is not None)
                out.columns["status"][at], out.columns["error"][at] = known
        out.is_as_said = not odd
        for i in odd:
            out.put(i, self._read(i))
        return out

    def _watched(self, ran: Any, starts: Sequence[int], odd: set[int]) -> Watched:
        """Errors and seconds of all calls; a rollout where these are not plain to see becomes an odd one."""
        errors: list[str | None] = [None] * starts[-1]
        seconds: list[float | None] = [None] * starts[-1]
        for i, (first, last) in enumerate(pairwise(starts)) if ran is not None else ():
            if first < last and i not in odd:
                seen = ran(i, slice(first, last))
                if seen is None:
                    odd.add(i)
                else:
                    errors[first:last], seconds[first:last] = seen
        return errors, seconds

    def _replies(self, odd: set[int]) -> list[int | None]:
        """The place of each call's answer; a rollout where it takes a closer look to find them becomes an odd one."""
        talk, i = self._talk, 0
        answering = list(map(ANSWERING.__contains__, self._roles))
        replies: list[int | None] = []
        for at, first, last in zip(talk.asking, talk.call_starts, talk.call_starts[1:], strict=False):
            while talk.starts[i + 1] <= at:
                i += 1
            after = stop = at + 1
            while stop < talk.starts[i + 1] and answering[stop]:
                stop += 1
            if stop - after == last - first and self._are_in_order(first, last, after):
                replies += range(after, stop)
                continue
            replies += [None] * (last - first)
            if stop != after or (stop < talk.starts[i + 1] and set(talk.call_ids[first:last]) != {None}):
                odd.add(i)
        return replies

    def _are_in_order(self, first: int, last: int, after: int) -> bool:
        """Whether each of the answers, which are texts, is that of the call at its place."""
        if last - first == 1:
            asked, answered = self._talk.call_ids[first], self._answers[after]
            return self._texts[after] is not None and (asked is None or not answered or asked == answered)
        calls, answers = slice(first, last), slice(after, after + last - first)
        if None in self._texts[answers]:
            return False
        ids, answered = self._talk.call_ids[calls], self._answers[answers]
        if ids == answered and None not in ids:
            return True
        names = self._talk.column("name")[answers]
        return set(ids) == {None} and not any(answered) and names == self._talk.call_names[calls]


def _for_each(starts: Sequence[int], values: Iterable[Any]) -> list[Any]:
    """The value of each range between two of these starts, as many times as it is long."""
    return list(chain.from_iterable(map(repeat, values, map(sub, starts[1:], starts))))
