"""The figures of a run come from sums in its parts' footers. They are those that its rollouts have."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import steps, write
from run_statistics import hostile, near, not_as_they_say, parts_of, plain, trained_again, two_ranks

from rollout_plugins import open_run
from rollout_plugins.reading import part_sums
from rollout_plugins.store import sums


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
