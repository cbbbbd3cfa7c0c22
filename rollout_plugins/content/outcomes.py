"""The tool calls of many conversations as columns, with what became of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any, Final, overload

from rollout_hookspecs import ToolCall

from rollout_plugins.content.talk import Talk
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
        for name, column in self.columns.items():
            column += [getattr(call, name) for call in calls]
        self.starts.append(self.starts[-1] + len(calls))

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


class Reader:
    """Finds out what became of the calls in completions; those that are out of the ordinary by `read`, one by one."""

    def __init__(self, talk: Talk, *, known: Sequence[Collection[str]] = (), read: Read | None = None) -> None:
        """`known` are the names of each rollout's tools, where they are known."""
        self._talk = talk
        self._known = known or [()] * len(talk)
        self._read = read or (lambda i: tool_calls(talk[i], known=self._known[i]))
        self._odd = talk.odd_ones()
        self._roles, self._texts, self._answers = map(talk.column, ("role", "content", "tool_call_id"))

    def outcomes(self, ran: Callable[[int, slice], Sequence[Ran | None] | None] | None = None) -> Outcomes:
        """`ran(i, calls)` gives what was watched of a rollout's calls, and None where that is not plain to see."""
        out, asking = Outcomes(), 0
        out.is_as_said = True
        for i in range(len(self._talk)):
            first = asking
            while asking < len(self._talk.asking) and self._talk.asking[asking] < self._talk.starts[i + 1]:
                asking += 1
            if i in self._odd or (first < asking and not self._add(out, i, first, asking, ran)):
                out.add(self._read(i))
                out.is_as_said = False
            elif first == asking:
                out.starts.append(out.starts[-1])
        return out

    def _add(self, out: Outcomes, i: int, first: int, last: int, ran: Any) -> bool:
        """The calls of one rollout, if each turn's answers follow it in its order; whether they do."""
        talk, begin = self._talk, self._talk.starts[i]
        replies = self._replies(i, first, last)
        if replies is None:
            return False
        calls = slice(talk.call_starts[first], talk.call_starts[last])
        seen: Sequence[Ran | None] | None = [None] * len(replies) if ran is None else ran(i, calls)
        if seen is None:
            return False
        results = [None if reply is None else self._texts[begin + reply] for reply in replies]
        names, columns = talk.call_names[calls], out.columns
        told = self._told(i, names, results, replies, seen, is_watched=ran is not None)
        for asking in range(first, last):
            count = talk.call_starts[asking + 1] - talk.call_starts[asking]
            columns["turn"] += [talk.asking[asking] - begin] * count
            columns["position"] += range(count)
        columns["reply"] += replies
        columns["name"] += names
        columns["arguments"] += talk.arguments[calls]
        columns["result"] += results
        columns["status"] += [status for status, _ in told]
        columns["error"] += [error for _, error in told]
        columns["seconds"] += [None if one is None else one.seconds for one in seen]
        out.starts.append(len(columns["name"]))
        return True

    def _told(self, i: int, *calls: Sequence[Any], is_watched: bool) -> list[tuple[Any, str | None]]:
        """Status and error of each call of a rollout, from its name, result, reply and how it ran."""
        _, _, replies, seen = calls
        if None not in replies and all(one is not None and one.error is None for one in seen):
            return [("ok", None)] * len(seen)
        return [fate(*each, known=self._known[i], is_watched=is_watched) for each in zip(*calls, strict=True)]

    def _replies(self, i: int, first: int, last: int) -> list[int | None] | None:
        """The index of each call's answer; None where it takes a closer look to find them."""
        talk, begin, end = self._talk, self._talk.starts[i], self._talk.starts[i + 1]
        replies: list[int | None] = []
        for asking in range(first, last):
            after = stop = talk.asking[asking] + 1
            while stop < end and self._roles[stop] in ANSWERING:
                stop += 1
            calls = slice(talk.call_starts[asking], talk.call_starts[asking + 1])
            count = calls.stop - calls.start
            if stop == after and (stop == end or set(talk.call_ids[calls]) == {None}):
                replies += [None] * count
            elif stop - after == count and self._are_in_order(calls, slice(after, stop)):
                replies += range(after - begin, stop - begin)
            else:
                return None
        return replies

    def _are_in_order(self, calls: slice, answers: slice) -> bool:
        """Whether each of the answers, which are texts, is that of the call at its place."""
        if None in self._texts[answers]:
            return False
        asked, answered = self._talk.call_ids[calls], self._answers[answers]
        if asked == answered and None not in asked:
            return True
        if len(asked) == 1:
            return not answered[0] or asked[0] is None
        names = self._talk.column("name")[answers]
        return set(asked) == {None} and not any(answered) and names == self._talk.call_names[calls]
