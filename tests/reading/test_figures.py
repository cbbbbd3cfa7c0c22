"""The figures of a run come from sums in its parts' footers. They are those that its rollouts have."""

import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import called, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.reading import part_sums
from rollout_plugins.store import sums


def plain(run):
    """The same figures from every rollout, one after the other."""
    made = sorted(run, key=lambda r: (r.split == "eval", r.split, r.step is None, r.step))
    counts = {row["id"]: row for row in run.table(["id", "turns", "calls", "failed_calls"]).to_pylist()}
    return [
        _row(split, step, list(some), counts) for (split, step), some in groupby(made, lambda r: (r.split, r.step))
    ]


def _row(split, step, made, counts):
    real = [r.reward for r in made if r.reward is not None and not math.isnan(r.reward)]
    finite, tokens = [x for x in real if math.isfinite(x)], [r.completion_tokens for r in made]
    tokens = [n for n in tokens if n is not None]
    turns, calls, failed = ([counts[r.id][name] for r in made] for name in ("turns", "calls", "failed_calls"))
    groups = {}
    for r in made:
        if r.reward is not None and math.isfinite(r.reward):
            groups.setdefault((r.attempt, r.generation, r.group), []).append(r.reward)
    spreads = [pstdev(some) for some in groups.values() if len(some) > 1]
    given = {name: [v for r in made if (v := r.rewards.get(name)) is not None and not math.isnan(v)] for name in NAMES}
    return {
        "split": split,
        "step": step,
        "rollouts": len(made),
        "scored": len(real),
        "reward": sum(real) / len(real) if real else None,
        "reward_min": min(real, default=None),
        "reward_max": max(real, default=None),
        "reward_std": pstdev(finite) if finite else None,
        "not_finite": sum(any(map(_is_odd, [r.reward, *r.rewards.values()])) for r in made),
        "completion_tokens": fmean(tokens) if tokens else None,
        "completion_tokens_max": max(tokens, default=None),
        "truncated": sum(r.finish == "length" for r in made),
        "errors": sum(r.error is not None or r.finish == "error" for r in made),
        "turns": fmean(turns),
        "tool_calls": sum(calls),
        "tool_errors": sum(failed),
        **{f"reward/{name}": fmean(values) if values else None for name, values in given.items()},
        "group_std": fmean(spreads) if spreads else None,
        "groups": len(spreads),
        "flat_groups": sum(spread == 0 for spread in spreads),
    }


def _is_odd(value):
    return value is not None and not math.isfinite(value)


NAMES = ("correct", "format")


def hostile(step, index, **fields):
    """Rewards of every kind, some missing, in groups of four of which some are flat."""
    reward = (0.1, 0.1, 0.1, 0.1, 1e9, 1e9 + 1e-3, -3.5, None, math.nan, 2.0, math.inf, 0.3)[(5 * step + index) % 12]
    made = {
        "group": index // 4,
        "group_size": 4,
        "reward": reward,
        "rewards": {"correct": reward, "format": index / 3},
        "completion_tokens": None if index % 5 == 4 else 10 * index,
        "finish": ("stop", "length", "error", "unknown")[index % 4],
        "error": "it broke" if index % 7 == 6 else None,
        "tool_calls": (called("search"), called("search", "error"))[: index % 3],
    }
    return one(step, index, **{**made, **fields})


def parts_of(folder, made, **facts):
    """A part for each step."""
    for _, some in groupby(made, lambda rollout: rollout.step):
        run = write(folder, list(some), **facts)
    return run


