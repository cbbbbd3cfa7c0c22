"""What is damaged is named, and hides nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import DamageWarning
from rollout_plugins.reading import small_files as small
from rollout_plugins.reading.runs import Runs, runs
from rollout_plugins.store import write as writing


def test_a_torn_journal_gives_every_whole_generation(tmp_path):
    live = writer(tmp_path)
    for step in range(1, 4):
        live.write("train", [one(step, 0)])
    live.sync()
    journal = next(tmp_path.rglob("*.arrows"))
    journal.write_bytes(journal.read_bytes()[:-40])
    assert ids(open_run(tmp_path).rollouts()) == ["1.0", "2.0"]


@pytest.mark.parametrize("junk", [bytes(500), b"junk" * 125], ids=["zeros", "junk"])
def test_a_journal_that_is_damaged_in_the_middle_gives_what_is_before_and_is_named(tmp_path, junk):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    live.sync()
    journal = next(tmp_path.rglob("*.arrows"))
    size = journal.stat().st_size
    live.write("train", [one(2, 0)])
    live.write("train", [one(3, 0)])
    live.sync()
    content = journal.read_bytes()
    journal.write_bytes(content[:size] + junk + content[size + len(junk) :])
    with pytest.warns(DamageWarning, match=f"from byte {size:,} on, cannot be read and is left out"):
        assert ids(open_run(tmp_path).rollouts()) == ["1.0"]


def test_an_empty_journal_is_not_damage_and_hides_nothing(tmp_path):
    folder = write(tmp_path, steps(1))
    (folder / "data" / "train" / "001-00000-000009.arrows").touch()
    stored = open_run(folder)
    assert (len(stored), stored.health.damaged) == (4, {})


def test_verify_names_a_damaged_journal_too(tmp_path):
    folder = write(tmp_path, steps(1))
    journal = folder / "data" / "train" / "001-00000-000009.arrows"
    journal.write_bytes(b"\xff\xff\xff\xff\x10\0\0\0" + b"no schema " * 10)
    stored = open_run(folder)
    stored.health.verify()
    assert list(stored.health.damaged) == [f"data/train/{journal.name}"]


def several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    return write(tmp_path, steps(3))


@pytest.mark.parametrize("bad", [b"", b"PAR1", b"no parquet at all", None])
def test_a_damaged_file_is_named_and_hides_nothing_else(tmp_path, monkeypatch, bad):
    folder = several_parts(tmp_path, monkeypatch)
    part = folder / "data" / "train" / "001-00000-000001.parquet"
    part.write_bytes(part.read_bytes()[:-30] if bad is None else bad)
    stored = open_run(folder)
    assert ids(stored.rollouts()) == ids([*steps(1), *(r for r in steps(3) if r.step == 3)])
    assert list(stored.health.damaged) == [f"data/train/{part.name}"]
    assert [row["step"] for row in stored.stats()] == [1, 3]


def test_damage_inside_a_file_is_found_where_it_is_read(tmp_path, monkeypatch):
    folder = several_parts(tmp_path, monkeypatch)
    part = folder / "data" / "train" / "001-00000-000001.parquet"
    data = bytearray(part.read_bytes())
    column = pq.ParquetFile(part).metadata.row_group(0)
    places = [column.column(n) for n in range(column.num_columns)]
    at = next(c for c in places if c.path_in_schema.startswith("completion.") and "content" in c.path_in_schema)
    for offset in range(
        at.dictionary_page_offset or at.data_page_offset, at.data_page_offset + at.total_compressed_size // 2
    ):
        data[offset] ^= 0xFF
    part.write_bytes(data)
    stored = open_run(folder)
    assert stored.steps == [1, 2, 3]
    assert {r.step for r in stored.rollouts()} == {1, 3}
    assert list(stored.health.damaged) == [f"data/train/{part.name}"]
    stored.refresh()
    assert ids(stored.rollouts(search="Answer 3")) == ["1.3", "3.3"]


def test_a_foreign_parquet_file_is_damage(tmp_path):
    folder = write(tmp_path, steps(1))
    foreign = {"id": ["x"], "step": ["one"]}
    pq.write_table(pa.table(foreign), folder / "data" / "train" / "001-00000-000005.parquet")
    stored = open_run(folder)
    assert stored.steps == [1]
    assert "step is string, not int64" in stored.health.damaged["data/train/001-00000-000005.parquet"]


def test_a_damaged_file_hides_none_of_its_name(tmp_path):
    """Neither in another split nor in another run."""
    made = [*steps(1), *(one(1, n, split="eval", id=f"e{n}") for n in range(4))]
    runs_of = [write(tmp_path / name / "rollouts", made, run=name) for name in ("a", "b", "c")]
    train, other = runs_of[1] / "data" / "train", runs_of[1] / "data" / "eval"
    (train / "001-00000-000000.parquet").write_bytes(b"PAR1")
    assert (other / "001-00000-000000.parquet").exists()
    three = runs(tmp_path)
    query = "select run_id, split, count(*) as n from rollouts group by all order by all"
    assert [tuple(row.values()) for row in three.sql(query).to_pylist()] == [
        ("a", "eval", 4), ("a", "train", 4), ("b", "eval", 4), ("c", "eval", 4), ("c", "train", 4)
    ]  # fmt: skip
    assert [list(run.health.damaged) for run in three] == [[], ["data/train/001-00000-000000.parquet"], []]
    assert len(open_run(runs_of[1])) == 4


def test_a_damaged_file_of_annotations_hides_none_of_its_name(tmp_path):
    folders = [write(tmp_path / name, steps(1), run=name) for name in "ab"]
    open_run(folders[0]).annotate("judge", [{"id": "r1.1.t1.0.0", "score": 1}])
    shutil.copytree(folders[0] / "annotations", folders[1] / "annotations")
    next((folders[0] / "annotations").rglob("*.parquet")).write_bytes(b"PAR1")
    both = [*runs(tmp_path / "a"), *runs(tmp_path / "b")]
    assert Runs(both).sql("select run_id, judge.score as s from rollouts where judge is not null").to_pylist() == [
        {"run_id": "b", "s": 1}
    ]


def test_one_damaged_file_of_many_small_ones_costs_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "MANY", 2)
    folder = several_parts(tmp_path, monkeypatch)
    (folder / "data" / "train" / "001-00000-000001.parquet").write_bytes(b"PAR1")
    stored = open_run(folder)
    assert (len(stored), len(list(stored.rollouts()))) == (8, 8)
    assert list(stored.health.damaged) == ["data/train/001-00000-000001.parquet"]


def test_of_a_damaged_parquet_file_and_its_journal_the_journal_is_read(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    journal = next(tmp_path.rglob("*.arrows"))
    journal.with_suffix(".parquet").write_bytes(b"torn")
    assert ids(open_run(tmp_path).rollouts()) == ["1.0"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"attempts": 3, "id": "x"}', '{"attempts": [7], "drops": []}'])
def test_a_damaged_run_file_costs_only_its_facts(tmp_path, text):
    folder = write(tmp_path, steps(1))
    (folder / "run.json").write_text(text)
    stored = open_run(folder)
    assert len(stored) == 4
    assert stored.health.drops == {}
    assert ("run.json" in stored.health.damaged) == (not text.startswith('{"'))
