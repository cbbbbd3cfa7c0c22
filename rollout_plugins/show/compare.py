"""Find where conversations diverge, and what changed between two texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from typing import Literal

from rollout_plugins.show.conversation import Conversation, Turn

Kind = Literal["same", "added", "removed"]
Change = tuple[Kind, str]
# The most words or lines to compare, because the cost grows with their square.
_MAX_PIECES = 2000
_WORD = re.compile(r"\s*\S+|\s+\Z")
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


def count_shared_turns(conversations: Sequence[Conversation]) -> int:
    """Return how many turns all conversations share at the start, up to the last one that the model did not write."""
    turns = [conversation.turns for conversation in conversations]
    same = [row[0] for row in takewhile(_same, zip(*turns, strict=False))]
    while same and same[-1].role in {"assistant", "tool"}:
        same.pop()
    return len(same)


def group_equal(conversations: Sequence[Conversation]) -> list[list[int]]:
    """Group the indices of conversations with equal turns and rewards, in order of first occurrence."""
    groups: list[list[int]] = []
    for index, conversation in enumerate(conversations):
        for group in groups:
            first = conversations[group[0]]
            if first.reward == conversation.reward and first_difference(first, conversation) is None:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def format_times(count: int) -> str:
    """Return the count as ×4; "" for one."""
    return f"×{count}" if count > 1 else ""


def describe_variety(different: int, total: int) -> str:
    """Describe how many of `total` differ; "" if all do."""
    return "" if different == total else "all the same" if different == 1 else f"{different} different"


def first_difference(one: Conversation, other: Conversation) -> int | None:
    """Return the index of the first turn in which two conversations differ; None if they are equal."""
    for index, turns in enumerate(zip_longest(one.turns, other.turns)):
        if not _same(turns):
            return index
    return None


def _same(turns: tuple[Turn | None, ...]) -> bool:
    try:
        first, *others = map(_without_durations, turns)
        return all(bool(turn == first) for turn in others)
    except Exception:  # arrays and similar values have no single truth value
        return False


def _without_durations(turn: Turn | None) -> Turn | None:
    """Return the turn without the durations of its calls, which differ even if the calls are equal."""
    if turn is None or not turn.calls:
        return turn
    return replace(turn, calls=tuple(replace(call, seconds=None) for call in turn.calls))


def text_changes(before: str, after: str) -> list[Change]:
    """Return what is the same, added and removed: by words, by lines if there are too many words, or as a whole."""
    for pattern in (_WORD, _LINE):
        old, new = pattern.findall(before), pattern.findall(after)
        head = _count_equal_start(old, new)
        tail = _count_equal_start(old[head:][::-1], new[head:][::-1])
        middle = old[head : len(old) - tail], new[head : len(new) - tail]
        if max(map(len, middle)) <= _MAX_PIECES:
            return _join_changes([("same", old[:head]), *_changes(*middle), ("same", old[len(old) - tail :])])
    return _join_changes([("removed", [before]), ("added", [after])])


def _count_equal_start(old: Sequence[str], new: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Kind, list[str]]]:
    for tag, start, end, start2, end2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield "same", list(old[start:end])
        else:
            yield "removed", list(old[start:end])
            yield "added", list(new[start2:end2])


def _join_changes(changes: Sequence[tuple[Kind, Sequence[str]]]) -> list[Change]:
    """Return the changes as texts, without empty ones, and with neighbours of one kind joined."""
    joined_changes: list[Change] = []
    for kind, pieces in changes:
        text = "".join(pieces)
        if joined_changes and joined_changes[-1][0] == kind:
            joined_changes[-1] = (kind, joined_changes[-1][1] + text)
        elif text:
            joined_changes.append((kind, text))
    return joined_changes
