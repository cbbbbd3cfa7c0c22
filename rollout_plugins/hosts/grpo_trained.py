"""Locate rollouts in the rows that the trainer trains on, which a subclass may have reordered or replaced."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rollout_plugins.hosts.grpo_unscored import Sampled
from rollout_plugins.hosts.kit.observed_generation import packed_ids


class Trained:
    """The rows that the trainer trains on, one per rollout."""

    def __init__(self, out: Mapping[str, Any], advantages: Sequence[float] = ()) -> None:
        """Index the rows of `out`.

        With `advantages`, a row matches only if its advantage is equal, too: a replay buffer repeats completions.
        """
        # Arrays, because building and comparing lists of ids dominates the cost for long answers.
        self._completions = _packed_rows(out["completion_ids"])
        prompts = out.get("prompt_ids")
        self._prompts = None if prompts is None else _packed_rows(prompts)
        self._advantages = list(advantages)
        self._free = dict.fromkeys(range(len(self._completions)))

    def places(self, generation: Sampled, start: int = 0) -> list[int | None]:
        """Return the row of each rollout, trying `start` plus its index first; None for a rollout without a row."""
        rows = list(_rollouts(generation))
        places: list[int | None] = [start + i if self._is(start + i, row) else None for i, row in enumerate(rows)]
        self._take(places)
        for i in (i for i, place in enumerate(places) if place is None):
            candidates = self._candidates(rows[i].completion)
            places[i] = next((place for place in candidates if self._is(place, rows[i])), None)
            self._take(places[i : i + 1])
        return places

    def _take(self, places: Sequence[int | None]) -> None:
        for place in places:
            self._free.pop(place, None)  # type: ignore[arg-type]

    def _is(self, place: int, row: _Row) -> bool:
        """Return whether the free row at `place` holds this rollout and otherwise only padding.

        Short answers such as "4" are equal to many others, so the prompt must match, too.
        """
        return (
            place in self._free
            and self._is_answer(place, row.completion)
            and (row.prompt is None or self._is_prompt(place, row.prompt))
            and self._is_advantage(place, row.advantage)
        )

    def _is_answer(self, place: int, ids: array[int]) -> bool:
        trained_ids = self._completions[place]
        return trained_ids[: len(ids)] == ids and len(set(trained_ids[len(ids) :])) <= 1

    def _is_prompt(self, place: int, ids: array[int]) -> bool:
        return self._prompts is None or not ids or self._prompts[place][-len(ids) :] == ids

    def _is_advantage(self, place: int, advantage: float | None) -> bool:
        if advantage is None or not self._advantages:
            return True
        return self._advantages[place] == advantage or math.isnan(advantage)

    def _candidates(self, ids: array[int]) -> Iterator[int]:
        """Yield the rows that may hold these ids, found without their repeated last token."""
        yield from (*self._by_ids[tuple(ids)], *self._by_ids[_without_tail(ids)])

    @cached_property
    def _by_ids(self) -> defaultdict[tuple[int, ...], list[int]]:
        """Rows by their ids without the repeated last token.

        Comparing each rollout with every row would take minutes for thousands of rollouts.
        """
        rows_by_ids = defaultdict(list)
        for place, row in enumerate(self._completions):
            rows_by_ids[_without_tail(row)].append(place)
        return rows_by_ids


@dataclass(frozen=True, slots=True)
class _Row:
    """The values that identify a rollout among the trained rows; None for unknown ones."""

    completion: array[int]
    prompt: array[int] | None
    advantage: float | None


def _rollouts(generation: Sampled) -> Iterator[_Row]:
    ids = generation.scored_ids or (generation.generated_rows.ids if generation.generated_rows else ())
    prompts = (
        generation.prompt_ids
        if isinstance(generation.prompt_ids, list) and len(generation.prompt_ids) == generation.count
        else None
    )
    for i in range(generation.count):
        prompt = None if prompts is None else packed_ids(prompts[i])
        yield _Row(packed_ids(ids[i]), prompt, generation.advantages[i] if generation.advantages else None)


def _packed_rows(tensor: Any) -> list[memoryview[int]]:
    return [memoryview(row) for row in tensor.detach().cpu().int().contiguous().numpy()]


def _without_tail(row: Sequence[int]) -> tuple[int, ...]:
    """Return `row` without all repetitions of its last token, which is padding in every row but the longest."""
    end = len(row)
    while end and row[end - 1] == row[-1]:
        end -= 1
    return tuple(row[:end])
