"""The files of a run: a journal that becomes Parquet, attempts and ranks side by side, tears and strangers."""

import math
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_rig import rollouts, run_in
from values import Evil, deep, same

from rollout_plugins import Placeholder, open_run
from rollout_plugins.errors import DamageWarning
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.store.write import RunWriter


def generation(number, count=4):
    return [replace(r, id=f"{number}.{i}", generation=number, step=number) for i, r in enumerate(rollouts(count))]


def names(folder):
    return sorted(path.name for path in (folder / "r1" / "data").glob("*/*"))


def test_a_run_is_a_journal_while_it_lives_and_parquet_afterwards(tmp_path):
    writer = RunWriter(run_in(tmp_path))
    writer.write_run()
    for number in range(5):
        writer.write("train", generation(number))
        assert len(open_run(tmp_path)) == 4 * (number + 1)
    assert names(tmp_path) == ["001-00000-000000.arrows"]
    writer.close()
    assert names(tmp_path) == ["001-00000-000000.parquet"]
    assert len(open_run(tmp_path)) == 20


def test_a_long_run_of_tiny_steps_stays_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.store.write.SEAL_BYTES", 200_000)
    writer = RunWriter(run_in(tmp_path))
    for number in range(200):
        writer.write("train", generation(number))
    live = names(tmp_path)
    assert sum(name.endswith(".arrows") for name in live) <= 1
    assert 1 < len(live) < 20
    writer.close()
    assert all(name.endswith(".parquet") for name in names(tmp_path))
    run = open_run(tmp_path)
    assert [r.id for r in run.rollouts()] == [f"{n}.{i}" for n in range(200) for i in range(4)]
    assert run.health.damaged == {}


def test_a_large_generation_is_written_and_sealed_in_pieces_and_comes_back_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.store.write.PIECE_BYTES", 3000)
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0, 40))
    writer.write("train", generation(1, 40))
    (journal,) = (tmp_path / "r1" / "data" / "train").iterdir()
    with pa.OSFile(str(journal)) as source, pa.ipc.open_stream(source) as stream:
        sizes = [batch.num_rows for batch in stream]
    assert sum(sizes) == 80
    assert max(sizes) < 20
    before = list(open_run(tmp_path).rollouts())
    writer.close()
    assert pq.read_metadata(journal.with_suffix(".parquet")).num_row_groups > 4
    assert same(list(open_run(tmp_path).rollouts()), before)
    assert [rollout.id for rollout in before] == [f"{n}.{i}" for n in range(2) for i in range(40)]


def test_of_a_large_generation_that_the_disk_refuses_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.store.write.PIECE_BYTES", 3000)
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0))
    real, calls = os.write, []

    def write(fd, data):
        calls.append(len(data))
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            writer.write("train", generation(1, 40))
    assert len(calls) == 4
    writer.write("train", generation(2))
    writer.close()
    run = open_run(tmp_path)
    assert [rollout.step for rollout in run.rollouts()] == [0] * 4 + [2] * 4
    assert run.health.damaged == {}


@pytest.mark.parametrize(
    "kept_bytes", ["all but one", "half of the last batch", "header alone", "half a header", "none"]
)
def test_a_torn_journal_is_read_up_to_the_tear(tmp_path, kept_bytes):
    writer = RunWriter(run_in(tmp_path))
    writer.write_run()
    sizes = []
    for number in range(3):
        writer.write("train", generation(number))
        sizes.append(writer._shards["train"].bytes)
    journal = tmp_path / "r1" / "data" / "train" / "001-00000-000000.arrows"
    data = journal.read_bytes()
    header = len(SCHEMA.serialize())
    left = {
        "all but one": sizes[2] - 1,
        "half of the last batch": (sizes[1] + sizes[2]) // 2,
        "header alone": header,
        "half a header": header // 2,
        "none": 0,
    }[kept_bytes]
    journal.write_bytes(data[:left])
    run = open_run(tmp_path)
    assert len(run) == (8 if left > sizes[1] else 0)
    assert run.health.damaged == {}


