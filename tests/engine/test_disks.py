"""Disks that fail: what it costs, and that somebody is told."""

import errno
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from faults import send, told
from PIL import Image
from store_rig import record, rollouts, started

from rollout_plugins import ToolCall, open_run
from rollout_plugins.store import write
from rollout_plugins.store.arrow_rollouts import to_batch


def noise(generation, size=50_000):
    """Rollouts that do not compress away."""
    return rollouts(4, columns={"number": generation, "pad": os.urandom(size).hex()})


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path):
    """A file that takes all the room there is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def remount(folder, how):
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


@pytest.mark.parametrize("outage", ["full", "read-only"])
def test_an_outage_of_the_disk_costs_its_records_and_says_so_once_at_each_end(small_disk, caplog, outage):
    ballast = small_disk / "ballast"
    line = started(small_disk)
    for step in range(3):
        send(line, noise(step), step)
    if outage == "full":
        fill(ballast)
    else:
        for shard in line._lifecycle.storage._writer._shards.values():
            shard.close()
            shard._fd = os.open(
                os.devnull, os.O_RDONLY
            )  # a file held open for writing keeps a disk from turning read-only
        remount(small_disk, "ro")
    for step in range(3, 8):
        send(line, noise(step), step)
    line.request_sync()
    assert line.drain(120)
    ballast.unlink() if outage == "full" else remount(small_disk, "rw")
    for step in range(8, 10):
        send(line, noise(step), step)
    line.close()
    run = open_run(small_disk)
    assert [r.columns["number"] for r in run.rollouts()] == [n for n in (0, 1, 2, 8, 9) for _ in range(4)]
    assert run.health.damaged == {}
    assert run.health.drops == {"store_failed": 20}
    assert len(told(caplog, "cannot write to")) == 1
    assert str(small_disk) in told(caplog, "cannot write to")[0]
    assert told(caplog, "works again")[0].endswith("20 rollouts were lost meanwhile")
    assert len(told(caplog, "")) == 2


def test_a_disk_that_is_full_to_the_last_byte_leaves_no_half_generation(small_disk):
    line = started(small_disk)
    for step in range(12):
        send(line, noise(step, 100_000), step)
    line.close()
    run = open_run(small_disk)
    numbers = [r.columns["number"] for r in run.rollouts()]
    assert 8 <= len(numbers) < 48
    assert all(numbers.count(number) == 4 for number in numbers)
    assert run.health.damaged == {}
    assert len(numbers) + line.counters.drops["store_failed"] == 48


def test_a_defect_of_ours_costs_only_the_rollouts_that_bring_it_out(tmp_path, monkeypatch, caplog):
    def defective(rollouts, lost):
        if any(rollout.columns.get("odd") for rollout in rollouts):
            raise KeyError("a secret")
        return to_batch(rollouts, lost)

    monkeypatch.setattr(write, "to_batch", defective)
    line = started(tmp_path)
    first, second, *others = noise(0)
    send(line, [first, replace(second, columns={"odd": True}), *others], 0)
    send(line, noise(1), 1)
    line.close()
    run = open_run(tmp_path)
    assert [r.columns["number"] for r in run.rollouts()] == [0] * 3 + [1] * 4
    assert run.health.drops == {"store_failed": 1}
    assert told(caplog, "1 of 4 rollouts are lost, because no row could be made of them (KeyError in defective)")
    assert "a secret" not in caplog.text


def test_a_filesystem_that_cannot_be_told_to_sync_keeps_everything_all_the_same(tmp_path, monkeypatch):
    def lacking(descriptor):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "fsync", lacking)
    line = started(tmp_path)
    send(line, noise(1), 1)
    line.request_sync()
    line.close()
    run = open_run(tmp_path)
    assert len(list(run.rollouts())) == 4
    assert run.health.drops == {}


def test_a_second_outage_is_told_and_counted_by_itself(small_disk, caplog):
    line = started(small_disk)
    for step, count in ((1, 2), (2, 3)):
        fill(small_disk / "ballast")
        for _ in range(count):
            send(line, noise(step), step)
        (small_disk / "ballast").unlink()
        send(line, noise(step), step)
    line.close()
    assert [re.search(r"(\d+) rollouts", text)[1] for text in told(caplog, "works again")] == ["8", "12"]
    assert len(open_run(small_disk)) == 8


def test_a_disk_that_is_read_only_from_the_start_costs_nothing_but_records(small_disk, caplog):
    remount(small_disk, "ro")
    line = started(small_disk)
    send(line, rollouts(), 1)
    remount(small_disk, "rw")
    send(line, rollouts(), 2)
    line.close()
    run = open_run(small_disk)
    assert len(run) == 4
    assert run.health.drops == {"store_failed": 4}
    assert len(told(caplog, "")) == 2


def test_a_folder_that_vanishes_is_made_again_and_recording_goes_on(tmp_path, caplog):
    line = started(tmp_path)
    send(line, rollouts(), 1)
    shutil.rmtree(tmp_path / "r1")
    send(line, rollouts(), 2)
    send(line, rollouts(), 3)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [2] * 4 + [3] * 4
    assert run.info.id == "r1"
    assert told(caplog, "") == []


def test_a_file_in_the_way_of_the_folder_is_an_outage_like_others(tmp_path, caplog):
    (tmp_path / "r1").write_text("x")
    line = started(tmp_path)
    send(line, rollouts(), 1)
    (tmp_path / "r1").unlink()
    send(line, rollouts(), 2)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [2] * 4
    assert line.counters.drops == {"store_failed": 4}
    assert len(told(caplog, "")) == 2


def test_two_pipelines_write_one_folder_without_harming_each_other(tmp_path):
    lines = [started(tmp_path) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda line: [send(line, rollouts(), n) for n in range(20)], lines))
    for line in lines:
        line.close()
    run = open_run(tmp_path)
    assert sorted(r.step for r in run.rollouts()) == sorted([*range(20)] * 8)
    assert run.health.damaged == {}


def test_a_clock_that_runs_backwards_changes_nothing(tmp_path, monkeypatch):
    line = started(tmp_path)
    now = [2e9]
    monkeypatch.setattr(time, "time", lambda: now.append(now[-1] - 3600) or now[-1])
    for step in range(3):
        send(line, rollouts(), step)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [n for n in range(3) for _ in range(4)]


class Unreadable(list):
    def __iter__(self):
        raise ValueError("no")

    __len__ = __iter__


def test_a_list_that_cannot_be_read_costs_itself_alone(tmp_path):
    made = rollouts(3)
    made[1] = replace(made[1], prompt=Unreadable(), tool_calls=(7,))
    run = record(tmp_path, made)
    assert [len(r.marks) for r in run.rollouts()] == [0, 2, 0]
    assert run.health.drops == {"unserialisable_field": 2}


def test_an_image_that_only_the_result_of_a_call_holds_is_kept(tmp_path):
    picture = Image.new("RGB", (2, 2))
    made = rollouts(2)
    made[1] = replace(made[1], tool_calls=(ToolCall(name="look", arguments={}, result=[{"image": picture}]),))
    run = record(tmp_path, made, plugins=("images",))
    assert (len(list(run.dir.glob("media/*"))), run.health.drops) == (1, {})
