"""What is recorded here is there, too: each file once, without training waiting, and whatever happens in between."""

import itertools
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from clock import clock  # noqa: F401 - a fixture
from mirrored import answers, batch, contents, recorded
from store_rig import until

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.remote import mirror as mirroring
from rollout_plugins.remote.folder_sync import Copying
from rollout_plugins.remote.folders import Folder, files_of, folder
from rollout_plugins.remote.mirror import Following, Mirror
from rollout_plugins.remote.url_places import place

pytestmark = pytest.mark.usefixtures("fast_mirror")


def test_a_run_is_there_as_it_is_here(tmp_path):
    run = recorded(tmp_path / "here", mirror=(tmp_path / "there").as_uri())
    assert contents(tmp_path / "there" / run.name) == contents(run)
    assert answers(tmp_path / "there" / run.name) == answers(run) != []
    assert not [path for path in (tmp_path / "there").rglob("*") if path.name.startswith(".")]


def test_any_filesystem_of_fsspec_will_do(tmp_path):
    run = recorded(tmp_path, mirror="memory://mirror/runs")
    copied = folder(place(f"memory://mirror/runs/{run.name}"))
    assert copied.sizes() == {file.name: file.size for file in files_of(run)}
    for name in copied.sizes():
        copied.fetch(name, tmp_path / "back" / name)
    assert contents(tmp_path / "back") == contents(run)


class Counted(Folder):
    """Notes what is sent."""

    def _send(self, file):
        self.log = [*getattr(self, "log", []), file.name]
        super()._send(file)


def test_each_file_is_sent_once_also_by_the_next_process(tmp_path):
    run = recorded(tmp_path / "here")
    target = Counted(place(tmp_path / "there"))
    first, second = Copying(run, target), Copying(run, target)
    assert first.send(first.pending())
    assert sorted(target.log) == sorted(file.name for file in files_of(run))
    assert first.pending() == []
    assert [file.name for file in Copying(run, target).pending()] == ["run.json"]  # it may have changed
    assert [file.name for file in second.pending()] != []  # it does not know, and so takes them for its own
    assert second.send(second.pending())


def test_a_run_file_that_changes_while_it_is_sent_is_sent_again_and_no_fault_of_the_place(tmp_path, monkeypatch):
    run, copy, grown = recorded(tmp_path / "here"), Folder._copy, []

    def changes(self, path, target):
        if path.name == "run.json" and len(grown) < 3:
            grown.append(path.write_text(path.read_text() + " "))
        copy(self, path, target)

    monkeypatch.setattr(Folder, "_copy", changes)
    copying = Copying(run, Folder(place(tmp_path / "there")))
    assert copying.send(copying.pending())
    for _ in range(3):
        assert [file.name for file in copying.pending()] == ["run.json"]
        assert copying.send(copying.pending())
    assert (copying.pending(), copying.failed, len(grown)) == ([], {}, 3)
    assert contents(tmp_path / "there") == contents(run)


def test_a_journal_that_a_killed_process_left_is_there_until_its_part_is(tmp_path):
    run = recorded(tmp_path / "here", steps=(1,))
    (part,) = run.glob("data/*/*.parquet")
    bytes_, journal = part.read_bytes(), part.with_suffix(".arrows")
    part.rename(journal)
    copying = Copying(run, Folder(place(tmp_path / "there")))
    copying.send(copying.pending())
    assert (tmp_path / "there" / journal.relative_to(run)).exists()
    journal.unlink()
    part.write_bytes(bytes_)
    copying.send(copying.pending())
    assert contents(tmp_path / "there") == contents(run)


def test_a_journal_that_arrives_after_its_part_does_not_stay(tmp_path):
    run = recorded(tmp_path / "here", steps=(1,))
    (part,) = run.glob("data/*/*.parquet")
    part.with_suffix(".arrows").write_bytes(part.read_bytes())
    copying = Copying(run, Folder(place(tmp_path / "there")))
    copying.send(copying.pending(everything=True)[::-1])
    part.with_suffix(".arrows").unlink()
    assert contents(tmp_path / "there") == contents(run)