def two_ranks(folder):
    """Each has half of a generation, and half of a group in the middle; what the second does last is a journal."""
    live = writer(folder, rank=1, world_size=2)
    for step in (1, 2, 3):
        first, second = (
            [hostile(step, index, rank=index // 6) for index in some] for some in (range(6), range(6, 12))
        )
        parts_of(folder, first, rank=0, world_size=2)
        live.write("train", second)
        last = [hostile(4, index, rank=1, split="eval", id=f"e{step}.{index}", generation=step) for index in range(6)]
        live.write("eval", [replace(rollout, step=None) for rollout in last])
    live.sync()
    return folder / "r1"


def trained_again(folder):
    """A resumed attempt did two steps again, and lost a rollout of a group."""
    parts_of(folder, [hostile(step, index) for step in (1, 2, 3) for index in range(8)])
    again = [hostile(step, index, attempt=2) for step in (2, 3, 4) for index in range(8) if (step, index) != (3, 5)]
    return parts_of(folder, again, attempt=2, resumed_from=1)


def not_as_they_say(folder):
    """Groups that look whole in each of two parts, and are the same group."""
    for rank in (0, 1):
        parts_of(folder, [hostile(step, n, rank=rank, group_size=2) for step in (1, 2) for n in range(8)], rank=rank)
    return folder / "r1"


def with_a_damaged_part(folder):
    run = parts_of(folder, [hostile(step, index) for step in range(1, 6) for index in range(8)])
    part = run / "data" / "train" / "001-00000-000001.parquet"
    part.write_bytes(part.read_bytes()[:-7])
    return run


def pruned(folder):
    from rollout_plugins.remote.pruning import prune

    run = parts_of(folder, [hostile(step, index) for step in range(1, 6) for index in range(8)])
    prune(open_run(run), "step > 3", progress=lambda *_: None)
    return run


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
@pytest.mark.parametrize(
    "make",
    [
        *(two_ranks, trained_again, not_as_they_say, with_a_damaged_part),
        pytest.param(pruned, marks=pytest.mark.needs(part="remote")),
    ],
)
def test_the_figures_are_those_of_the_rollouts(make, tmp_path):
    folder = make(tmp_path)
    run = open_run(folder)
    run.annotate("judge", [{"id": rollout.id, "split": "none", "reward": 9.0} for rollout in list(run)[::2]])
    quick, made = run.stats(), list(run)
    for row, wanted in zip(quick, plain(run), strict=True):
        assert {name: near(value) for name, value in row.items()} == wanted
    assert len(run) == len(made) == sum(row["rollouts"] for row in quick)
    assert run.steps == sorted({rollout.step for rollout in made if rollout.split == "train"})
    assert run.values("split") == sorted({rollout.split for rollout in made})
    for part in folder.glob("data/*/*.parquet"):  # as an older version wrote them
        without_sums(part)
    assert open_run(folder).stats() == quick


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True) if isinstance(value, float) else value


def without_sums(part: Path) -> None:
    try:
        table = pq.read_table(part, partitioning=None)
    except pa.ArrowInvalid:  # the damaged one
        return
    pq.write_table(table.replace_schema_metadata({"rollout_plugins.schema": "2"}), part)


def test_a_sealed_part_is_counted_without_reading_its_rows(tmp_path, monkeypatch):
    run = write(tmp_path, steps(3))
    monkeypatch.setattr(part_sums, "_lines", lambda path: pytest.fail(f"{path} was read"))
    assert [row["rollouts"] for row in open_run(run).stats()] == [4, 4, 4]


@pytest.mark.filterwarnings("error")
def test_ranks_whose_groups_alternate_are_counted_without_reading_their_rows(tmp_path, monkeypatch):
    """As in parts of many ranks that were compacted, where a generation begins in one and ends in the next."""
    for rank in (0, 1):
        made = [hostile(step, index, rank=rank) for step in (1, 2) for index in range(24) if index // 4 % 2 == rank]
        run = write(tmp_path, made, rank=rank, world_size=2)
    wanted = plain(open_run(run))
    monkeypatch.setattr(part_sums, "_lines", lambda path: pytest.fail(f"{path} was read"))
    for row, made in zip(open_run(run).stats(), wanted, strict=True):
        assert {name: near(value) for name, value in row.items()} == made


def test_groups_of_a_part_that_names_no_step_are_counted(tmp_path):
    run = write(tmp_path, [hostile(1, index) for index in range(8)])
    wanted = open_run(run).stats()
    (part,) = run.glob("data/*/*.parquet")
    table = pq.read_table(part, partitioning=None)
    nothing = pa.nulls(8, table.schema.field("step").type)
    pq.write_table(table.set_column(table.schema.get_field_index("step"), "step", nothing), part)
    assert open_run(run).stats() == [{**row, "step": None} for row in wanted]


def test_sums_that_were_copied_with_other_rows_do_not_count(tmp_path):
    """As by a person who filters a part and writes it again, with all that its footer says."""
    run = write(tmp_path, steps(3))
    (part,) = run.glob("data/*/*.parquet")
    table = pq.read_table(part, partitioning=None)
    kept = {sums.KEY: pq.read_metadata(part).metadata[sums.KEY]}
    pq.write_table(table.slice(0, 7).replace_schema_metadata(kept), part)
    assert sum(row["rollouts"] for row in open_run(run).stats()) == len(list(open_run(run))) == 7


def test_a_text_that_looks_like_sums_is_not_taken_for_them(tmp_path):
    forged = f"{sums.KEY.decode()}\x18\x10AAAAAAAAAAAAAAAA"
    run = write(tmp_path, [replace(r, finish=forged, error=forged) for r in steps(2)])
    for part in run.glob("data/*/*.parquet"):
        without_sums(part)
    assert [row["errors"] for row in open_run(run).stats()] == [4, 4]
