"""Where the trainer has its rollouts in what it trains on, which a subclass may have put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from rollout_plugins.hosts.grpo_unscored import Sampled


class Trained:
    """The rows that the trainer goes on with; each is one rollout's."""

    def __init__(self, out: Mapping[str, Any]) -> None:
        self._completions: list[list[int]] = out["completion_ids"].tolist()
        prompts = out.get("prompt_ids")
        self._prompts: list[list[int]] | None = None if prompts is None else prompts.tolist()
        self._free = dict.fromkeys(range(len(self._completions)))

    def places(self, now: Sampled, start: int = 0) -> list[int | None]:
        """Of each rollout of a generation that would begin at `start`; None where the trainer has it nowhere."""
        ids = now.scored_ids or (now.made.ids if now.made else ())
        found: list[int | None] = [start + i if self._is(start + i, ids[i]) else None for i in range(now.count)]
        self._take(found)
        prompts = now.prompt_ids if isinstance(now.prompt_ids, list) and len(now.prompt_ids) == now.count else None
        for i in (i for i, place in enumerate(found) if place is None):
            prompt = None if prompts is None else prompts[i]
            found[i] = next(self._like(prompt, ids[i]), None)
            self._take(found[i : i + 1])
        return found

    def _take(self, places: Sequence[int | None]) -> None:
        for place in places:
            self._free.pop(place, None)  # type: ignore[arg-type]

    def _is(self, place: int, ids: Sequence[int]) -> bool:
        return place in self._free and self._completions[place][: len(ids)] == list(ids)

    def _like(self, prompt: Sequence[int] | None, ids: Sequence[int]) -> Iterator[int]:
        """Rows with these ids, and nothing but padding around them."""
        for place in (*self._by_ids[tuple(ids)], *self._by_ids[_without_tail(ids)]):
            if not self._is(place, ids) or len(set(self._completions[place][len(ids) :])) > 1:
                continue
            if self._prompts is None or prompt is None or _ends_with(self._prompts[place], list(prompt)):
                yield place

    @cached_property
    def _by_ids(self) -> defaultdict[tuple[int, ...], list[int]]:
        """Comparing each rollout with every row would take minutes for thousands of them."""
        found = defaultdict(list)
        for place, row in enumerate(self._completions):
            found[_without_tail(row)].append(place)
        return found


def _without_tail(row: Sequence[int]) -> tuple[int, ...]:
    """Without the token at the end, however often it stands there: padding, or the last one of a row that has none."""
    end = len(row)
    while end and row[end - 1] == row[-1]:
        end -= 1
    return tuple(row[:end])


def _ends_with(row: list[int], ids: list[int]) -> bool:
    return not ids or row[-len(ids) :] == ids
