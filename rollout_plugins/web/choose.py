"""Choose rollouts for a report that cannot hold all of them: complete groups, spread over the steps.

Within a step, groups whose prompt also occurs in other chosen steps come first, so that the report can show how the
answers to a prompt change.
"""

# ruff: noqa: S608 - SQL is put together from numbers and quoted literals
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rollout_hookspecs import Rollout

from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.sql_pieces import literal
from rollout_plugins.show.text import evenly

STEPS = 32
EVAL_SHARE = 0.3
_KEYS = ("split", "step", "attempt", "generation", "group")


class Group(NamedTuple):
    """The answers to one prompt in one generation, and how many of them match."""

    split: str
    step: int | None
    attempt: int
    generation: int
    group: int
    size: int


class Chosen(NamedTuple):
    """The rollouts to show, their expected number, and how many matched."""

    rollouts: Iterable[Rollout]
    expected: int
    matched: int


def choose(run: StoredRun, *, limit: int, keep: Sequence[Rollout] = (), **filters: Any) -> Chosen:
    """Choose at most `limit` of the rollouts that match; the first ones if the caller gave an order.

    The groups of the rollouts in `keep` come before all others.
    """
    matched = run.count(**filters)
    if matched <= limit or filters.get("order"):
        return Chosen(run.rollouts(**filters, limit=limit), min(matched, limit), matched)
    kept_groups = {(rollout.split, rollout.attempt, rollout.generation, rollout.group) for rollout in keep}
    first: list[Group] = []
    others: list[Group] = []
    for group in _groups(run, filters):
        (first if (group.split, *group[2:5]) in kept_groups else others).append(group)
    room = max(limit - sum(group.size for group in first), 0)
    groups = _fitting_groups([*first, *_spread(run, others, room, filters)], limit)
    keys = ", ".join(f"({literal(g.split)}, {g.attempt}, {g.generation}, {g.group})" for g in groups)
    filters = add_condition(filters, f'(split, attempt, generation, "group") in ({keys})')
    steps = {group.step for group in groups}
    if filters.get("step") is None and None not in steps:
        filters = {**filters, "step": sorted(step for step in steps if step is not None)}
    count = min(sum(group.size for group in groups), limit)
    return Chosen(run.rollouts(**filters, limit=limit), count, matched)


def add_condition(filters: dict[str, Any], where: str) -> dict[str, Any]:
    """Add a condition to the filters. A person's condition may end with a comment, which ends at the
    end of its line.
    """
    return {**filters, "where": f"({filters['where']}\n) and {where}" if filters.get("where") else where}


def _groups(run: StoredRun, filters: dict[str, Any]) -> list[Group]:
    table = run.table(_KEYS, **filters).group_by(list(_KEYS)).aggregate([([], "count_all")])
    columns = [table[name].to_pylist() for name in (*_KEYS, "count_all")]
    return sorted(
        (Group(*row) for row in zip(*columns, strict=True)), key=lambda g: (g.generation, g.attempt, g.group)
    )


def _spread(run: StoredRun, groups: Sequence[Group], limit: int, filters: dict[str, Any]) -> list[Group]:
    """Choose groups of both splits, from few enough steps to be read quickly."""
    train, other = ([g for g in groups if (g.split == "train") is is_train] for is_train in (True, False))
    for_other = min(sum(g.size for g in other), int(limit * EVAL_SHARE)) if train else limit
    chosen: list[Group] = []
    for split_groups, room in ((other, for_other), (train, limit - for_other)):
        among = _of_some_steps(split_groups, room)
        steps = {group.step for group in among if group.step is not None}
        prompts = _prompts(run, steps, superseded=bool(filters.get("superseded")))
        chosen += _fitting_groups(_by_recurrence(among, prompts), room)
    return chosen


def _of_some_steps(groups: Sequence[Group], room: int) -> list[Group]:
    """Return the groups of evenly chosen steps; of more than `STEPS` only if those would not fill the room."""
    steps = sorted({group.step for group in groups if group.step is not None})
    if not steps:
        return list(groups)
    wanted_groups = room * len(groups) // max(sum(group.size for group in groups), 1)
    filling = -(-wanted_groups * len(steps) // len(groups))
    chosen = set(evenly(steps, max(2, filling, min(STEPS, wanted_groups))))
    return [group for group in groups if group.step in chosen]


def _prompts(run: StoredRun, steps: Collection[int], *, superseded: bool) -> dict[tuple[Any, ...], int]:
    """Return a number that identifies the prompt of each group of these steps."""
    if not steps:
        return {}
    query = (
        f'select split, attempt, generation, "group", any_value(hash(prompt)) from rollouts '
        f"where step in ({', '.join(map(str, steps))}) group by all"
    )
    columns = [column.to_pylist() for column in run.sql(query, superseded=superseded).columns]
    return dict(zip(zip(*columns[:4], strict=True), columns[4], strict=True))


def _by_recurrence(groups: Iterable[Group], prompts: dict[tuple[Any, ...], int]) -> list[Group]:
    """Return the groups in rounds of one per step, first those whose prompt occurs in the most steps."""
    groups = list(groups)
    prompt_of = {group: prompts.get((group.split, *group[2:5])) for group in groups}
    step_counts = Counter(prompt for prompt, _ in {(prompt_of[group], group.step) for group in groups})
    steps: dict[Any, list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: (-step_counts[prompt_of[g]], prompt_of[g] or 0)):
        steps[group.step].append(group)
    return [group for round_ in zip_longest(*steps.values()) for group in round_ if group is not None]


def _fitting_groups(groups: Iterable[Group], room: int) -> list[Group]:
    """Return complete groups as long as they fit. If the first one alone is too large, it is taken and cut later."""
    chosen: list[Group] = []
    for group in groups:
        if not chosen or group.size <= room:
            chosen.append(group)
            room -= group.size
    return chosen
