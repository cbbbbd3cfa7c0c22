"""A run in numbers: one row for each split and step."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_plugins.store.sql import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollout_plugins.store.filters import Column

_REAL = "reward is not null and not isnan(reward)"
_COLUMNS = (
    ("rollouts", "count(*)"),
    ("scored", f"count(*) filter (where {_REAL})"),
    ("reward", f"avg(reward) filter (where {_REAL})"),
    ("reward_min", f"min(reward) filter (where {_REAL})"),
    ("reward_max", f"max(reward) filter (where {_REAL})"),
    ("reward_std", f"stddev_pop(reward) filter (where {_REAL} and isfinite(reward))"),
    ("completion_tokens", "avg(completion_tokens)"),
    ("completion_tokens_max", "max(completion_tokens)"),
    ("truncated", "count(*) filter (where finish = 'length')"),
    ("errors", "count(*) filter (where error is not null or finish = 'error')"),
    ("turns", "avg(turns)"),
    ("tool_calls", "coalesce(sum(calls), 0)::bigint"),
    ("tool_errors", "coalesce(sum(failed_calls), 0)::bigint"),
)
_GROUPS = f"""
select split, step, avg(spread) as group_std, count(*) as groups, count(*) filter (where spread = 0) as flat_groups
from (
  select split, step, stddev_pop(reward) as spread from current_rollouts
  where {_REAL} and isfinite(reward) group by split, step, attempt, generation, "group" having count(*) > 1
) group by split, step"""


def query(columns: Iterable[Column]) -> tuple[list[str], str]:
    """The names and the SQL of a run's numbers; `columns` are the run's, for those of each reward function."""
    rewards = [column for column in columns if column.name.startswith("reward/")]
    means = [f"avg({column.sql}) filter (where not isnan({column.sql})) as {column.sql}" for column in rewards]
    plain = ", ".join([*(f"{value} as {name_of(name)}" for name, value in _COLUMNS), *means])
    counted = [*(name for name, _ in _COLUMNS), *(column.name for column in rewards)]
    names = ["split", "step", *counted, "group_std", "groups", "flat_groups"]
    return names, (
        f"select s.*, g.group_std, coalesce(g.groups, 0), coalesce(g.flat_groups, 0) "
        f"from (select split, step, {plain} from current_rollouts group by split, step) s "
        f"left join ({_GROUPS}) g on g.split = s.split and g.step is not distinct from s.step "
        "order by s.split = 'eval', s.split, s.step"
    )
