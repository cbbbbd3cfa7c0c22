"""Real engines over a run's files: `.ci/engines` installs them and runs this."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from s3_server import s3_server
from store_rig import rollouts, run_in

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.write import RunWriter


@pytest.fixture(scope="module", params=["ended", "killed", "unsealed", "in a bucket"])
def run(request, tmp_path_factory, bucket):
    """A run whose second attempt did step 2 again, with annotations."""
    folder = tmp_path_factory.mktemp("engines")
    for attempt, steps, resumed in ((1, (1, 2), None), (2, (2, 3), 1)):
        writer = RunWriter(run_in(folder, attempt=attempt, resumed_from=resumed))
        writer.write_run()
        for step in steps:
            made = rollouts(4, attempt=attempt, step=step, generation=step)
            writer.write("train", [_named(one, f"{attempt}.{step}.{one.index}") for one in made])
        if request.param in ("ended", "in a bucket") or (request.param, attempt) == ("killed", 1):
            writer.close({"rollouts": 8})
    place = folder / "r1"
    if request.param == "in a bucket":
        assert main(["push", str(folder / "r1"), bucket]) == 0
        place = f"{bucket}/r1"
    run = open_run(place)
    run.annotate("judge", [{"id": one.id, "score": one.reward + 1, "word": "yes"} for one in run])
    return run


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """moto's S3 over HTTP, which the engines reach through their own clients."""
    with pytest.MonkeyPatch.context() as monkeypatch, s3_server(monkeypatch) as server:
        monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path_factory.mktemp("cache")))
        server.make_bucket("bucket")
        yield "s3://bucket/runs"


def _named(rollout, ident):
    from dataclasses import replace

    return replace(rollout, id=ident)


@pytest.fixture(scope="module")
def ray(bucket):
    """Its workers have the bucket's keys in their environment, as those of a cluster have."""
    import ray

    path = os.pathsep.join(filter(None, sys.path))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield ray
    ray.shutdown()


def expected(run):
    return sorted((one.id, one.reward, one.extra["judge.score"], one.extra["judge.word"]) for one in run)


def test_ray_has_the_rollouts_with_annotations_and_none_that_was_done_again(run, ray):
    rows = run.dataset("ray").take_all()
    assert sorted((row["id"], row["reward"], row["judge.score"], row["judge.word"]) for row in rows) == expected(run)
    assert rows[0]["completion"][0]["content"] == "hi"


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_spark_has_the_same(run, spark):
    if run.place.startswith("s3://"):  # this Spark is as `pip` installs it
        with pytest.raises(RunError, match=r"org[.]apache[.]hadoop:hadoop-aws for s3a"):
            run.dataset("spark", spark)
        return
    found = run.dataset("spark", spark).select("id", "reward", "`judge.score`", "`judge.word`", "completion").collect()
    assert sorted(tuple(row[:4]) for row in found) == expected(run)
    assert found[0]["completion"][0]["content"] == "hi"


def test_daft_has_the_same(run):
    found = run.dataset("daft").select("id", "reward", "judge.score", "judge.word", "completion").to_pylist()
    assert sorted((row["id"], row["reward"], row["judge.score"], row["judge.word"]) for row in found) == expected(run)
    assert found[0]["completion"][0]["content"] == "hi"


def words(table):
    return [len(messages[0]["content"]) for messages in table["completion"].to_pylist()]


def test_the_same_function_writes_the_same_annotations_with_ray_as_here(run, ray):
    assert run.annotate_by("here", words, columns=["completion"]) == 16
    assert run.annotate_by("ray", words, columns=["completion"], ray="local") == 16
    assert run.count(where="here.value = ray.value and here.value = 2") == len(run) == 12


