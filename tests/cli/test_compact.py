"""`rollouts compact`: fewer files, the same rollouts, at whatever moment it is killed."""

import shutil
from dataclasses import replace

import pytest
from store_rig import rollouts, run_in
from values import same

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.write import RunWriter
from rollout_plugins.system.file_locks import lock, unlock


def many(folder, *, ranks=2, parts=2, ended=True):
    """A run of several ranks, each with several parts in two splits."""
    for rank in range(ranks):
        writer = RunWriter(run_in(folder, rank=rank, world_size=ranks))
        writer.write_run()
        for part in range(parts):
            for split in ("train", "eval"):
                made = [
                    replace(
                        one, id=f"{split}{part}.{rank}.{one.index}", split=split, generation=part, step=part, rank=rank
                    )
                    for one in rollouts(2)
                ]
                writer.write(split, made)
                writer._seal(split)
        writer.write_run({"rollouts": 4 * parts}, ended=ended)
    return open_run(folder / "r1")


def test_a_compacted_run_is_the_same_run_in_fewer_files(tmp_path, capsys):
    run = many(tmp_path)
    run.annotate("judge", [{"id": one.id, "score": one.reward} for one in run])
    before, stats = list(run), run.stats()

    assert main(["compact", str(run.dir)]) == 0

    assert "8 files are now 2, with 16 rollouts" in capsys.readouterr().out
    run.refresh()
    assert same(list(run), before)
    assert run.stats() == stats
    assert run.health.unreadable == []
    assert len(list(run.dir.glob("data/*/*"))) == 2
    assert main(["compact", str(run.dir)]) == 0
    assert capsys.readouterr().out == "nothing to join: 16 rollouts in 2 files\n"
    assert same(list(open_run(run.dir)), before)


@pytest.mark.parametrize("moment", ["before it appears", "before the others are removed", "in the middle of removing"])
def test_a_kill_costs_nothing_and_counts_nothing_twice(tmp_path, moment):
    run = many(tmp_path)
    before, old = list(run), {path: path.read_bytes() for path in run.dir.glob("data/*/*")}
    assert main(["compact", str(run.dir)]) == 0
    if moment == "before it appears":
        for name in read_joined_parts(run.dir):
            (run.dir / name).unlink()
    for path in list(old)[:: 2 if moment.startswith("in the middle") else 1]:
        path.write_bytes(old[path])

    assert same(list(open_run(run.dir)), before)
    assert main(["compact", str(run.dir)]) == 0
    assert same(list(open_run(run.dir)), before)
    assert len(list(run.dir.glob("data/*/*"))) == 2


def test_parts_that_were_joined_twice_do_not_come_back(tmp_path):
    run = many(tmp_path)
    before, copy = list(run), tmp_path / "copy"
    shutil.copytree(run.dir, copy)
    assert main(["compact", str(run.dir)]) == 0
    writer = RunWriter(run_in(tmp_path, attempt=2))
    writer.write("train", [replace(one, id=f"new{one.index}", attempt=2, generation=9) for one in rollouts(2)])
    writer.close({"rollouts": 2})
    assert main(["compact", str(run.dir)]) == 0

    shutil.copytree(copy / "data", run.dir / "data", dirs_exist_ok=True)
    found = list(open_run(run.dir))
    assert len({one.id for one in found}) == len(found) == len(before) + 2


def test_what_may_still_be_written_is_left_alone(tmp_path, capsys):
    run = many(tmp_path, ended=False)
    assert main(["compact", str(run.dir)]) == 1
    assert "has not ended; if it was killed and nothing writes to it: --unended" in capsys.readouterr().err
    assert len(run.files) == 8
    assert main(["compact", str(run.dir), "--unended"]) == 0
    assert len(list(run.dir.glob("data/*/*"))) == 2


def test_a_damaged_part_stays_what_it_is(tmp_path, capsys):
    run = many(tmp_path)
    damaged = run.files[0]
    damaged.write_bytes(b"not Parquet")
    main(["compact", str(run.dir)])
    assert damaged.read_bytes() == b"not Parquet"
    assert "cannot be read and is left out" in capsys.readouterr().err
    assert len(open_run(run.dir)) == 14


def test_a_part_with_a_damaged_page_stays_and_the_others_are_joined(tmp_path, capsys):
    run = many(tmp_path)
    damaged = run.files[0]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100] + b"\xff" * 1000 + content[1100:])
    assert main(["compact", str(run.dir)]) == 0
    assert damaged.read_bytes()[:4] == b"PAR1"
    shown = capsys.readouterr()
    assert "8 files are now 3, with 14 rollouts" in shown.out
    assert f"data/eval/{damaged.name} cannot be read and is left out" in shown.err


def test_two_processes_do_not_compact_a_run_at_once(tmp_path, capsys):
    run = many(tmp_path)
    with (run.dir / ".compacting").open("ab") as other:
        assert lock(other)
        assert main(["compact", str(run.dir)]) == 1
        assert capsys.readouterr().err == f"rollouts: another process compacts {run.dir}; wait until it is done\n"
        unlock(other)
    assert main(["compact", str(run.dir)]) == 0
