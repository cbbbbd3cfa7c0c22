"""Summarise runs by prompt: how often each was solved, when first, whether it was lost again.

A visit is one step in which a prompt was answered. The bands of `BANDS` come from the passes of a prompt's visits.
"""

# ruff: noqa: S608 - SQL is put together from constants
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.errors import RunError
from rollout_plugins.learn.passes import Criterion, criterion, find_column, passes
from rollout_plugins.learn.prompt_ids import prompt_id, tables_with_ids
from rollout_plugins.learn.statistics import wilson

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

BANDS = {
    "forgotten": "at least half of the attempts passed in some step, and none in the last",
    "stuck": "no attempt ever passed",
    "mixed": "passed and failed, and none of the others",
    "learnt": "less than half passed in the first step, at least half in the last",
    "saturated": "every attempt passed",
    "unscored": "no attempt has a score",
}
#: Points of a prompt's trend: more do not fit on a line.
TREND = 12
_COLUMNS = ("id", "step", "reward", "prompt_tokens", "completion_tokens", "calls", "failed_calls")
_EXAMPLE = ("prompt", "columns", "prompt_is_text")
_VISITS = """
create temp table visits as
select prompt_id, run, step, count(passed) as scored, count(*) filter (where passed) as passes
from rollouts group by all"""
_COURSES = """
select prompt_id, count(*) as steps_seen,
  arg_min(step, (run, step)) as first_step, arg_max(step, (run, step)) as last_step,
  arg_min(step, (run, step)) filter (where passes > 0) as first_solved,
  arg_min(passes / scored, (run, step)) filter (where scored > 0) as first_rate,
  arg_max(passes / scored, (run, step)) filter (where scored > 0) as last_rate,
  max(passes / nullif(scored, 0)) as best_rate,
  list(passes / nullif(scored, 0) order by run, step) as trend
from visits group by prompt_id"""
_ROWS = f"""
select prompt_id, count(*) as rollouts, count(value) as attempts, count(*) filter (where passed) as passes,
  case when count(passed) > 0 then count(*) filter (where passed) / count(passed) end as pass_rate,
  avg(value) as reward_mean, case when count(value) > 0 then stddev_pop(value) end as reward_std,
  any_value(first_step) as first_step, any_value(last_step) as last_step, any_value(steps_seen) as steps_seen,
  any_value(first_solved) as first_solved,
  case when count(value) = 0 then 'unscored'
    when count(passed) = 0 then null
    when count(*) filter (where passed) = 0 then 'stuck'
    when bool_and(coalesce(passed, true)) then 'saturated'
    when any_value(best_rate) >= 0.5 and any_value(last_rate) = 0 then 'forgotten'
    when any_value(first_rate) < 0.5 and any_value(last_rate) >= 0.5 then 'learnt'
    else 'mixed' end as band,
  any_value(trend)[-{TREND}:] as trend,
  avg(prompt_tokens) as prompt_tokens, avg(completion_tokens) as completion_tokens,
  sum(calls)::bigint as tool_calls, sum(failed_calls)::bigint as failed_calls,
  arg_max(id, (run, step)) as last_rollout
from rollouts join ({_COURSES}) using (prompt_id) group by prompt_id"""