def test_a_journal_that_became_a_part_on_its_way_does_not_stay(tmp_path, monkeypatch):
    run = recorded(tmp_path / "here", steps=(1,))
    (part,) = run.glob("data/*/*.parquet")
    journal, copy = part.with_suffix(".arrows"), Folder._copy
    journal.write_bytes(part.read_bytes())

    def became_a_part(self, path, target):
        copy(self, path, target)
        if path == journal:
            journal.unlink()

    monkeypatch.setattr(Folder, "_copy", became_a_part)
    copying = Copying(run, Folder(place(tmp_path / "there")))
    assert copying.send(copying.pending(everything=True))
    assert contents(tmp_path / "there") == contents(run)


def test_a_file_that_is_long_on_its_way_holds_up_none_after_it(tmp_path, monkeypatch):
    late, send = itertools.count(), Folder._send
    passed = [0.0]

    def slow(self, file):
        send(self, file)
        passed[0] += 3600.0 if next(late) == 0 else 0.0

    monkeypatch.setattr(mirroring, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    monkeypatch.setattr(Folder, "_send", slow)
    there = tmp_path / "there"
    options = {"run_id": "mine", "config": {"mirror": {"seal_seconds": 1e-9}}}
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(there), **options) as recorder:
        for step in (1, 2):
            recorder.record(step, batch(step))
            assert recorder.flush()
            until(lambda: len(list(there.rglob("*.parquet"))) == step)


def test_a_journal_gets_no_older_than_it_may(tmp_path):
    with RolloutRecorder(dir=tmp_path, mirror="memory://old", config={"mirror": {"seal_seconds": 1e-9}}) as recorder:
        for step in (1, 2, 3):
            recorder.record(step, batch(step))
        assert recorder.flush()
        run = Path(recorder.run.dir)
        assert len(list(run.glob("data/train/*.parquet"))) == 3
        assert not list(run.glob("data/train/*.arrows"))
    assert len(open_run(run)) == 12


def test_only_parts_that_are_safely_there_are_removed_here_and_the_run_says_where_they_are(tmp_path):
    there = tmp_path / "there"
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    run = recorded(tmp_path / "here", steps=range(1, 6), mirror=str(there), config=options)
    left = [path.name for path in run.glob("data/train/*.parquet")]
    assert left == ["001-00000-000004.parquet"]  # the next part is numbered after it
    assert answers(there / run.name) == [f"answer {step}.{n}" for step in range(1, 6) for n in range(4)]
    found = open_run(run)
    assert len(found) == 4
    ((what, where),) = found.health.damaged.items()
    assert what == "what was removed here (4 parts)"
    assert f"rollouts pull file://{there / run.name} {run.parent}" in where


def test_room_is_made_here_also_while_the_place_refuses_a_file(tmp_path, monkeypatch):
    send = Folder._send

    def refuses(self, file):
        if file.name == "run.json":
            raise OSError(28, "No space left on device")
        send(self, file)

    monkeypatch.setattr(Folder, "_send", refuses)
    options = {"run_id": "mine", "config": {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}, "end_seconds": 1}
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), **options) as recorder:
        for step in (1, 2):
            recorder.record(step, batch(step))
            assert recorder.flush()
        until((tmp_path / "here" / "mine" / ".moved.json").exists)


def test_what_the_mirror_does_not_have_stays(tmp_path, monkeypatch):
    def refuses(self, file):
        raise PermissionError("no")

    monkeypatch.setattr(Folder, "_send", refuses)
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    run = recorded(tmp_path / "here", range(1, 4), mirror=str(tmp_path / "there"), config=options, end_seconds=2)
    assert len(open_run(run)) == 12
    assert not open_run(run).health.damaged


def test_a_run_of_the_same_name_is_another_one_though_its_files_are_as_long(tmp_path):
    first, second = (recorded(tmp_path / name, [step], run_id="mine") for name, step in (("a", 1), ("b", 2)))
    one, other = (next(run.glob("data/train/*.parquet")).stat().st_size for run in (first, second))
    assert one == other
    there = Folder(place(tmp_path / "there"))
    for run, name in ((first, "mine"), (second, "mine-2"), (first, "mine")):
        copying = Copying.beside(run, there, 1, 0)
        assert copying.target.place.path.endswith(f"/there/{name}")
        assert copying.send(copying.pending())


