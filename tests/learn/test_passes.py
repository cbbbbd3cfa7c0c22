"""What counts as a pass."""

import pyarrow as pa
import pytest
from reading import one, write

from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.learn.passes import criterion, find_column, passes


def test_a_reward_of_0_or_1_needs_no_bound_and_every_other_does():
    assert criterion("correct", pa.array([0.0, 1.0, None, float("nan")])).bound == 1.0
    half = criterion("reward", pa.array([0.0, 0.5, 1.5]))
    assert half.bound is None
    assert str(half) == "reward runs from 0 to 1.5; say what counts as a pass with --pass-at"
    assert str(criterion("reward", pa.array([0.0, 0.5]), 0.5)) == "a pass is reward >= 0.5"
    assert str(criterion("reward", pa.array([], pa.float64()))) == "reward has no values, so there are no passes"


def test_a_value_that_32_bits_rounded_still_passes_and_one_that_is_not_finite_is_no_attempt():
    values = pa.array([1.0, 0.99999994, 0.999, None, float("nan"), float("inf")])
    assert passes(values, 1.0).to_pylist() == [True, True, False, None, None, None]


def test_a_column_is_a_total_a_function_or_an_annotation(tmp_path):
    run = open_run(write(tmp_path, [one(1, index) for index in range(4)]))
    run.annotate("judge", [{"id": rollout.id, "score": 1.0} for rollout in run])
    names = ("reward", "correct", "reward/correct", "judge.score")
    assert [find_column([run], name) for name in names] == [
        "reward",
        "reward/correct",
        "reward/correct",
        "judge.score",
    ]
    with pytest.raises(RunError, match="no column 'corect' to judge by; did you mean 'reward/correct'"):
        find_column([run], "corect")
