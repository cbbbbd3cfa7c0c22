"""A run of many files keeps their sums together, so that opening it again costs no more than one of few files.

They count only while every file they are of is there as it was.
"""

import json
import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import one, steps, write, writer
from run_statistics import hostile, near, not_as_they_say, parts_of, plain, trained_again, two_ranks

from examples import thorough
from rollout_plugins import open_run
from rollout_plugins.reading import part_sums
from rollout_plugins.reading import small_files as small
from rollout_plugins.reading import sums_cache as gathered
from rollout_plugins.reading.merged_sums import spans
from rollout_plugins.store import sums
from rollout_plugins.store import write as writing
from rollout_plugins.store.schema import TYPES


@pytest.fixture(autouse=True)
def two_are_many(monkeypatch):
    monkeypatch.setattr(small, "MANY", 1)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)


@pytest.fixture
def no_part_is_opened(monkeypatch):
    def forbid():
        monkeypatch.setattr(part_sums, "_found", lambda path: pytest.fail(f"{path} was opened"))

    return forbid


def counted(folder):
    return [(row["step"], row["rollouts"]) for row in open_run(folder).stats()]


@pytest.mark.parametrize("make", [two_ranks, trained_again, not_as_they_say])
def test_the_figures_are_those_of_the_rollouts(make, tmp_path):
    folder = make(tmp_path)
    wanted = plain(open_run(folder))
    for _ in range(2):
        run = open_run(folder)
        for row, made in zip(run.stats(), wanted, strict=True):
            assert {name: near(value) for name, value in row.items()} == made
        assert len(run) == sum(row["rollouts"] for row in wanted)
        assert run.values("split") == sorted({row["split"] for row in wanted})
    assert (folder / gathered.FILE).exists() == (make is not not_as_they_say)


@pytest.mark.filterwarnings("error")
def test_a_run_that_was_opened_before_is_counted_without_opening_its_parts(tmp_path, no_part_is_opened):
    folder = write(tmp_path, steps(5))
    wanted = counted(folder)
    no_part_is_opened()
    assert counted(folder) == wanted == [(step, 4) for step in range(1, 6)]
    shutil.copytree(folder, tmp_path / "copy" / "r1")
    assert counted(tmp_path / "copy") == wanted


def test_a_run_that_several_threads_ask_at_once_is_opened_once(tmp_path, monkeypatch):
    folder, opened, real = write(tmp_path, steps(5)), Counter(), part_sums._found
    monkeypatch.setattr(part_sums, "_found", lambda path: opened.update([path]) or real(path))
    run, at_once = open_run(folder), Barrier(4)

    def ask(_):
        at_once.wait()
        return len(run)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [20] * 4
    assert list(opened.values()) == [1] * 5


def test_a_run_that_two_threads_open_as_it_grows_is_counted(tmp_path, monkeypatch):
    """A viewer's: one still opens the run as it was when the other has refreshed it."""
    live, made, generations = writer(tmp_path), steps(8), part_sums._generations
    for step in range(4):
        live.write("train", made[4 * step : 4 * step + 4])
    run = open_run(tmp_path)
    before = run.session
    before._sources = [before._source(*one) for one in before.damaged.items()]  # it has listed the files
    for step in range(4, 8):
        live.write("train", made[4 * step : 4 * step + 4])

    def meanwhile(*given):
        monkeypatch.setattr(part_sums, "_generations", generations)
        assert before.ask(lambda known: known.count(superseded=False)) == 16
        return generations(*given)

    run.refresh()
    monkeypatch.setattr(part_sums, "_generations", meanwhile)
    assert len(run) == 32
    for opened in (run, open_run(tmp_path)):
        assert [len(list(opened.rollouts(step=step))) for step in range(1, 9)] == [4] * 8


