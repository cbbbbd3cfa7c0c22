"""A file of rollouts that is gone is missed, whatever else the run holds."""

from __future__ import annotations

import pytest
from reading import one, writer

from rollout_plugins import open_run
from rollout_plugins.cli.main import main

LOST = "recorded rollouts are in no file that can be read"


def some(attempt=1, rank=0, count=4, split="train", **fields):
    names = (f"{split}{attempt}.{rank}.{index}" for index in range(count))
    return [
        one(1, index, attempt=attempt, rank=rank, split=split, id=name, **fields) for index, name in enumerate(names)
    ]


def ended(folder, attempt=1, rank=0, count=4, **facts):
    """What a process left that ended; returns the file of its rollouts."""
    live = writer(folder, attempt=attempt, rank=rank, **facts)
    live.write("train", some(attempt, rank, count))
    live.close({"rollouts": {"train": count}})
    return live.dir / "data" / "train" / f"{attempt:03d}-{rank:05d}-000000.parquet"


def killed(folder, attempt=1, rank=0, counts=None, **facts):
    """What a process left that was killed, with what it had recorded by then."""
    live = writer(folder, attempt=attempt, rank=rank, **facts)
    live.write_run(counts)
    live.write("train", some(attempt, rank, 40))
    live._seal("train")
    return live


@pytest.mark.parametrize("command", ["stats", "export", "doctor"])
def test_a_killed_attempt_does_not_make_up_for_a_lost_file(tmp_path, command, capsys):
    killed(tmp_path)
    ended(tmp_path, attempt=2).unlink()
    options = {"export": ["--to", "jsonl", "--out", str(tmp_path / "out")], "doctor": ["--offline"]}.get(command, [])
    assert main([command, str(tmp_path / "r1"), *options]) == 3
    shown = capsys.readouterr()
    assert f"4 of 4 {LOST}, of attempt 2, rank 0" in shown.out + shown.err


def test_a_killed_rank_does_not_make_up_for_the_file_of_another(tmp_path):
    killed(tmp_path, rank=0, world_size=2)
    ended(tmp_path, rank=1, world_size=2).unlink()
    assert open_run(tmp_path).health.unreadable == [f"4 of 4 {LOST}, of attempt 1, rank 1"]


def test_a_killed_attempt_that_recorded_evaluations_misses_theirs(tmp_path):
    live = killed(tmp_path, counts={"rollouts": {"train": 8, "eval": 4}})
    assert open_run(tmp_path).health.unreadable == [f"4 of 12 {LOST}"]
    live.write("eval", some(split="eval"))
    assert open_run(tmp_path).health.unreadable == []


def test_a_lost_file_of_a_killed_attempt_is_named_where_later_ones_are_there(tmp_path):
    live = killed(tmp_path)
    for step in (2, 3):
        live.write("train", [one(step, index) for index in range(4)])
        live._seal("train")
    lost = live.dir / "data" / "train" / "001-00000-000001.parquet"
    lost.unlink()
    assert open_run(tmp_path).health.unreadable == [
        "data/train/001-00000-000001 is missing with the rollouts in it, while later files of its process are there"
    ]


def test_what_was_joined_is_not_missed_and_counts_for_who_wrote_it(tmp_path, capsys):
    killed(tmp_path)
    ended(tmp_path, attempt=2)
    lost = ended(tmp_path, attempt=3)
    assert main(["compact", str(tmp_path / "r1"), "--unended"]) == 0
    assert not lost.exists()
    assert open_run(tmp_path).health.unreadable == []
    ended(tmp_path, attempt=4).unlink()
    assert open_run(tmp_path).health.unreadable == [f"4 of 12 {LOST}, of attempt 4, rank 0"]


def test_rollouts_that_name_another_attempt_or_rank_count_for_the_process_that_wrote_them(tmp_path):
    killed(tmp_path, attempt=2)
    live = writer(tmp_path)
    live.write("train", some(attempt=3, rank=2))
    live.close({"rollouts": {"train": 4}})
    assert open_run(tmp_path).health.unreadable == []


@pytest.mark.needs(part="shapes")
def test_a_lost_file_of_an_import_is_missed(tmp_path):
    from rollout_plugins.shapes.importing import import_rollouts

    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n' * 3)
    folder = import_rollouts("openai-jsonl", tmp_path / "chat.jsonl", tmp_path / "out").dir
    next(folder.glob("data/*/*.parquet")).unlink()
    assert open_run(folder).health.unreadable == [f"3 of 3 {LOST}"]
