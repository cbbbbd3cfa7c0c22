"""Choose the rollouts of a run that training data is made of: the best of each group, pairs, or labelled ones.

Everything here works on numbers and names of rollouts; their texts are read later, for the chosen ones alone.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from rollout_plugins.errors import RunError

if TYPE_CHECKING:
    from rollout_plugins.reading.lazy_rollouts import Rollouts

Kind = Literal["sft", "dpo", "kto", "prompts"]
KINDS: tuple[Kind, ...] = ("sft", "dpo", "kto", "prompts")
_COLUMNS = (
    "attempt", "split", "generation", "group", "completion_tokens", "finish", "prompt_is_text", "completion_is_text",
    "images",
)  # fmt: skip
#: Endings of a completion that is not complete, so that no model should learn to answer like that.
_BROKEN_OFF = frozenset({"length", "tool_limit", "error"})


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How rollouts are chosen."""

    kind: Kind
    by: str = "reward"
    """The column that scores a rollout; a higher score is better."""
    threshold: float | None = None
    """sft: the least score. kto: the least score that is labelled True; without it, the mean of the group decides."""
    margin: float = 0.0
    """dpo: how much better the winner of a pair is at least."""
    pairs: Literal["best", "all"] = "best"
    """dpo: one pair for each group, or every pair whose scores differ by the margin."""
    sample: int | None = None
    """Take at most so many rows, drawn at random."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rollout that may be chosen."""

    place: int
    """Its place among the rollouts that the filters selected."""
    score: float
    tokens: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A row of training data: the places of the rollouts it is made of."""

    places: tuple[int, ...]
    """sft, kto and prompts: one rollout. dpo: the winner and the loser."""
    scores: tuple[float, ...]
    label: bool | None = None
    rivals: tuple[int, ...] = ()
    """kto: the places of siblings with the other label."""


@dataclass
class Choice:
    """The chosen rows of each group, and why other rollouts were left out."""

    groups: list[list[Row]]
    is_text: bool
    """Whether prompts and completions are plain texts."""
    candidates: int
    left_out: Counter[str] = field(default_factory=Counter)


def choose_rollouts(matches: Rollouts, rules: Rules) -> Choice:
    """Choose from the rollouts that `matches` holds."""
    groups, choice = _read_candidates(matches, rules)
    choose: dict[str, Callable[[list[Candidate], Rules, Counter[str]], Iterable[Row]]] = {
        "sft": _best,
        "dpo": _pairs,
        "kto": _labelled,
        "prompts": _first,
    }
    for candidates in groups:
        if rows := list(choose[rules.kind](candidates, rules, choice.left_out)):
            choice.groups.append(rows)
    _sample(choice, rules)
    return choice


def _read_candidates(matches: Rollouts, rules: Rules) -> tuple[list[list[Candidate]], Choice]:
    """Read the scores of all rollouts and return them by group, without those that cannot be chosen."""
    needs_score = rules.kind != "prompts"
    groups: dict[tuple[Any, ...], list[tuple[bool, Candidate]]] = {}
    left_out: Counter[str] = Counter()
    texts = total = 0
    columns = dict.fromkeys([*_COLUMNS, *([rules.by] if needs_score else [])])
    for places, table in matches.tables(list(columns)):
        values = [table[name].to_pylist() for name in _COLUMNS[:-1]]
        scores = table[rules.by].to_pylist() if needs_score else [0.0] * table.num_rows
        images = table["images"].combine_chunks()
        counts = images.value_lengths().to_pylist() if table.num_rows else []
        rows = zip(places.to_pylist(), scores, counts, *values, strict=True)
        for place, score, pictures, attempt, split, generation, group, tokens, finish, prompt_is_text, is_text in rows:
            total += 1
            value = _number(score, rules.by)
            if pictures:
                left_out["with images, which this export does not write"] += 1
            elif value is None:
                left_out[f"without a finite {rules.by}"] += 1
            else:
                candidate = Candidate(place, value, tokens or 0, finish not in _BROKEN_OFF)
                is_plain = bool(prompt_is_text and (is_text or rules.kind == "prompts"))
                texts += is_plain
                groups.setdefault((attempt, split, generation, group), []).append((is_plain, candidate))
    kept = sum(map(len, groups.values()))
    is_text = 2 * texts > kept
    if odd := sum(plain is not is_text for members in groups.values() for plain, _ in members):
        left_out["messages where most are plain texts" if is_text else "plain texts where most are messages"] += odd
    members = ([one for plain, one in group if plain is is_text] for group in groups.values())
    return list(members), Choice([], is_text, total, left_out)


def _number(value: Any, name: str) -> float | None:
    if value is not None and not isinstance(value, (int, float)):
        raise RunError(f"the column {name!r} holds {value!r}, which is not a number to choose rollouts by")
    return float(value) if value is not None and math.isfinite(value) else None


def _best(candidates: list[Candidate], rules: Rules, left_out: Counter[str]) -> Iterator[Row]:
    """Yield the best complete rollout of a group; of equally good ones the shortest."""
    complete = [one for one in candidates if one.is_complete]
    left_out["broken off (length, tool limit or error)"] += len(candidates) - len(complete)
    if not complete:
        return
    best = min(complete, key=lambda one: (-one.score, one.tokens, one.place))
    if rules.threshold is not None and best.score < rules.threshold:
        left_out[f"{rules.by} below {rules.threshold:g}"] += len(complete)
        return
    left_out["not the best of their group"] += len(complete) - 1
    yield Row((best.place,), (best.score,))


def _pairs(candidates: list[Candidate], rules: Rules, left_out: Counter[str]) -> Iterator[Row]:
    """Yield pairs of a complete winner and a loser of a group.

    Of the best and the worst, those two are a pair that differ least in length, so that length is not what is learnt.
    """
    winners = [one for one in candidates if one.is_complete]
    pairs = [
        (winner, loser)
        for winner, loser in product(winners, candidates)
        if winner.score > loser.score and winner.score - loser.score >= rules.margin
    ]
    used = {one.place for pair in pairs for one in pair}
    if not pairs:
        has_spread = len({one.score for one in candidates}) > 1
        reason = f"in a group without a pair that differs by {rules.margin:g}" if has_spread and rules.margin else (
            "in a group without a complete winner" if has_spread else f"in a group with one {rules.by}"
        )  # fmt: skip
        left_out[reason] += len(candidates)
        return
    if rules.pairs == "best":
        winner, loser = min(
            pairs, key=lambda p: (p[1].score - p[0].score, abs(p[0].tokens - p[1].tokens), p[0].place, p[1].place)
        )
        pairs, used = [(winner, loser)], {winner.place, loser.place}
    left_out["in no pair of their group"] += len(candidates) - len(used)
    for winner, loser in pairs:
        yield Row((winner.place, loser.place), (winner.score, loser.score))


def _labelled(candidates: list[Candidate], rules: Rules, left_out: Counter[str]) -> Iterator[Row]:
    """Yield every rollout of a group with a label: whether it is good."""
    bound = rules.threshold
    if bound is None:
        scores = [one.score for one in candidates]
        if len(set(scores)) < 2:
            left_out[f"in a group with one {rules.by}, where the mean labels nothing"] += len(candidates)
            return
        bound = math.fsum(scores) / len(scores)
    labels = [(one, one.score >= bound) for one in candidates]
    usable = [(one, label) for one, label in labels if one.is_complete or not label]
    left_out["good, but broken off (length, tool limit or error)"] += len(labels) - len(usable)
    places = {label: tuple(one.place for one, is_good in usable if is_good is label) for label in (True, False)}
    for one, label in usable:
        yield Row((one.place,), (one.score,), label, places[not label])


def _first(candidates: list[Candidate], _rules: Rules, _left_out: Counter[str]) -> Iterator[Row]:
    """Yield one rollout of a group, whose prompt stands for that of all."""
    for one in candidates[:1]:
        yield Row((one.place,), (one.score,))


def _sample(choice: Choice, rules: Rules) -> None:
    """Keep `rules.sample` rows, drawn at random and in their order."""
    rows = [(number, row) for number, group in enumerate(choice.groups) for row in group]
    if rules.sample is None or rules.sample >= len(rows):
        return
    chosen = sorted(random.Random(rules.seed).sample(range(len(rows)), rules.sample))  # noqa: S311 - no secret
    groups: dict[int, list[Row]] = {}
    for place in chosen:
        number, row = rows[place]
        groups.setdefault(number, []).append(row)
    choice.left_out["rows not drawn at random"] += len(rows) - rules.sample
    choice.groups = list(groups.values())


def places_of(groups: Sequence[Sequence[Row]]) -> list[int]:
    """Return the places of all rollouts that the rows need, in order, each once."""
    return sorted({place for group in groups for row in group for place in (*row.places, *row.rivals)})