@dataclass(frozen=True, slots=True)
class Prompts:
    """What one run or several say of their prompts."""

    criterion: Criterion
    """What counts as a pass."""
    table: pa.Table
    """One row for each prompt, the least solved first; `prompt` and `columns` are those of its first rollout."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def bands(self) -> dict[str, int]:
        """How many prompts there are in each band."""
        found = self.table["band"].to_pylist()
        return {band: found.count(band) for band in BANDS if band in found}

    def between(self, low: float, high: float) -> Prompts:
        """Return the prompts whose pass rate lies in these bounds."""
        rates = self.table["pass_rate"]
        return Prompts(
            self.criterion, self.table.filter(pc.and_(pc.greater_equal(rates, low), pc.less_equal(rates, high)))
        )

    def in_band(self, band: str) -> Prompts:
        """Return the prompts of one of the `BANDS`."""
        return Prompts(self.criterion, self.table.filter(pc.equal(self.table["band"], band)))


def prompts_of(
    runs: StoredRun | Sequence[StoredRun], by: str = "reward", pass_at: float | None = None, **filters: Any
) -> Prompts:
    """Summarise one run or several by prompt, several in the order that they are given in.

    `by`: the column that decides: `reward`, the name of a reward function, or an annotation such as `judge.score`.
    `pass_at`: the least value that passes; not needed where all values are 0 or 1. `filters`: as `run.rollouts` takes
    them; by default the rollouts of training, or all of a run that has none.
    """
    several = list(runs) if isinstance(runs, Sequence) else [runs]
    column = find_column(several, by)
    rollouts, examples = _read(several, column, filters)
    if not rollouts.num_rows:
        raise RunError(f"{', '.join(run.place for run in several)} has no such rollouts, so there are no prompts")
    rule = criterion(column, rollouts["value"], pass_at)
    finite = pc.is_finite(rollouts["value"])
    rollouts = rollouts.set_column(
        rollouts.schema.get_field_index("value"), "value", pc.if_else(finite, rollouts["value"], None)
    )
    none = pa.nulls(rollouts.num_rows, pa.bool_())
    passed = none if rule.bound is None else passes(rollouts["value"], rule.bound)
    return Prompts(rule, _with_intervals(_summarise(rollouts.append_column("passed", passed), examples)))


def column_of_passes(run: StoredRun) -> str:
    """Return the column to judge by where nobody names one: the first whose values are all 0 or 1, else `reward`."""
    names = ["reward", *(name for name in run.columns if name.startswith("reward/"))]
    for name in names:
        column = '"' + name.replace('"', '""') + '"'
        if run.count(where=f"{column} is not null") and not run.count(where=f"{column} not in (0, 1)"):
            return name
    return "reward"


def _read(runs: Sequence[StoredRun], column: str, filters: Mapping[str, Any]) -> tuple[pa.Table, pa.Table]:
    """Read the numbers of all rollouts, and the prompt of each prompt's first rollout."""
    numbers, examples = [], []
    seen: set[str] = set()
    for place, run in enumerate(runs):
        chosen = dict(filters)
        if chosen.get("split") is None and run.steps:
            chosen["split"] = "train"
        wanted = dict.fromkeys([*_COLUMNS, column, *_EXAMPLE])
        for table in tables_with_ids(run, list(wanted), **chosen):
            numbers.append(
                table.select([*_COLUMNS, "prompt_id"])
                .append_column("value", table[column].cast(pa.float64()))
                .append_column("run", pa.array([place] * table.num_rows, pa.int32()))
            )
            rows = _rows_of_new_prompts(table["prompt_id"].to_pylist(), seen)
            examples.append(table.select(["prompt_id", *_EXAMPLE]).take(rows))
    if not numbers:
        raise RunError(f"{', '.join(run.place for run in runs)} has no such rollouts, so there are no prompts")
    return pa.concat_tables(numbers), pa.concat_tables(examples, promote_options="permissive")


def _rows_of_new_prompts(ids: Sequence[str], seen: set[str]) -> pa.Array:
    rows = []
    for row, name in enumerate(ids):
        if name not in seen:
            seen.add(name)
            rows.append(row)
    return pa.array(rows, pa.int64())


def _summarise(rollouts: pa.Table, examples: pa.Table) -> pa.Table:
    with duckdb.connect(":memory:") as database:
        database.execute("set enable_progress_bar = false")
        database.register("read_rollouts", rollouts)
        database.execute("create temp table rollouts as from read_rollouts")
        database.execute(_VISITS)
        rows = database.sql(_ROWS + " order by pass_rate nulls last, reward_mean, prompt_id").to_arrow_table()
    places = {name: place for place, name in enumerate(examples["prompt_id"].to_pylist())}
    taken = examples.take(pa.array([places[name] for name in rows["prompt_id"].to_pylist()], pa.int64()))
    for name in _EXAMPLE:
        rows = rows.append_column(name, taken[name])
    return rows


def _with_intervals(rows: pa.Table) -> pa.Table:
    low, high = wilson(rows["passes"].to_numpy(), rows["attempts"].to_numpy())
    at = rows.schema.get_field_index("pass_rate") + 1
    for name, ends in (("pass_high", high), ("pass_low", low)):
        known = pc.if_else(pc.is_valid(rows["pass_rate"]), pa.array(ends), None)
        rows = rows.add_column(at, name, known)
    return rows


class PromptWeights(dict[str, float]):
    """Sampling weights by prompt id, between `floor` and 1."""

    def __init__(self, weights: Mapping[str, float], floor: float) -> None:
        super().__init__(weights)
        self.floor = floor

    def __missing__(self, prompt: str) -> float:
        """Return the weight of a prompt that no rollout answered."""
        return self.floor

    def of(self, dataset: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the weight of each row of a dataset with a column `prompt`."""
        return [self[prompt_id(row)] for row in dataset]


def prompt_weights(
    run: StoredRun | Sequence[StoredRun],
    power: float = 1.0,
    floor: float = 0.05,
    *,
    by: str = "reward",
    pass_at: float | None = None,
    **filters: Any,
) -> PromptWeights:
    """Return how often to sample each prompt next: (4 p (1 - p)) ** power, where p is its pass rate.

    Prompts that pass half of the time teach most and have weight 1. `floor`: the weight of prompts that always or
    never pass, or that were never seen, so that none is lost for good. Other arguments are those of `prompts_of`.
    """
    found = prompts_of(run, by, pass_at, **filters)
    if found.criterion.bound is None:
        raise RunError(str(found.criterion).replace("--pass-at", "pass_at="))
    rates = zip(found.table["prompt_id"].to_pylist(), found.table["pass_rate"].to_pylist(), strict=True)
    weights = {name: max(floor, (4 * rate * (1 - rate)) ** power) for name, rate in rates if rate is not None}
    return PromptWeights(weights, floor)