def test_a_run_of_the_same_name_from_another_machine_is_not_mixed_in(tmp_path, caplog):
    there = tmp_path / "there"
    first = recorded(tmp_path / "a", mirror=str(there), run_id="mine")
    second = recorded(tmp_path / "b", steps=(7,), mirror=str(there), run_id="mine")
    assert contents(there / "mine") == contents(first)
    assert contents(there / "mine-2") == contents(second)
    assert "has another run that is called mine; this one is copied to mine-2" in caplog.text
    recorded(tmp_path / "b", steps=(8,), mirror=str(there), run_id="mine")
    assert contents(there / "mine-2") == contents(second)
    assert len(open_run(there / "mine-2")) == 8


def test_a_run_of_the_same_name_is_not_mixed_in_where_the_place_answers_late(tmp_path, monkeypatch):
    there, sizes = tmp_path / "there", Folder.sizes
    begun, asked = threading.Event(), threading.Event()

    def late(self):
        assert begun.wait(600)
        try:
            return sizes(self)
        finally:
            asked.set()

    first = recorded(tmp_path / "a", mirror=str(there), run_id="mine")
    monkeypatch.setattr(Folder, "sizes", late)
    with RolloutRecorder(dir=tmp_path / "b", mirror=str(there), run_id="mine") as recorder:
        recorder.record(7, batch(7))
        assert recorder.flush()
        begun.set()
        assert asked.wait(600)
    assert contents(there / "mine") == contents(first)
    assert contents(there / "mine-2") == contents(tmp_path / "b" / "mine")


def test_two_nodes_fill_one_folder(tmp_path):
    there = tmp_path / "there"
    options = {"mirror": str(there), "run_id": "mine", "world_size": 2}
    runs = [recorded(tmp_path / f"node{rank}", rank=rank, **options) for rank in (0, 1)]
    assert contents(there / "mine") == contents(runs[0]) | contents(runs[1])
    assert len(open_run(there / "mine")) == 16


@pytest.mark.slow
def test_processes_of_one_machine_take_turns(tmp_path):
    options = {"mirror": str(tmp_path / "there"), "run_id": "mine", "dir": tmp_path / "here", "world_size": 2}
    first, second = (RolloutRecorder(rank=rank, **options) for rank in (0, 1))
    for recorder in (first, second):
        recorder.record(1, batch(1))
    first.close()
    second.record(2, batch(2))
    second.close()
    assert contents(tmp_path / "there" / "mine") == contents(tmp_path / "here" / "mine")


def test_a_mirror_that_did_not_even_begin_in_time_says_so(tmp_path, monkeypatch, caplog, clock):  # noqa: F811
    goes_on, look = threading.Event(), Following._look
    monkeypatch.setattr(Following, "_look", lambda self, **how: goes_on.wait(600) and look(self, **how))
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), end_seconds=0.5) as recorder:
        recorder.record(1, batch(1))
        assert recorder.flush(600)
    until(lambda: recorder._pipeline._worker.is_idle)
    goes_on.set()
    assert "the mirror is not complete: " in caplog.text


def test_who_gives_up_on_a_slow_place_leaves_the_rest_to_another_process_of_the_run(tmp_path, monkeypatch):
    begun, asked, goes_on = threading.Event(), threading.Event(), threading.Event()
    send, turn_ends = Folder._send, Following._turn_ends

    def late(self, file):
        begun.set()
        goes_on.wait(600)
        send(self, file)

    def asks(self):
        try:
            return turn_ends(self)
        finally:
            asked.set()

    monkeypatch.setattr(Folder, "_send", late)
    monkeypatch.setattr(Following, "_turn_ends", asks)
    options = {"mirror": str(tmp_path / "there"), "run_id": "mine", "dir": tmp_path / "here", "world_size": 2}
    first = RolloutRecorder(rank=0, end_seconds=0.5, **options)
    first.record(1, batch(1))
    assert begun.wait(600)
    second = RolloutRecorder(rank=1, **options)
    second.record(1, batch(1))
    first.close()
    until(lambda: first._pipeline._worker.is_idle)
    with ThreadPoolExecutor(1) as closing:
        closed = closing.submit(second.close)
        assert asked.wait(600)
        goes_on.set()
        closed.result()
    assert contents(tmp_path / "there" / "mine") == contents(tmp_path / "here" / "mine")


