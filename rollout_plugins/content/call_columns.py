"""Store the tool calls of many conversations as columns, and read their outcomes from the messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from itertools import chain, pairwise, repeat
from operator import sub
from typing import Any, Final, overload

from rollout_hookspecs import ToolCall

from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.tool_calls import ANSWERING, ObservedCall, call_outcome, read_tool_calls

_FIELDS: Final = tuple(field.name for field in fields(ToolCall))


class CallColumns(Sequence[tuple[ToolCall, ...]]):
    """The tool calls of many rollouts, field by field.

    `calls[i]` creates the calls of rollout i; `calls.columns` has each field of all calls.
    """

    def __init__(self, rollouts: Iterable[Sequence[ToolCall]] = ()) -> None:
        self.starts = [0]
        self.columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
        self.matches_messages = False
        """Whether all names, arguments and results are those in the messages, so that they need not be stored
        again."""
        for calls in rollouts:
            self.add(calls)

    def add(self, calls: Sequence[ToolCall]) -> None:
        """Append the calls of the next rollout."""
        self.starts.append(self.starts[-1])
        self.replace_calls(len(self) - 1, calls)

    def replace_calls(self, index: int, calls: Sequence[ToolCall]) -> None:
        """Replace the calls of rollout `index`."""
        span = slice(*self.starts[index : index + 2])
        for name, column in self.columns.items():
            column[span] = [getattr(call, name) for call in calls]
        growth = len(calls) - (span.stop - span.start)
        if growth:
            self.starts[index + 1 :] = [start + growth for start in self.starts[index + 1 :]]

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
        positions = range(self.starts[index], self.starts[index + 1])
        return tuple(
            ToolCall(**{name: column[position] for name, column in self.columns.items()}) for position in positions
        )

    def rollout_of(self, position: int) -> int:
        """Return the index of the rollout that has the call at `position`."""
        return bisect_right(self.starts, position) - 1

    def take(self, order: Sequence[int]) -> CallColumns:
        """Return the calls of the rollouts with the indices `order`."""
        return CallColumns(self[i] for i in order)

    def values_of(self, index: int, name: str) -> list[Any]:
        """Return the field `name` of each call of rollout `index`."""
        return self.columns[name][self.starts[index] : self.starts[index + 1]]


ReadCalls = Callable[[int], Sequence[ToolCall]]
ObservedCalls = tuple[list[str | None], list[float | None]]
"""The error of each call and its duration in seconds; the duration is None if the call did not run."""


class CallReader:
    """Reads the outcome of each call in many completions.

    Where the messages do not show plainly which message answers which call, it reads the completion with `read`.
    """

    def __init__(
        self,
        conversations: MessageColumns,
        *,
        tool_names: Sequence[Collection[str]] = (),
        read: ReadCalls | None = None,
    ) -> None:
        """Initialize the reader. `tool_names` has the names of each rollout's tools if they are known."""
        self._conversations = conversations
        self._tool_names = tool_names or [()] * len(conversations)
        self._read = read or (lambda i: read_tool_calls(conversations[i], tool_names=self._tool_names[i]))
        self._roles, self._texts, self._answers = map(conversations.column, ("role", "content", "tool_call_id"))

    def read(self, observe: Callable[[int, slice], ObservedCalls | None] | None = None) -> CallColumns:
        """Return the calls with their outcomes.

        `observe(i, positions)` returns what was observed of a rollout's calls, or None if it is ambiguous.
        """
        conversations, out, irregular = (
            self._conversations,
            CallColumns(),
            self._conversations.irregular_conversations(),
        )
        out.starts = [
            conversations.call_starts[bisect_left(conversations.calling, start)] for start in conversations.starts
        ]
        replies = self._replies(irregular)
        errors, seconds = self._watched(observe, out.starts, irregular)
        begins, rollouts = (
            _for_each(out.starts, values) for values in (conversations.starts, range(len(conversations)))
        )
        results = [None if position is None else self._texts[position] for position in replies]
        turns = _for_each(conversations.call_starts, conversations.calling)
        out.columns = {
            "turn": list(map(sub, turns, begins)),
            "position": [position for a, b in pairwise(conversations.call_starts) for position in range(b - a)],
            "reply": [
                None if position is None else position - begin for position, begin in zip(replies, begins, strict=True)
            ],
            "name": list(conversations.call_names),
            "arguments": list(conversations.arguments),
            "result": results,
            "status": ["ok"] * len(replies),
            "error": [None] * len(replies),
            "seconds": seconds,
        }
        rows = zip(conversations.call_names, results, replies, errors, seconds, rollouts, strict=True)
        for position, (name, result, reply_at, call_error, duration, i) in enumerate(rows):
            if reply_at is None or duration is None or call_error is not None:
                execution = None if duration is None else ObservedCall(call_error, duration)
                outcome = call_outcome(
                    name, result, reply_at, execution, tool_names=self._tool_names[i], is_watched=observe is not None
                )
                out.columns["status"][position], out.columns["error"][position] = outcome
        out.matches_messages = not irregular
        for i in irregular:
            out.replace_calls(i, self._read(i))
        return out

    def _watched(self, observe: Any, starts: Sequence[int], irregular: set[int]) -> ObservedCalls:
        """Return errors and durations of all calls. A rollout for which they are ambiguous is added to `irregular`."""
        errors: list[str | None] = [None] * starts[-1]
        seconds: list[float | None] = [None] * starts[-1]
        for i, (first, last) in enumerate(pairwise(starts)) if observe is not None else ():
            if first < last and i not in irregular:
                observed = observe(i, slice(first, last))
                if observed is None:
                    irregular.add(i)
                else:
                    errors[first:last], seconds[first:last] = observed
        return errors, seconds

    def _replies(self, irregular: set[int]) -> list[int | None]:
        """Return the position of each call's reply. A rollout for which they are ambiguous is added to `irregular`."""
        conversations, i = self._conversations, 0
        answering = list(map(ANSWERING.__contains__, self._roles))
        replies: list[int | None] = []
        for at, first, last in zip(
            conversations.calling, conversations.call_starts, conversations.call_starts[1:], strict=False
        ):
            while conversations.starts[i + 1] <= at:
                i += 1
            first_reply = end = at + 1
            while end < conversations.starts[i + 1] and answering[end]:
                end += 1
            if end - first_reply == last - first and self._are_in_order(first, last, first_reply):
                replies += range(first_reply, end)
                continue
            replies += [None] * (last - first)
            if end != first_reply or (
                end < conversations.starts[i + 1] and set(conversations.call_ids[first:last]) != {None}
            ):
                irregular.add(i)
        return replies

    def _are_in_order(self, first: int, last: int, first_reply: int) -> bool:
        """Return whether the texts from message `first_reply` on answer the calls from `first` to `last` in order."""
        if last - first == 1:
            call_id, answered = self._conversations.call_ids[first], self._answers[first_reply]
            return self._texts[first_reply] is not None and (call_id is None or not answered or call_id == answered)
        calls, answers = slice(first, last), slice(first_reply, first_reply + last - first)
        if None in self._texts[answers]:
            return False
        ids, answered = self._conversations.call_ids[calls], self._answers[answers]
        if ids == answered and None not in ids:
            return True
        names = self._conversations.column("name")[answers]
        return set(ids) == {None} and not any(answered) and names == self._conversations.call_names[calls]


def _for_each(starts: Sequence[int], values: Iterable[Any]) -> list[Any]:
    """Return each value once for each call between its start and the next one."""
    return list(chain.from_iterable(map(repeat, values, map(sub, starts[1:], starts))))
