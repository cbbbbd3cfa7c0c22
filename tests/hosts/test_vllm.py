"""Trainers that generate with vLLM: through a server, in their own process, and with an engine that sleeps meanwhile.

The engine is a stand-in that speaks the same interface. Each of its answers says which weights wrote it.
"""

import json
from pathlib import Path

import pytest
from processes import HERE, run_worker
from rig import tiny_model
from trainers import TRL, Version

from rollout_plugins import open_run

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parents[1] / "support"
CASES = [f"{kind} {mode}" for kind in ("GRPO", "RLOO") for mode in ("server", "colocate", "sleeping")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the trainers of all cases had, and the folder with their runs."""
    out = tmp_path_factory.mktemp("vllm")
    run_worker("vllm", out, path=[HERE / "vllm_package"], RIG_MODEL=tiny_model(out))
    return out


@pytest.mark.parametrize("case", CASES)
def test_every_rollout_is_there_with_the_step_of_the_weights_that_wrote_it(trained, case):
    found = json.loads((trained / f"{case}.json").read_text())
    run = open_run(trained / case / "with" / "out")
    stored = list(run.rollouts(tokens=True))
    assert len(stored) == len(found["with"]["truth"]) == 12
    for rollout, row in zip(stored, found["with"]["truth"], strict=True):
        assert [dict(message) for message in rollout.prompt] == row["prompt"]
        assert [dict(message) for message in rollout.completion] == row["completion"]
        _, number, _, _, weights = row["completion"][0]["content"].split()
        assert rollout.policy_step == int(weights) - 1
        assert rollout.rewards["half"] == row["rewards"][0]
        assert rollout.advantage == pytest.approx(row["advantage"])
        assert len(rollout.tokens.completion) == rollout.completion_tokens > 0
        sampled = {-0.5 - int(number) / 64} if case.startswith("GRPO") and Version("0.29") <= TRL else set()
        assert set(rollout.tokens.logprobs or ()) == sampled
    assert run.health.drops == {}


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_bit(trained, case):
    found = json.loads((trained / f"{case}.json").read_text())
    assert found["with"]["losses"] == found["without"]["losses"]
    assert found["with"]["weights"] == found["without"]["weights"]