def test_a_place_that_is_away_costs_training_nothing_and_is_told_of(tmp_path, monkeypatch, caplog, clock):  # noqa: F811
    away = threading.Event()
    send = Folder._send

    def sometimes(self, file):
        if away.is_set():
            raise ConnectionError("Connection refused")
        send(self, file)

    monkeypatch.setattr(Folder, "_send", sometimes)
    away.set()
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), end_seconds=2) as recorder:
        recorder.record(1, batch(1))
        recorder.flush()
        until(lambda: "does not take files: it cannot be reached" in caplog.text)
        recorder.record(2, batch(2))
        recorder.flush()
        behind = recorder.metrics()["rollouts/mirror/behind"]
        assert behind > 0
        run = Path(recorder.run.dir)
    until(lambda: "the mirror is not complete: 2 files" in caplog.text)
    assert f"rollouts push {run}" in caplog.text
    assert caplog.text.count("does not take files") == 1
    away.clear()
    again = RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), run_id=run.name)
    again.record(3, batch(3))
    again.close()
    assert contents(tmp_path / "there" / run.name) == contents(run)


def test_files_that_wait_are_counted_also_while_the_place_cannot_be_listed(tmp_path, monkeypatch):
    def refuses(self):
        raise OSError("AWS Error SLOW_DOWN")

    monkeypatch.setattr(Folder, "sizes", refuses)
    options = {"config": {"mirror": {"seal_seconds": 1e-9}}, "end_seconds": 1}
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), **options) as recorder:
        for step in itertools.count(1):
            recorder.record(step, batch(step))
            assert recorder.flush()
            if recorder.metrics().get("rollouts/mirror/behind", 0) >= 4:  # 0 is left out
                break


def test_each_thing_to_do_about_a_place_that_refuses_is_told_once(tmp_path, monkeypatch, caplog):
    says = ["SLOW_DOWN", "ExpiredToken: The token has expired", "SLOW_DOWN"]
    asked = []

    def refuses(self, file):
        asked.append(file)
        raise OSError(says[min((len(asked) - 1) // 2, 2)])

    monkeypatch.setattr(Folder, "_send", refuses)
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there"), end_seconds=2) as recorder:
        recorder.record(1, batch(1))
        until(lambda: len(asked) >= 6)
    told = [message for message in caplog.messages if "does not take files" in message]
    assert [("limits how often" in message, "have expired; renew" in message) for message in told] == [
        (True, False),
        (False, True),
    ]


def test_rollouts_that_nobody_searched_for_secrets_are_warned_of_once_or_refused(tmp_path, caplog):
    for _ in range(2):
        recorded(tmp_path, mirror="memory://once")
    assert caplog.text.count("rollouts are copied to memory://once unredacted") == 1
    with pytest.raises(SetupError, match="add 'redact' to plugins"):
        RolloutRecorder(dir=tmp_path, mirror="memory://never", config={"mirror": {"require_redact": True}})
    recorded(tmp_path, mirror="memory://x", plugins=["redact"], config={"mirror": {"require_redact": True}})
    assert "memory://x" not in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep_local": "much"}, "keep_local='much' is not a size such as '10GB'"),
        ({"seal_seconds": 0}, "seal_seconds=0 is not a number of seconds above 0"),
        ({"to": "nowhere://x/y"}, "no filesystem is known for nowhere://"),
    ],
)
def test_a_mistake_in_the_setup_is_said_before_training(options, said):
    with pytest.raises(SetupError, match=said):
        Mirror(**{"to": "memory://x", **options})


def test_a_directory_that_is_a_url_says_what_to_write_instead():
    with pytest.raises(SetupError, match="write mirror='s3://bucket/runs'"):
        RolloutRecorder(dir="s3://bucket/runs")


def test_a_folder_that_is_removed_meanwhile_breaks_nothing(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with RolloutRecorder(dir=tmp_path / "here", mirror=str(tmp_path / "there")) as recorder:
        recorder.record(1, batch(1))
        recorder.flush()
        for root, _, names in os.walk(recorder.run.dir, topdown=False):
            for name in names:
                Path(root, name).unlink()
        recorder.record(2, batch(2))
    assert len(open_run(tmp_path / "there")) >= 4