def test_of_a_journal_and_its_parquet_file_the_parquet_file_counts(tmp_path):
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0))
    journal = tmp_path / "r1" / "data" / "train" / "001-00000-000000.arrows"
    data = journal.read_bytes()
    writer.close()
    journal.write_bytes(data)
    assert [r.id for r in open_run(tmp_path).rollouts()] == ["0.0", "0.1", "0.2", "0.3"]


def test_a_journal_that_cannot_be_read_whole_is_not_replaced(tmp_path):
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0))
    first = writer._shards["train"].bytes
    writer.write("train", generation(1))
    journal = tmp_path / "r1" / "data" / "train" / "001-00000-000000.arrows"
    with journal.open("r+b") as file:
        file.seek(first)
        file.write(b"\x07" * 64)
    writer.close()
    assert names(tmp_path) == [journal.name]
    run = open_run(tmp_path)
    with pytest.warns(DamageWarning, match=f"from byte {first:,} on, cannot be read"):
        assert [r.id for r in run.rollouts()] == ["0.0", "0.1", "0.2", "0.3"]


def test_a_parquet_file_that_was_never_finished_is_ignored(tmp_path):
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0))
    (tmp_path / "r1" / "data" / "train" / ".001-00000-000000.parquet.7-7.tmp").write_bytes(b"PAR1")
    assert len(open_run(tmp_path)) == 4


def test_an_attempt_starts_files_of_its_own_beside_what_is_there(tmp_path):
    for attempt in (1, 2):
        writer = RunWriter(run_in(tmp_path, attempt=attempt, resumed_from=0 if attempt == 2 else None))
        writer.write_run()
        writer.write("train", [replace(r, attempt=attempt) for r in generation(attempt)])
    RunWriter(run_in(tmp_path, attempt=2)).write("eval", generation(5))
    again = RunWriter(run_in(tmp_path, attempt=2, resumed_from=0))
    again.write("train", [replace(r, attempt=2) for r in generation(3)])
    assert names(tmp_path) == [f"00{n}.arrows" for n in ()] + [
        "001-00000-000000.arrows",
        "002-00000-000000.arrows",
        "002-00000-000000.arrows",
        "002-00000-000001.arrows",
    ]


def test_strange_files_beside_ours_do_no_harm(tmp_path):
    folder = tmp_path / "r1" / "data" / "train"
    folder.mkdir(parents=True)
    for name in ("001-00000-x.parquet", "001-00000-.arrows", "notes.txt", "001-00000-٣.arrows"):
        (folder / name).write_text("x")
    (tmp_path / "r1" / "run.json").write_text('{"attempts": [1, null, {"attempt": "x"}]}')
    writer = RunWriter(run_in(tmp_path))
    writer.write("train", generation(0))
    writer.close()
    assert "001-00000-000000.parquet" in names(tmp_path)
    assert len(open_run(tmp_path)) == 4


def test_ranks_write_files_of_their_own_and_merge_by_lying_in_one_folder(tmp_path):
    for rank in range(3):
        writer = RunWriter(run_in(tmp_path, rank=rank, world_size=3))
        writer.write("train", [replace(r, id=f"{rank}.{r.id}", rank=rank, index=rank) for r in generation(0, 1)])
        writer.close({"drops": {"queue_full": rank}})
    run = open_run(tmp_path)
    assert [r.rank for r in run.rollouts()] == [0, 1, 2]
    assert run.health.drops == {"queue_full": 3}


def test_facts_of_a_run_come_back_whatever_they_hold(tmp_path):
    facts = {"settings": {"nan": math.nan, "t": (1,), "\ud800": Evil(), "f": deep}, "chat_template": "\ud800 {{ m }}"}
    tools = ({"name": "f", "parameters": {"$ref": "#"}},)
    writer = RunWriter(run_in(tmp_path, tools=tools, versions={"trl": "1"}, **facts))
    writer.close()
    info = open_run(tmp_path).info
    assert info.tools == tools
    assert info.chat_template == facts["chat_template"]
    assert same(info.settings["t"], (1,))
    assert isinstance(info.settings["f"], Placeholder)
