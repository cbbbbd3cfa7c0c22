"""A bucket of a hundred thousand objects: a run is opened, and mirrored into it, with no more questions than it takes.

The server is a stand-in, since moto needs minutes to list so many; the clients are the real ones.
"""

from threading import Event

import pytest
from mirrored import answers, batch, recorded
from pyarrow.fs import FileSelector
from s3_stand_in import s3_stand_in

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.errors import RunError
from rollout_plugins.remote import remote_reader as reading
from rollout_plugins.remote import url_places as places
from rollout_plugins.remote.url_places import place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_mirror")]
MANY = 100_000


@pytest.fixture
def s3(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    with s3_stand_in(monkeypatch, {"bucket/runs/other/run.json": b"{}"}) as server:
        yield server


def lists(s3):
    return [path for method, path in s3.asked if method == "GET" and "list-type=2" in path]


def sent(s3):
    return [path.partition("?")[0].removeprefix("/bucket/runs/") for method, path in s3.asked if method == "PUT"]


@pytest.fixture
def full(s3, tmp_path):
    """A run that is in the bucket, and a hundred thousand objects: pictures of the run, and parts of other ranks."""
    run = recorded(tmp_path / "here", steps=(1,), mirror="s3://bucket/runs", run_id="mine", rank=0, world_size=1000)
    (part,) = run.glob("data/*/*.parquet")
    folder = "bucket/runs/mine"
    ranks = {f"{folder}/data/train/001-{n:05d}-000000.parquet": part.read_bytes() for n in range(1, 1000)}
    pictures = {f"{folder}/media/{n:08x}.png": b"picture" for n in range(MANY - len(ranks))}
    for name, data in {**ranks, **pictures}.items():
        s3.objects[name] = data
    s3.asked.clear()
    return run


def test_a_run_is_opened_without_listing_its_pictures(full, s3):
    run = open_run("s3://bucket/runs/mine")
    assert len(run.files) == 1000
    assert len(lists(s3)) <= 4
    assert len(run) == 1000 * 4


def test_a_mirror_goes_on_with_the_run_after_one_listing(full, s3, tmp_path):
    before = dict(s3.objects)
    recorded(full.parent, steps=(2,), mirror="s3://bucket/runs", run_id="mine", rank=0, world_size=1000)
    assert len(lists(s3)) <= MANY // 1000 + 1
    assert [name for name in sent(s3) if name.startswith("mine/data")] == ["mine/data/train/002-00000-000000.parquet"]
    assert {name: s3.objects[name] for name in before if not name.endswith("run.json")}.items() <= before.items()
    assert len(open_run("s3://bucket/runs/mine")) == 1001 * 4


def test_a_slow_listing_is_waited_for_longer_than_a_file_and_training_waits_for_neither(
    s3, tmp_path, monkeypatch, caplog
):
    with monkeypatch.context() as hasty:
        hasty.setattr(places, "SECONDS", 1.0)
        for_files = place("s3://bucket/runs").arrow  # now: PyArrow makes no client while another one is asking
    s3.may_list.clear()
    with RolloutRecorder(dir=tmp_path, mirror="s3://bucket/runs", run_id="mine") as recorder:
        recorder.record(1, batch(1))
        assert recorder.flush()
        while not lists(s3):
            Event().wait(0.01)
        with pytest.raises(OSError, match="Operation too slow"):  # after the time that a file may take
            for_files.get_file_info(FileSelector("bucket/runs"))
        s3.may_list.set()
    assert answers("s3://bucket/runs/mine") == answers(tmp_path) != []
    assert "does not take files" not in caplog.text


def test_a_folder_of_more_folders_than_can_be_looked_through_is_refused(s3, monkeypatch):
    monkeypatch.setattr(reading, "MOST_FOLDERS", 100)
    for number in range(101):
        s3.objects[f"bucket/lake/{number}/file"] = b""
    with pytest.raises(RunError, match=r"s3://bucket/lake has more than 100 folders .* give the URL of a run"):
        open_run("s3://bucket/lake")
    assert len(lists(s3)) < 5