@pytest.fixture
def damaged(tmp_path):
    """A run with a part that is whole, one that lost its end, one whose pages are damaged, and a damaged journal."""
    for attempt in (1, 2, 3, 4):
        writer = RunWriter(run_in(tmp_path, attempt=attempt))
        writer.write_run()
        writer.write("train", [_named(one, f"{attempt}.{one.index}") for one in rollouts(4, attempt=attempt)])
        if attempt < 4:
            writer.close({"rollouts": 4})
    _, cut, broken, journal = sorted((tmp_path / "r1" / "data" / "train").iterdir())
    cut.write_bytes(cut.read_bytes()[:1000])
    broken.write_bytes(broken.read_bytes()[:100] + b"\xff" * 1000 + broken.read_bytes()[1100:])
    journal.write_bytes(b"\xff\xff\xff\xff\x10\0\0\0" + b"no schema " * 10)
    return tmp_path / "r1"


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
def test_what_is_damaged_is_left_out_by_every_engine(damaged, ray, spark):
    run = open_run(damaged)
    run.health.verify()
    assert len(run.health.damaged) == 3
    ids = sorted(one.id for one in run)
    assert ids == [f"1.{number}" for number in range(4)]
    assert sorted(row["id"] for row in run.dataset("ray").take_all()) == ids
    assert sorted(row.id for row in run.dataset("spark", spark).collect()) == ids
    assert sorted(row["id"] for row in run.dataset("daft").to_pylist()) == ids


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
@pytest.mark.parametrize("how", [(), ("--ray", "local")])
def test_a_function_is_not_given_what_is_damaged_here_or_on_ray(damaged, ray, how, capfd):
    words = ["annotate", str(damaged), "--producer", "p", "--by", f"{__name__}:words", "--columns", "completion"]
    assert main([*words, *how]) == 0
    shown = capfd.readouterr()
    assert "4 rows; the columns of p are now p.value" in shown.out
    assert shown.err.count("cannot be read and is left out") == 3
    assert "Traceback" not in shown.err


def wrong(table):
    raise ValueError("no such word")


@pytest.mark.parametrize("how", [(), ("--ray", "local")])
def test_an_error_of_the_function_is_one_line_here_and_on_ray(run, ray, how, capfd):
    words = ["annotate", str(run.place), "--producer", "p", "--by", f"{__name__}:wrong", "--columns", "completion"]
    assert main([*words, *how]) == 1
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("rollouts: the function raised ValueError('no such word') at engines.py:")


def test_files_of_version_1_are_read_beside_a_journal(tmp_path, ray, spark):
    run = open_run(shutil.copytree(Path(__file__).parent / "version_1", tmp_path / "r1"))
    ids = sorted(one.id for one in run)
    assert {part.path.suffix for part in find_parts(run.dir)} == {".parquet", ".arrows"}
    assert sorted(row["id"] for row in run.dataset("ray").take_all()) == ids
    assert sorted(row.id for row in run.dataset("spark", spark).collect()) == ids
    assert sorted(row["id"] for row in run.dataset("daft").to_pylist()) == ids


class Actor:
    """A process of a loop that Ray started: nothing in its environment says which one it is."""

    def __init__(self, folder, place):
        from rollout_plugins import RolloutRecorder

        self.recorder = RolloutRecorder(dir=folder, run_id="exp", **place)

    def record(self, name):
        for step in (1, 2, 3):
            said = [{"role": "assistant", "content": f"{name} at {step}, {n}"} for n in range(2)]
            self.recorder.record(step, [{"prompt": "who are you?", "completion": [one]} for one in said])
        self.recorder.close()
        return os.environ.get("RANK")


@pytest.mark.parametrize("are_numbered", [False, True])
def test_two_actors_of_ray_that_share_a_run_never_share_an_id(tmp_path, ray, are_numbered):
    places = [{"rank": n, "world_size": 2} if are_numbered else {} for n in range(2)]
    actors = [ray.remote(Actor).remote(tmp_path, place) for place in places]
    assert ray.get([actor.record.remote(f"actor {n}") for n, actor in enumerate(actors)]) == [None, None]
    stored = list(open_run(tmp_path / "exp"))
    said = sorted(one.completion[0]["content"] for one in stored)
    assert said == sorted(f"actor {a} at {step}, {n}" for a in range(2) for step in (1, 2, 3) for n in range(2))
    assert len({one.id for one in stored}) == len(stored) == 12
    assert {(one.attempt, one.rank) for one in stored} == ({(1, 0), (1, 1)} if are_numbered else {(1, 0), (2, 0)})
