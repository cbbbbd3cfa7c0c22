"""Return SQL for a run's statistics by split and step, computed from the sums of its generations."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_plugins.reading.sql_pieces import literal
from rollout_plugins.store.schema import REWARD_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

_MIDDLE = "sum(finite * mean) over apart / nullif(sum(finite) over apart, 0) as middle"
SQUARES = "sum(squares) + sum(finite * (mean - middle) ** 2)"
_SPREAD = f"sqrt(({SQUARES}) / sum(finite))"
_COLUMNS = {
    "rollouts": "sum(rollouts)::bigint",
    "scored": "sum(scored)::bigint",
    "reward": "sum(reward) / nullif(sum(scored), 0)",
    "reward_min": "min(reward_min) filter (where scored > 0)",
    "reward_max": "max(reward_max) filter (where scored > 0)",
    "reward_std": f"""case when sum(finite) = 0 then null
        when min(reward_min) filter (where scored > 0) = max(reward_max) filter (where scored > 0) then 0
        else {_SPREAD} end""",
    "not_finite": "sum(not_finite)::bigint",
    "completion_tokens": "sum(tokens) / nullif(sum(with_tokens), 0)",
    "completion_tokens_max": "max(most_tokens) filter (where with_tokens > 0)",
    "truncated": "sum(truncated)::bigint",
    "errors": "sum(errors)::bigint",
    "turns": "sum(turns) / nullif(sum(with_turns), 0)",
    "tool_calls": "sum(calls)::bigint",
    "tool_errors": "sum(failed_calls)::bigint",
}
_GROUP = 'split, attempt, step, generation, "group"'
_PARTED = f"""
select split, step, count(*) as groups, count(*) filter (where spread = 0) as flat_groups, sum(spread) as spreads
from (
  select split, step, case when min(least) = max(most) then 0 else {_SPREAD} end as spread
  from (select *, {_MIDDLE} from current_groups window apart as (partition by {_GROUP}))
  group by {_GROUP} having sum(finite) > 1
) group by split, step"""
_GROUPS = f"""
select split, {{point}} as point, sum(spreads) / nullif(sum(groups), 0) as group_std, sum(groups)::bigint as groups,
  sum(flat_groups)::bigint as flat_groups
from (
  select split, step, groups, flat_groups, spreads from current_generations where groups > 0 union all {_PARTED}
) group by split, point"""
NOT_FINITE = f"""
select '{REWARD_PREFIX}' || name as name, sum(nan)::bigint as nan, sum(infinite)::bigint as infinite
from current_rewards group by name having sum(nan) + sum(infinite) > 0
union all
select 'reward', sum(nan)::bigint, sum(scored - finite)::bigint from current_generations
having sum(nan) + sum(scored - finite) > 0
order by name"""
"""SQL that counts the NaN and infinite values of each reward function and of `reward` itself."""


def mingled(which: str) -> str:
    """Return SQL that is true if a group that is complete in one part has rollouts in another part."""
    return f"""
select exists (
  select 1 from (
    select first_group, lag(last_group) over (
      partition by _run, split, attempt, step, generation order by first_group, last_group) as before
    from {which}_generations where first_group is not null
  ) where first_group <= before
) or exists (
  select 1 from {which}_groups o join {which}_generations g
  on g._run = o._run and g._part <> o._part and g.split is not distinct from o.split and g.attempt = o.attempt
    and g.step is not distinct from o.step and g.generation = o.generation
  where o."group" between g.first_group and g.last_group
)"""


def query(rewards: Iterable[str], *, width: int = 1) -> tuple[list[str], str]:
    """Return the names and the SQL of a run's statistics.

    `rewards`: the names of its reward functions. `width`: how many neighbouring steps share a row, whose step is the
    first.
    """
    functions = list(rewards)
    means = "".join(f", {_mean(name)} as r{number}" for number, name in enumerate(functions))
    plain = ", ".join(f'{value} as "{name}"' for name, value in _COLUMNS.items())
    names = ["split", "step", *_COLUMNS, *(REWARD_PREFIX + name for name in functions)]
    point = "step" if width == 1 else f"step - (step - (select min(step) from current_generations)) % {width}"
    apart = (
        f"select *, {_MIDDLE} from (select *, {point} as point from current_generations) "
        "window apart as (partition by split, point)"
    )
    return [*names, "group_std", "groups", "flat_groups"], (
        "select s.*, r.* exclude (split, point, n), g.group_std, coalesce(g.groups, 0), coalesce(g.flat_groups, 0) "
        f"from (select split, point, {plain} from ({apart}) group by split, point) s "
        f"left join (select split, {point} as point, 0 as n{means} from current_rewards group by split, point) r "
        f"on {_same('r')} left join ({_GROUPS.format(point=point)}) g on {_same('g')} "
        "order by s.split = 'eval', s.split, s.point"
    )


def _same(other: str) -> str:
    return f"{other}.split is not distinct from s.split and {other}.point is not distinct from s.point"


def _mean(name: str) -> str:
    """Return SQL for the mean of a reward function."""
    which = f"filter (where name = {literal(name)})"
    return f"sum(sum) {which} / nullif(sum(values) {which}, 0)"
