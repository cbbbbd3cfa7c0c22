"""Token ids, masks and log-probabilities of long answers: a loop hands them over in any form, and does not wait."""

import math
import sys
import threading
import tracemalloc
import weakref
from array import array

import numpy as np
import pytest
import torch
from loops import Slow, recorder_in, row

from rollout_plugins import RolloutRecorder, Tokens, hookimpl, open_run
from rollout_plugins.store import write as writing

FIELDS = {"prompt": [7, 8], "completion": [3, 150_000, 5], "mask": [1, 0, 1], "logprobs": [-0.1, math.nan, -math.inf]}
FORMS = {
    "lists": list,
    "tuples": tuple,
    "lists of numpy's numbers": lambda values: list(np.array(values)),
    "numpy": np.array,
    "torch": lambda values: torch.from_numpy(np.array(values)),
    "packed": lambda values: array("d" if isinstance(values[0], float) else "q", values),
}


def long_answers(count, length):
    logprobs = [-index / length for index in range(length)]
    ids = list(range(1000, 1000 + length))
    return [
        row(tokens={"prompt": ids[:10], "completion": list(ids), "mask": [1] * length, "logprobs": list(logprobs)})
        for _ in range(count)
    ]


def recorded(folder, rows):
    with RolloutRecorder(dir=folder, tokens=True, autoload=False) as recorder:
        recorder.record(1, rows)
    return list(open_run(folder).rollouts(tokens=True))


def lines_run(action):
    """How many lines of Python this thread runs for it."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("form", ["dict", "record"])
def test_the_loop_does_the_same_for_long_answers_as_for_short_ones(tmp_path, form):
    def given(length):
        rows = long_answers(4, length)
        if form == "record":
            return [{**one, "tokens": Tokens(**one["tokens"])} for one in rows]
        return rows

    with recorder_in(tmp_path, tokens=True) as recorder:
        recorder.record(0, given(20))
        short, long = given(20), given(20_000)
        # A look at each id would cost thousands of lines; what other tests left to be finalised costs a few.
        assert lines_run(lambda: recorder.record(1, long)) < lines_run(lambda: recorder.record(2, short)) + 500


class Held:
    """A value that the recorder shares with the loop."""


def test_a_batch_is_released_before_it_is_sealed(tmp_path, monkeypatch):
    """Sealing reads the rollouts again, so that otherwise they would be in memory twice."""
    alive, held = [], Held()
    reference, real = weakref.ref(held), writing.seal
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    monkeypatch.setattr(writing, "seal", lambda *args: [alive.append(reference() is not None), real(*args)][1])
    with RolloutRecorder(dir=tmp_path, tokens=True, autoload=False) as recorder:
        recorder.record(1, [{**long_answers(1, 100)[0], "extra": {"held": held}}])
        del held
        assert recorder.flush(60)
        assert alive == [False]
    assert len(open_run(tmp_path)) == 1


def test_tokens_that_wait_take_little_more_than_what_is_stored(tmp_path):
    slow, length = Slow(), 20_000
    with recorder_in(tmp_path, slow, tokens=True) as recorder:
        recorder.record(0, [row()])
        rows = long_answers(8, length)
        tracemalloc.start()
        recorder.record(1, rows)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        slow.go.set()
    assert held < 1.5 * 8 * length * (4 + 1 + 8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [dict, Tokens])
def test_tokens_in_any_form_are_kept(tmp_path, form, kind):
    (found,) = recorded(tmp_path, [row(tokens=kind(**{name: FORMS[form](values) for name, values in FIELDS.items()}))])
    assert found.marks == {}
    assert repr(found.tokens) == repr(Tokens(**FIELDS))  # NaN is not equal to itself


def test_what_the_loop_changes_afterwards_is_not_stored(tmp_path):
    slow = Slow()
    tokens = {name: list(values) for name, values in FIELDS.items()}
    with recorder_in(tmp_path, slow, tokens=True) as recorder:
        recorder.record(1, [row(tokens=tokens)])
        for values in tokens.values():
            values[:] = [0]
        tokens.clear()
        slow.go.set()
    (found,) = open_run(tmp_path / "runs").rollouts(tokens=True)
    assert repr(found.tokens) == repr(Tokens(**FIELDS))


@pytest.mark.parametrize("values", [[], [None, 1], [1, None], [1.0], np.array([True, False]), [0, 2**31 - 1]])
def test_ids_of_any_kind_are_kept(tmp_path, values):
    (found,) = recorded(tmp_path, [row(tokens={"completion": values})])
    assert (found.tokens.completion, found.marks) == (list(values), {})


@pytest.mark.parametrize("values", [[], [None, -0.5], [-0.5, None], [0, -0.5], [1], np.array([0.5], "f4")])
def test_log_probabilities_of_any_kind_are_kept(tmp_path, values):
    (found,) = recorded(tmp_path, [row(tokens={"logprobs": values})])
    assert (found.tokens.logprobs, found.marks) == (list(values), {})


@pytest.mark.parametrize("values", [[2**53 + 1], [10**400], [-0.5, 10**400], ["1"], [-0.5, "1"]])
def test_log_probabilities_that_no_column_takes_are_marked(tmp_path, values):
    (found,) = recorded(tmp_path, [row(tokens={"logprobs": values})])
    assert (found.tokens.logprobs, set(found.marks)) == (None, {"lost:tokens.logprobs"})


@pytest.mark.parametrize(
    "values",
    [
        [1.5], [1, 2.5], [2**31], [2**70], [1, 2**70], ["1"], [1, "2"], [[1, 2], [3]], [1, [2]], "12", 5, {"a": 1},
        np.array([[1, 2]]), np.array([1.5]), torch.tensor([2**40]), [object()],
    ],
)  # fmt: skip
def test_ids_that_no_column_takes_are_marked_and_cost_nobody_else(tmp_path, values):
    """Also among others: of a float, Arrow would keep the whole part."""
    rows = [row(tokens={"completion": [1, 2]}), row(tokens={"completion": values, "mask": [1]}), row()]
    good, bad, without = recorded(tmp_path, rows)
    assert (good.tokens.completion, good.marks, without.tokens) == ([1, 2], {}, None)
    assert (bad.tokens.completion, bad.tokens.mask, set(bad.marks)) == (None, [1], {"lost:tokens.completion"})


def test_plugins_see_lists(tmp_path):
    seen, done = [], threading.Event()

    class Looks:
        @hookimpl
        def on_rollout(self, rollout):
            seen.append(rollout.tokens)
            done.set()

    with recorder_in(tmp_path, Looks(), tokens=True) as recorder:
        recorder.record(1, [row(tokens={name: np.array(values) for name, values in FIELDS.items()})])
    assert repr(seen) == repr([Tokens(**FIELDS)])
