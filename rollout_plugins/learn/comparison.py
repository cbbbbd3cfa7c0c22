"""Compare two runs, two steps or two evaluations on the prompts that both of them answered."""

# ruff: noqa: S608 - SQL is put together from constants
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.errors import need
from rollout_plugins.learn.passes import find_column, passes
from rollout_plugins.learn.prompt_ids import message_keys, tables_with_ids
from rollout_plugins.learn.statistics import Interval, bootstrap_mean, mcnemar

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: With fewer prompts than this, an interval over prompts is too narrow.
FEW = 10
#: Means of the same numbers in another order differ by rounding.
_SAME = 1e-9
_COLUMNS = ("id", "step", "marks", "completion")
_TYPICAL = "(case when isfinite(value) then abs(value - mean) else 'inf'::double end, -step, id)"
_SIDE = f"""
select prompt_id, count(*) as rollouts, any_value(mean) as value, arg_min(id, {_TYPICAL}) as id,
  count(*) filter (where isfinite(value)) as scored, count(*) filter (where not isfinite(value)) as odd,
  bool_and(coalesce(value in (0, 1), false)) as is_binary,
  arg_min(answer, {_TYPICAL}) as answer, list_sort(list(answer || ':' || coalesce(value::varchar, ''))) as answers
from (select *, avg(value) filter (where isfinite(value)) over (partition by prompt_id) as mean from {{side}})
group by prompt_id"""
_PAIRS = f"""
select a.prompt_id, a.value as value_a, b.value as value_b, b.value - a.value as change, a.rollouts as rollouts_a,
  b.rollouts as rollouts_b, a.id as id_a, b.id as id_b, a.scored as scored_a, b.scored as scored_b,
  a.is_binary and b.is_binary as is_binary, a.answer = b.answer as same_typical, a.answers = b.answers as is_same
from ({_SIDE.format(side="side_a")}) a join ({_SIDE.format(side="side_b")}) b using (prompt_id)"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed from A to B on the same prompts."""

    column: str
    """What was compared: `reward`, `reward/correct` or `judge.score`."""
    table: pa.Table
    """A row for each prompt in both, the most changed first: `value_a`, `value_b`, `change`, `id_a`, `id_b`, …"""
    prompts_a: int
    prompts_b: int
    odd_a: int
    """Values of A that are NaN or infinite, and so in no mean."""
    odd_b: int
    is_identical: bool
    """Whether both gave the same answers with the same values to the same prompts."""
    by_text: bool
    """Whether prompts were paired by content alone, since the dataset's row columns match nowhere."""
    value_a: float | None
    """Mean over the shared prompts with a value in both."""
    value_b: float | None
    change: Interval | None
    """Mean change with the 95 % interval of a bootstrap over prompts; None where no prompt has a value in both."""
    improved: int
    regressed: int
    mcnemar: float | None
    """The p-value of McNemar's exact test, where each prompt has one answer in both, right or wrong; else None."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def verdict(self) -> str:
        """What the numbers say, in words."""
        if self.is_identical:
            return "identical: the same answers with the same values"
        if self.change is None:
            return "no prompt has a value in both"
        if len(self) == 1:
            return "one prompt in both says nothing about others"
        is_clear = self.change.low > 0 or self.change.high < 0
        if self.mcnemar is not None:
            is_clear = self.mcnemar < 0.05
        better = "B is better" if self.change.value > 0 else "A is better"
        words = better if is_clear else "no difference beyond chance"
        few = f", though {len(self)} prompts are too few to be sure" if is_clear and len(self) < FEW else ""
        return words + few


def compare(
    a: StoredRun,
    b: StoredRun,
    by: str = "reward",
    pass_at: float | None = None,
    *,
    filters_a: Mapping[str, Any] | None = None,
    filters_b: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare what A and B gave on the same prompts.

    `by`: the column that is compared. `pass_at`: compare pass rates, a value of `pass_at` or more being a pass.
    `filters_a`, `filters_b`: as `run.rollouts` takes them, such as `{"step": 20}` and `{"step": 60}` for two steps.
    """
    column = find_column([a, b], by)
    chosen = ((a, filters_a or {}), (b, filters_b or {}))
    with duckdb.connect(":memory:") as database:
        database.execute("set enable_progress_bar = false")
        by_text = False
        pairs, counts = _pairs(database, [_side(run, column, pass_at, some) for run, some in chosen])
        if not pairs.num_rows:
            sides = [_side(run, column, pass_at, some, with_row=False) for run, some in chosen]
            pairs, counts = _pairs(database, sides)
            by_text = pairs.num_rows > 0
    known = pairs.filter(pc.is_valid(pairs["change"])).sort_by("prompt_id")  # the bootstrap draws by place
    changes = known["change"].to_numpy()
    changes = changes * (abs(changes) > _SAME)
    is_identical = counts[0][0] == counts[1][0] == pairs.num_rows > 0 and pc.all(pairs["is_same"]).as_py()
    return Comparison(
        column,
        _by_change(pairs),
        prompts_a=counts[0][0],
        prompts_b=counts[1][0],
        odd_a=counts[0][1],
        odd_b=counts[1][1],
        is_identical=bool(is_identical),
        by_text=by_text,
        value_a=pc.mean(known["value_a"]).as_py(),
        value_b=pc.mean(known["value_b"]).as_py(),
        change=bootstrap_mean(changes) if known.num_rows else None,
        improved=int((changes > 0).sum()),
        regressed=int((changes < 0).sum()),
        mcnemar=_mcnemar(known, changes),
    )