def test_parts_that_came_later_are_counted(tmp_path, monkeypatch):
    live = writer(tmp_path)
    made = [[one(step, index) for index in range(4)] for step in range(1, 9)]
    for step in made[:4]:
        live.write("train", step)
    run = open_run(tmp_path)
    assert [row["rollouts"] for row in run.stats()] == [4] * 4
    live.write("train", made[4])
    monkeypatch.setattr(writing, "SEAL_BYTES", 2**20)
    live.write("train", made[5])  # stays a journal
    for known in (run, open_run(tmp_path)):
        known.refresh()
        assert [row["rollouts"] for row in known.stats()] == [4] * 6
    live.close()
    run.refresh()
    assert ([row["rollouts"] for row in run.stats()], len(list(run))) == ([4] * 6, 24)


def test_groups_that_lie_in_parts_of_before_and_after_are_put_together(tmp_path):
    halves = [[hostile(step, index, rank=half) for step in (1, 2, 3) for index in range(12) if index // 6 == half]
              for half in (0, 1)]  # fmt: skip
    folder = parts_of(tmp_path, halves[0], world_size=2)
    open_run(folder).stats()
    parts_of(tmp_path, halves[1], rank=1, world_size=2)
    run = open_run(folder)
    for row, wanted in zip(run.stats(), plain(run), strict=True):
        assert {name: near(value) for name, value in row.items()} == wanted


def ranks_one_after_the_other(tmp_path, group_size, rank_of):
    """The run is opened after the first rank has written its parts, and again after the second has."""
    for rank in (0, 1):
        made = [
            hostile(step, index, rank=rank, group_size=group_size)
            for step in (1, 2, 3)
            for index in range(36)
            if rank_of(index // 4) in (rank, None)
        ]
        folder = parts_of(tmp_path, made, rank=rank, world_size=2)
        yield folder, plain(open_run(folder))


@pytest.mark.parametrize("rank_of", [lambda group: None, lambda group: None if group == 4 else group % 2])
def test_a_group_that_a_later_part_has_too_is_put_together(tmp_path, rank_of):
    """Though both parts say that they have all of it."""
    for folder, wanted in ranks_one_after_the_other(tmp_path, group_size=2, rank_of=rank_of):
        for row, made in zip(open_run(folder).stats(), wanted, strict=True):
            assert {name: near(value) for name, value in row.items()} == made


@pytest.mark.filterwarnings(
    "error", "ignore:.*of 2 ranks, rank 0 alone wrote here:rollout_plugins.errors.DamageWarning"
)
@pytest.mark.parametrize("groups_of_a_rank", [1, 2, 3])
def test_ranks_whose_groups_alternate_are_told_apart(tmp_path, monkeypatch, groups_of_a_rank):
    monkeypatch.setattr(part_sums, "_lines", lambda path: pytest.fail(f"the rows of {path} were read"))
    ranks = ranks_one_after_the_other(tmp_path, group_size=4, rank_of=lambda group: group // groups_of_a_rank % 2)
    for folder, wanted in ranks:
        for row, made in zip(open_run(folder).stats(), wanted, strict=True):
            assert {name: near(value) for name, value in row.items()} == made
        assert (folder / gathered.FILE).exists()


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
def test_a_part_that_is_damaged_or_gone_is_not_counted(tmp_path):
    folder = write(tmp_path, steps(5))
    assert len(open_run(folder)) == 20
    first, second = sorted(folder.glob("data/*/*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:-7])
    second.unlink()
    run = open_run(folder)
    assert counted(folder) == [(3, 4), (4, 4), (5, 4)]
    assert (len(run), list(run.health.damaged)) == (12, ["data/train/001-00000-000000.parquet"])


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
@pytest.mark.parametrize("asked", [{}, {"where": "reward > 0"}, {"step": "1-5", "order": "-reward"}])
@pytest.mark.parametrize("small_bytes", [0, 2**20])
def test_a_part_that_turns_out_to_be_damaged_is_named_and_no_longer_counted(tmp_path, monkeypatch, asked, small_bytes):
    monkeypatch.setattr(small, "SMALL_BYTES", small_bytes)
    folder = write(tmp_path, steps(5))
    assert len(open_run(folder)) == 20
    harm(folder / "data/train/001-00000-000002.parquet")
    run = open_run(folder)
    assert len(list(run.rollouts(**asked))) == 16
    assert (list(run.health.damaged), len(run)) == (["data/train/001-00000-000002.parquet"], 16)


def test_rewards_whose_sum_is_beyond_all_numbers_are_counted(tmp_path):
    huge = [one(step, index, reward=1.7e308 * (1 - 2 * (step % 2))) for step in range(1, 5) for index in range(4)]
    folder = write(tmp_path, huge)
    for _ in range(2):
        run = open_run(folder)
        assert (len(run), run.steps, run.values("step")) == (16, [1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: content.replace(b"-000001.parquet", b"-000007.parquet"),
        lambda content: b"{}\n" + content.partition(b"\n")[2],
        lambda content: b"[1]\n",
    ],
)
def test_what_was_half_written_or_changed_does_not_count(tmp_path, harm, no_part_is_opened):
    folder = write(tmp_path, steps(4))
    wanted = counted(folder)
    kept = folder / gathered.FILE
    kept.write_bytes(harm(kept.read_bytes()))
    assert counted(folder) == wanted
    no_part_is_opened()
    assert counted(folder) == wanted


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path):
    folder = write(tmp_path, steps(4))
    (folder / gathered.FILE).mkdir()  # where a file cannot be put; the tests may run as root, who may write everywhere
    assert counted(folder) == counted(folder) == [(step, 4) for step in range(1, 5)]
    assert not list(folder.glob(".*.tmp"))


def test_sums_of_parts_that_were_compacted_do_not_count(tmp_path):
    from rollout_plugins.cli.main import main

    folder = write(tmp_path, steps(6))
    wanted = counted(folder)
    assert main(["compact", str(folder)]) == 0
    assert counted(folder) == wanted
    assert len(list(folder.glob("data/*/*.parquet"))) == 1


@pytest.mark.needs(part="remote")
def test_they_stay_where_they_are(tmp_path):
    from rollout_plugins.cli.main import main

    folder = write(tmp_path, steps(4))
    assert len(open_run(folder)) == 16
    assert main(["push", str(folder), f"file://{tmp_path}/there"]) == 0
    assert not list((tmp_path / "there").rglob(gathered.FILE))
    assert len(open_run(f"file://{tmp_path}/there")) == 16


@pytest.mark.needs(part="remote")
def test_those_of_a_run_at_a_url_are_kept_here(tmp_path, monkeypatch, no_part_is_opened):
    import fsspec

    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    folder, there = write(tmp_path, steps(4)), fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}/r1"
    for path in folder.rglob("*.*"):
        there.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    assert counted(url) == [(step, 4) for step in range(1, 5)]
    there.rm_file(f"{url}/data/train/001-00000-000001.parquet")
    wanted = counted(url)
    no_part_is_opened()
    assert counted(url) == wanted == [(1, 4), (3, 4), (4, 4)]
    assert not there.exists(f"{url}/{gathered.FILE}")
    there.rm(f"memory://{tmp_path.name}", recursive=True)


def harm(part):
    """So that only its size and its time say that it is what it was."""
    about = part.stat()
    part.write_bytes(bytes(about.st_size))
    os.utime(part, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("asked", [{"step": 4}, {"step": "4"}, {"step": range(4, 5)}, {"generations": (4, 4)}])
def test_who_asks_for_a_step_reads_the_files_that_have_it(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(small, "SMALL_BYTES", 0)  # small ones would be read at once
    folder = write(tmp_path, steps(6))
    assert len(open_run(folder)) == 24
    for number in (1, 2, 4, 5):  # what columns there are is looked up in the first one
        harm(folder / f"data/train/001-00000-{number:06d}.parquet")
    run = open_run(folder)
    found = list(run.rollouts(**asked))
    assert [rollout.id for rollout in found] == [f"r1.1.t4.0.{index}" for index in range(4)]
    assert (run.count(**asked), list(run.siblings(found[3]))) == (4, found[2:])
    assert run.count(**asked, where="reward > 4") == 3


@pytest.mark.parametrize("make", [two_ranks, trained_again, not_as_they_say])
def test_a_step_is_found_wherever_it_is(make, tmp_path):
    folder = make(tmp_path)
    for _ in range(2):
        run = open_run(folder)
        made = list(run.rollouts(superseded=True))
        last = max(rollout.step for rollout in made if rollout.split == "train")
        for step, chosen in {1: {1}, 3: {3}, 9: set(), "last": {last}, "2-3": {2, 3}, "1,3": {1, 3}}.items():
            found = {rollout.id for rollout in run.rollouts(step=step, superseded=True)}
            assert found == {rollout.id for rollout in made if rollout.step in chosen}
            assert run.count(step=step, superseded=True) == len(found)
        for rollout in made:
            of = ("split", "attempt", "generation", "group")
            siblings = {one.id for one in made if all(getattr(one, name) == getattr(rollout, name) for name in of)}
            assert {one.id for one in run.siblings(rollout.id)} == siblings


def test_a_step_is_found_in_parts_that_came_later_or_were_made_anew(tmp_path):
    folder = write(tmp_path, steps(5))
    assert len(open_run(folder)) == 20
    parts = sorted(folder.glob("data/*/*.parquet"))
    parts[1].write_bytes(parts[4].read_bytes())  # has step 5 now, and no longer step 2
    os.utime(parts[1], (1, 1))
    write(tmp_path, [one(2, index, attempt=2) for index in range(4)], attempt=2)
    for _ in range(2):
        run = open_run(folder)
        assert [run.count(step=step) for step in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 8]


def test_sums_that_an_older_version_kept_do_not_say_where_a_step_is(tmp_path):
    folder = write(tmp_path, steps(5))
    wanted = counted(folder)
    listing, _, packed = (folder / gathered.FILE).read_bytes().partition(b"\n")
    older = json.dumps({name: noted[:2] for name, noted in json.loads(listing).items()}).encode()
    head = sums._HEAD.pack(gathered.checksum(older), *sums._HEAD.unpack_from(packed)[1:])
    (folder / gathered.FILE).write_bytes(older + b"\n" + head + packed[sums._HEAD.size :])
    run = open_run(folder)
    assert (counted(folder), [run.count(step=step) for step in (1, 5, 6)]) == (wanted, [4, 4, 0])


GROUPS = st.dictionaries(st.tuples(st.sampled_from((None, 7, 2**62)), st.integers(0, 7)), st.booleans(), max_size=9)


def summed(groups):
    """The sums of a part that has these groups, and whether it has all of each."""
    rows = [
        {"split": "train", "attempt": 1, "step": None, "generation": generation, "group": group, "group_size": 2}
        for (generation, group), is_whole in groups.items()
        for _ in range(1 + is_whole)
    ]
    table = pa.Table.from_pylist(rows, pa.schema([(name, TYPES[name]) for name in sums._NEEDED]))
    reward = table.column_names.index("reward")
    return sums.pack(sums.summands(table.set_column(reward, "reward", pa.array([1.0] * len(rows)))))


@thorough
@given(st.lists(GROUPS, min_size=1, max_size=4))
def test_groups_that_lie_in_two_parts_are_seen_and_spans_have_all_the_others(parts):
    found = spans(sums.unpack([summed(groups) for groups in parts]))
    is_shared = any(
        key in other
        for place, groups in enumerate(parts)
        for other in (*parts[:place], *parts[place + 1 :])
        for key, is_whole in groups.items()
        if is_whole
    )
    assert (found is None) == is_shared
    if found is not None:
        whole = {key for groups in parts for key in groups if groups[key]}
        starts = sorted(
            (generation or 0, group) for generation, group in whole if (generation, group - 1) not in whole
        )
        ends = sorted((generation or 0, group) for generation, group in whole if (generation, group + 1) not in whole)
        told = [
            [(row["generation"] or 0, row[name]) for row in found.to_pylist()]
            for name in ("first_group", "last_group")
        ]
        assert [sorted(told[0]), sorted(told[1])] == [starts, ends]
