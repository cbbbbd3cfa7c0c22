"""Pages of what a question found: what the viewer reads a run through."""

import gc
from itertools import islice

import pyarrow as pa
import pytest
from reading import called, ids, one, steps, write, writer
from rollout_hookspecs import Image
from store_rig import until

from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.reading import row_reader as rows
from rollout_plugins.store import write as writing


@pytest.fixture
def run(tmp_path):
    return open_run(write(tmp_path, steps(6, size=4)))


def test_any_page_can_be_read_in_any_order(run):
    found = run.rollouts(order="-reward")
    assert len(found) == 24
    assert ids(found.page(20, 10)) == ids(run.rollouts(order="-reward"))[20:]
    assert ids(found.page(3, 2)) == ids(run.rollouts(order="-reward"))[3:5]
    assert (
        found.page(1, 2).rows(["id", "reward"])
        == [{"id": rollout.id, "reward": rollout.reward} for rollout in run.rollouts(order="-reward")][1:3]
    )


def test_it_knows_where_a_rollout_stands(run):
    found = run.rollouts(order="-reward", where="step > 2")
    third = list(found)[2]
    assert found.position(third.id) == 2
    assert found.position("r1.1.t1.0.0") is None
    assert run.rollouts(step=99).position(third.id) is None


def test_what_several_questions_found_is_put_in_the_order_of_another(run):
    pieces = [run.rollouts(step=step, where="index = 1") for step in (1, 4, 6)]
    assert ids(run.rollouts(order="-step").among(pieces)) == ["6.1", "4.1", "1.1"]
    assert len(run.rollouts().among([])) == 0


def test_annotations_are_columns_of_a_page(run):
    run.annotate("judge", [{"id": "r1.1.t2.0.1", "score": 0.25}])
    found = run.rollouts(step=2)
    assert [row["judge.score"] for row in found.rows(["judge.score"])] == [None, 0.25, None, None]
    assert [rollout.extra for rollout in found.page(1, 1)] == [{"judge.score": 0.25}]


def test_it_stays_what_it_was_when_the_run_grows(tmp_path):
    run = open_run(write(tmp_path, steps(2)))
    found = run.rollouts()
    write(tmp_path, steps(3, attempt=2))
    run.refresh()
    assert len(found) == len(list(found)) == 8


@pytest.mark.filterwarnings("ignore::rollout_plugins.errors.DamageWarning")
def test_it_stays_what_it_was_when_a_file_turns_out_to_be_gone(tmp_path, monkeypatch):
    """As when the run is compacted or pruned: the others are opened anew, and a journal may be Parquet by then."""
    live = writer(tmp_path)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    for step in (1, 2):
        live.write("train", steps(2)[4 * step - 4 : 4 * step])
    monkeypatch.undo()
    live.write("train", steps(3)[8:])
    run = open_run(tmp_path)
    found = run.rollouts()
    live.close()
    run.files[0].unlink()
    assert run.count(where="len(completion) = 1") == 8
    assert ids(found.page(4, 4)) == ["2.0", "2.1", "2.2", "2.3"]
    assert ids(found) == ids(steps(3))[4:]


def test_a_page_says_which_columns_there_are(run):
    with pytest.raises(RunError, match="no column is named 'score'"):
        run.rollouts().rows(["score"])


def test_rollouts_of_several_files_and_with_calls(tmp_path):
    write(tmp_path, [one(1, 0, tool_calls=(called("search"),))])
    write(tmp_path, [one(2, 0, attempt=2)])
    rows = open_run(tmp_path).rollouts(order="-step").rows(["step", "calls", "reward/correct"])
    assert rows == [
        {"step": 2, "calls": 0, "reward/correct": 2.0},
        {"step": 1, "calls": 1, "reward/correct": 1.0},
    ]


def test_a_prompt_is_told_from_one_with_the_same_system_message(tmp_path):
    system = {"role": "system", "content": "You are careful. " * 50}

    def asked(step, question):
        return one(step, 0, prompt=(system, {"role": "user", "content": question}))

    made = [asked(1, "one?"), asked(2, "two?"), asked(3, "one?"), one(4, 0, prompt=(system,))]
    run = open_run(write(tmp_path, made))
    assert ids(run.history(made[0])) == ["1.0", "3.0"]
    assert ids(run.history(made[3])) == ["4.0"]


def test_a_prompt_with_more_than_text_is_compared_whole(tmp_path):
    def asked(step, picture):
        blocks = [{"type": "image", "image": Image(hash=picture)}, {"type": "text", "text": "what is it?"}]
        return one(step, 0, prompt=({"role": "user", "content": blocks},))

    made = [asked(1, "a"), asked(2, "b"), asked(3, "a")]
    run = open_run(write(tmp_path, made))
    assert ids(run.history(made[0])) == ["1.0", "3.0"]


@pytest.mark.parametrize("most", [3, 20, None])
def test_what_was_read_does_not_stay_in_memory(tmp_path, monkeypatch, most):
    """Not even until Python looks for objects that know each other: a page in order of reward is from many files."""
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    monkeypatch.setattr(rows, "_chunk", lambda names: 8)
    found = open_run(write(tmp_path, steps(20))).rollouts(order="-reward")
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        assert len(list(islice(found, most))) == (most or 80)
        until(lambda: pa.total_allocated_bytes() <= before)  # a thread of Arrow's may be about to let go
    finally:
        gc.enable()
