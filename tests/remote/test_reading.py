"""A run at a URL reads as the same run on disk does, and no more of it comes here than is looked at."""

import random
import string
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pil
from store_rig import record, rollouts, run_in
from values import same

from rollout_plugins import Image, open_run, runs
from rollout_plugins.cli.main import main
from rollout_plugins.content.imaging import file_of
from rollout_plugins.errors import RunError
from rollout_plugins.store.write import RunWriter
from rollout_plugins.system.remote_runs import remote_reader


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def there(tmp_path):
    """A URL, and what lies there."""
    url = f"memory://bucket-{tmp_path.name}/runs"
    yield url
    fsspec.filesystem("memory").rm(url.rpartition("/")[0], recursive=True)


@pytest.fixture
def asked(monkeypatch):
    """The files that were asked for, and how many bytes of each."""
    from fsspec.implementations.memory import MemoryFileSystem

    seen = []

    def cat_file(self, path, start=None, end=None, **options):
        data = whole(self, path, start=start, end=end, **options)
        seen.append((path.rpartition("/")[2], len(data)))
        return data

    whole = MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    return seen


def put(folder, url):
    for path in Path(folder).rglob("*.*"):
        fsspec.filesystem("memory").pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def away(self, path, **options):
    raise ConnectionError("Connection reset by peer")


def large(count=2000):
    """Rollouts whose texts are most of what they are."""
    letters = random.Random(0)
    said = ["".join(letters.choices(string.printable, k=1500)) for _ in range(count)]
    made = rollouts(count)
    return [
        replace(one, completion=({"role": "assistant", "content": text},))
        for one, text in zip(made, said, strict=True)
    ]


def test_a_run_at_a_url_is_the_run_on_disk(tmp_path, there):
    here = record(tmp_path, rollouts(4), rollouts(4))
    here.annotate("judge", [{"id": rollout.id, "score": rollout.reward} for rollout in here])
    put(here.dir, f"{there}/r1")

    run = open_run(there)

    assert run.place == f"{there}/r1"
    assert repr(run).endswith(f"in {there}/r1>")
    assert run.files == [f"{there}/r1/{path.relative_to(here.dir).as_posix()}" for path in here.files]
    assert same(list(run), list(here))
    assert run.stats() == here.stats()
    assert run.columns == here.columns
    assert run.sql("select id, judge.score from rollouts order by id") == here.sql(
        "select id, judge.score from rollouts order by id"
    )
    assert [found.place for found in runs(there)] == [run.place]
    assert run.health.unreadable == []


def test_no_more_comes_than_a_question_needs_and_that_once(tmp_path, there, asked):
    here = record(tmp_path, large())
    put(here.dir, f"{there}/r1")
    size = sum(path.stat().st_size for path in here.files)

    run = open_run(there)
    assert sum(count for _, count in asked) < 10_000

    assert run.stats() == here.stats()
    numbers = sum(count for _, count in asked)
    assert numbers < size / 2
    assert run.get(here[7].id) == here[7]
    assert sum(count for _, count in asked) > numbers

    asked.clear()
    again = open_run(there)
    assert again.stats() == here.stats()
    assert again.get(here[7].id) == here[7]
    assert asked == []


def test_a_live_run_is_followed(tmp_path, there):
    writer = RunWriter(run_in(tmp_path))
    writer.write_run()
    writer.write("train", [replace(one, id=f"a{one.index}") for one in rollouts(2)])
    put(writer.dir, f"{there}/r1")
    run = open_run(there)
    assert len(run) == 2

    writer.close({"rollouts": 2, "drops": {"queue_full": 3}})
    fsspec.filesystem("memory").rm(f"{there}/r1", recursive=True)
    put(writer.dir, f"{there}/r1")
    assert len(run) == 2
    run.refresh()
    assert len(run) == 2
    assert run.health.drops == {"queue_full": 3}
    assert [file.rpartition(".")[2] for file in run.files] == ["parquet"]


def test_what_became_parquet_meanwhile_is_found_without_a_refresh(tmp_path, there):
    here = record(tmp_path, rollouts(4))
    put(here.dir, f"{there}/r1")
    run = open_run(there)
    name = here.files[0].name
    files = fsspec.filesystem("memory")
    folder = f"{there}/r1/data/train"
    files.mv(f"{folder}/{name}", f"{folder}/{name.replace('000000.', '000001.')}")

    assert same(list(run), list(here))
    assert not run.health.damaged


def test_many_ranks_that_write_to_one_place_are_one_run(tmp_path, there):
    for rank in range(3):
        writer = RunWriter(run_in(tmp_path / f"node{rank}", rank=rank, world_size=3))
        writer.write_run()
        writer.write("train", [replace(one, id=f"{rank}.{one.index}", rank=rank) for one in rollouts(2)])
        writer.close({"rollouts": 2, "drops": {"hook_error": 1}})
        put(writer.dir, f"{there}/r1")

    run = open_run(there)

    assert run.sql("select rank, count(*) from rollouts group by rank order by rank").to_pylist() == [
        {"rank": rank, "count_star()": 2} for rank in range(3)
    ]
    assert run.health.drops == {"hook_error": 3}
    assert len(runs(there)) == 1


def test_what_is_said_of_a_run_at_a_url_is_there_for_everyone(tmp_path, there, monkeypatch):
    put(record(tmp_path, rollouts(4)).dir, f"{there}/r1")
    run = open_run(there)
    ident = run[0].id

    assert run.annotate("judge", [{"id": ident, "score": 0.5}]) == 1
    assert run.get(ident).extra == {"judge.score": 0.5}

    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "another"))
    assert open_run(there).get(ident).extra == {"judge.score": 0.5}