def _side(
    run: StoredRun, column: str, pass_at: float | None, filters: Mapping[str, Any], *, with_row: bool = True
) -> pa.Table:
    """Read the value and the hash of the answer of each rollout whose text is there."""
    wanted = list(dict.fromkeys([*_COLUMNS, column]))
    tables = []
    for table in tables_with_ids(run, wanted, with_row=with_row, **filters):
        values = table[column].cast(pa.float64())
        answers = pa.array([f"{hash(key):x}" for key in message_keys(table["completion"]).to_pylist()])
        made = table.select(["id", "step", "marks", "prompt_id"]).append_column("value", values)
        whole = pc.invert(pc.match_substring(pc.fill_null(table["marks"], ""), '"pruned":'))
        tables.append(made.append_column("answer", answers).filter(whole).drop_columns(["marks"]))
    names = {"id": pa.string(), "step": pa.int64(), "prompt_id": pa.string(), "answer": pa.string()}
    empty = pa.table({name: pa.array([], kind) for name, kind in {**names, "value": pa.float64()}.items()})
    found = pa.concat_tables([empty, *tables], promote_options="permissive")
    if pass_at is None:
        return found
    passed = passes(found["value"], pass_at).cast(pa.float64())
    return found.set_column(found.schema.get_field_index("value"), "value", passed)


def _pairs(database: Any, sides: Sequence[pa.Table]) -> tuple[pa.Table, list[tuple[int, int]]]:
    """Return the prompts in both, and of each side how many it has and how many odd values."""
    counts = []
    for name, side in zip(("side_a", "side_b"), sides, strict=True):
        database.register(name, side)
        query = f"select count(distinct prompt_id), count(*) filter (where not isfinite(value)) from {name}"
        counts.append(database.sql(query).fetchall()[0])
    return database.sql(_PAIRS).to_arrow_table(), counts


def _by_change(pairs: pa.Table) -> pa.Table:
    """Return the pairs, the most changed first, then those with other answers."""
    size = pc.fill_null(pc.abs(pairs["change"]), 0.0)
    size = pc.if_else(pc.less_equal(size, _SAME), 0.0, size)
    ordered = pairs.append_column("size", size).sort_by(
        [("size", "descending"), ("same_typical", "ascending"), ("prompt_id", "ascending")]
    )
    return ordered.drop_columns(["size"])


def _mcnemar(known: pa.Table, changes: Any) -> float | None:
    """Return the p-value where the test holds: each prompt has one answer on each side, with 0 or 1."""
    np: Any = need("numpy")
    single = all(pc.all(pc.equal(known[name], 1)).as_py() for name in ("rollouts_a", "rollouts_b"))
    if not known.num_rows or not single or not pc.all(known["is_binary"]).as_py():
        return None
    return mcnemar(int(np.sum(changes > 0)), int(np.sum(changes < 0)))
