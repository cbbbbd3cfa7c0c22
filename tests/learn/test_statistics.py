"""Intervals and tests against values known from elsewhere, and against simulation."""

import math

import numpy as np
import pytest

from rollout_plugins.learn.statistics import bootstrap_mean, clustered_rate, mcnemar, wilson


@pytest.mark.parametrize(
    ("passed", "attempts", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval_has_its_published_values(passed, attempts, low, high):
    assert wilson(passed, attempts) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_without_attempts_there_is_no_interval():
    low, high = wilson(np.array([0, 1]), np.array([0, 2]))
    assert math.isnan(low[0])
    assert not math.isnan(high[1])


def test_mcnemar_is_the_exact_binomial_test():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(0.021484375)
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 1000) < 1e-200


def test_the_bootstrap_covers_the_truth_in_about_95_of_100_cases():
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        _, low, high = bootstrap_mean(rng.normal(0.3, 1.0, 60), seed=seed)
        hits += low <= 0.3 <= high
    assert 0.89 <= hits / 200 <= 0.99
    assert bootstrap_mean([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert math.isnan(bootstrap_mean([]).value)


def test_a_rate_over_answers_to_few_prompts_is_less_certain_than_over_as_many_prompts():
    passed = [True] * 8 + [False] * 8
    apart, alike = clustered_rate(passed, range(16)), clustered_rate(passed, [0] * 8 + [1] * 8)
    assert apart.value == alike.value == 0.5
    assert alike.low < apart.low < 0.5 < apart.high < alike.high
    assert math.isnan(clustered_rate([], []).value)