def test_an_image_comes_when_it_is_looked_at_and_nothing_else_does(tmp_path, there, asked):
    folder = run_in(tmp_path).dir
    secret = f"{there}/secret.png"
    image = Image(hash="aa", path="media/aa.png", width=1, height=1)
    here = record(tmp_path, [replace(one, images=(image,)) for one in rollouts(1)])
    (here.dir / "media").mkdir()
    Pil.new("RGB", (1, 1)).save(here.dir / "media" / "aa.png")
    put(folder, f"{there}/r1")
    fsspec.filesystem("memory").pipe_file(secret, b"secret")

    run = open_run(f"{there}/r1")
    (found,) = run[0].images
    assert not (run.dir / "media").exists()
    assert file_of(found, run.dir).read_bytes() == (here.dir / "media" / "aa.png").read_bytes()
    assert file_of(replace(found, path="media/gone.png"), run.dir) is None
    assert file_of(replace(found, path="../secret.png"), run.dir) is None
    assert ("secret.png", 6) not in asked


def test_names_there_never_leave_the_folder_here(tmp_path, there, cache):
    put(record(tmp_path, rollouts(2)).dir, f"{there}/r1")
    files = fsspec.filesystem("memory")
    files.store[f"{files._strip_protocol(there)}/r1/data/../../../../x.json"] = files.store[
        f"{files._strip_protocol(there)}/r1/run.json"
    ]
    assert len(open_run(f"{there}/r1")) == 2
    assert list(tmp_path.rglob("x.json")) == []


def test_a_place_that_cannot_be_reached_is_an_error_and_no_damage(tmp_path, there, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    put(record(tmp_path, rollouts(4)).dir, f"{there}/r1")
    run = open_run(there)
    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "cat_file", away)
        for question in (lambda: len(run), lambda: run[0], run.health.verify):
            with pytest.raises(
                RunError, match=r"it cannot be reached; check the network \(Connection reset by peer\)"
            ):
                question()
    assert run.health.damaged == {}
    assert len(run) == 4


def test_a_damaged_file_is_named_and_costs_itself_alone(tmp_path, there):
    here = record(tmp_path, rollouts(4))
    put(here.dir, f"{there}/r1")
    fsspec.filesystem("memory").pipe_file(f"{there}/r1/data/train/001-00000-000007.parquet", b"not Parquet")

    run = open_run(there)
    with pytest.warns(match=f"{there}/r1: data/train/001-00000-000007.parquet cannot be read"):
        assert len(run) == 4


def test_a_url_without_a_run_says_so():
    with pytest.raises(RunError, match="there is nothing at memory://nothing/here; give a run's URL"):
        open_run("memory://nothing/here")


def test_sql_reaches_no_other_file(tmp_path, there, cache):
    put(record(tmp_path, rollouts(2)).dir, f"{there}/r1")
    run = open_run(there)
    for file in ("/etc/passwd", f"elsewhere://{cache}/other.parquet"):
        with pytest.raises(RunError, match="reaches outside the run"):
            run.sql(f"select * from read_text('{file}')")


def test_commands_take_a_url(tmp_path, there, capsys):
    put(record(tmp_path, rollouts(4)).dir, f"{there}/r1")
    assert main(["list", there]) == 0
    assert f"{there}/r1" in capsys.readouterr().out
    for words in (["stats"], ["show", "--limit", "1"], ["report", "-o", str(tmp_path / "report.html")]):
        assert main([words[0], there, *words[1:]]) == 0
    assert main(["sql", there, "select count(*) as n from rollouts"]) == 0
    assert capsys.readouterr().out.endswith("n\n4\n")


def test_the_doctor_reads_a_run_at_a_url_to_its_end(tmp_path, there, capsys):
    run = record(tmp_path / "run", rollouts(8))
    put(run.dir, f"{there}/mine")
    assert main(["doctor", there, "--offline"]) == 0
    said = capsys.readouterr().out
    assert f"\tok\t8 rollouts in {there}/mine" in said
    assert "write access" not in said
    (part,) = run.dir.glob("data/train/*.parquet")
    data, third = part.read_bytes(), part.stat().st_size // 3
    name = f"{there}/mine/data/train/{part.name}"
    fsspec.filesystem("memory").pipe_file(name, data[:third] + bytes(third) + data[2 * third :])
    assert main(["doctor", there, "--offline"]) == 3
    assert part.name in next(line for line in capsys.readouterr().out.splitlines() if "\tdamaged\t" in line)
    assert main(["doctor", f"{there}/nobody", "--offline"]) == 1
    assert f"runs\tfail\tthere is nothing at {there}/nobody" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_to_is_named_and_not_the_place(there, tmp_path, monkeypatch, capsys):
    put(record(tmp_path, rollouts(2)).dir, f"{there}/mine")
    monkeypatch.setenv("ROLLOUTS_CACHE", "/dev/null/cache")
    assert main(["stats", there]) == 1
    said = "/dev/null/cache cannot be written to: Not a directory; make room there, or set ROLLOUTS_CACHE to another"
    assert said in capsys.readouterr().err


def test_arrow_reads_the_files_at_a_url(tmp_path, there):
    """As Ray Data does: by PyArrow's filesystem, and the files' paths in it."""
    put(record(tmp_path, rollouts(4), rollouts(4)).dir, f"{there}/r1")
    filesystem, paths = remote_reader().arrow(list(map(str, open_run(f"{there}/r1").files)))
    assert sum(pq.read_table(path, filesystem=filesystem).num_rows for path in paths) == 8
