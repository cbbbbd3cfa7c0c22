"""Where conversations part, and what changed between two texts."""

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
#: The most words or lines to compare: the cost grows with their square.
_MOST = 2000
_WORD = re.compile(r"\s*\S+|\s+\Z")
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


def shared(conversations: Sequence[Conversation]) -> int:
    """How many turns all begin with, up to the last one the model did not write: the prompt."""
    turns = [one.turns for one in conversations]
    same = [row[0] for row in takewhile(_same, zip(*turns, strict=False))]
    while same and same[-1].role in {"assistant", "tool"}:
        same.pop()
    return len(same)


def alike(conversations: Sequence[Conversation]) -> list[list[int]]:
    """The places of those that say the same and got the same reward, together; in the order of the first of each."""
    found: list[list[int]] = []
    for place, one in enumerate(conversations):
        for places in found:
            first = conversations[places[0]]
            if first.reward == one.reward and parting(first, one) is None:
                places.append(place)
                break
        else:
            found.append([place])
    return found


def times(count: int) -> str:
    """How often something is there: ×4; nothing for once."""
    return f"×{count}" if count > 1 else ""


def variety(different: int, total: int) -> str:
    """How many kinds there are among all; nothing where each is of its own."""
    return "" if different == total else "all the same" if different == 1 else f"{different} different"


def parting(one: Conversation, other: Conversation) -> int | None:
    """The first turn in which two conversations differ; None when they are equal."""
    for place, turns in enumerate(zip_longest(one.turns, other.turns)):
        if not _same(turns):
            return place
    return None


def _same(turns: tuple[Turn | None, ...]) -> bool:
    try:
        first, *others = map(_untimed, turns)
        return all(bool(turn == first) for turn in others)
    except Exception:  # arrays and the like have no single truth
        return False


def _untimed(turn: Turn | None) -> Turn | None:
    """Without how long its calls took, which differs even where they are the same."""
    if turn is None or not turn.calls:
        return turn
    return replace(turn, calls=tuple(replace(call, seconds=None) for call in turn.calls))


def words(before: str, after: str) -> list[Change]:
    """What was kept, added and removed: by words, by lines if that is too many, else as a whole."""
    for pattern in (_WORD, _LINE):
        old, new = pattern.findall(before), pattern.findall(after)
        head = _alike(old, new)
        tail = _alike(old[head:][::-1], new[head:][::-1])
        middle = old[head : len(old) - tail], new[head : len(new) - tail]
        if max(map(len, middle)) <= _MOST:
            return _joined([("same", old[:head]), *_changes(*middle), ("same", old[len(old) - tail :])])
    return _joined([("removed", [before]), ("added", [after])])


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Kind, list[str]]]:
    for tag, start, end, start2, end2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield "same", list(old[start:end])
        else:
            yield "removed", list(old[start:end])
            yield "added", list(new[start2:end2])


def _joined(changes: Sequence[tuple[Kind, Sequence[str]]]) -> list[Change]:
    """As texts, without empty ones, neighbours of one kind in one."""
    made: list[Change] = []
    for kind, pieces in changes:
        text = "".join(pieces)
        if made and made[-1][0] == kind:
            made[-1] = (kind, made[-1][1] + text)
        elif text:
            made.append((kind, text))
    return made
