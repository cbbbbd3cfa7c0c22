"""Several processes: every rollout once, with its global place, and nobody waits for anybody."""

import json
from pathlib import Path

import pytest
from processes import run_worker
from ranks_worker import SCENARIOS
from rig import tiny_model

from rollout_plugins import open_run
from rollout_plugins.reading.find_runs import find_runs

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """One launch for all scenarios: what each rank saw, by scenario."""
    world, out = request.param, tmp_path_factory.mktemp(f"ranks-{request.param}")
    run_worker("ranks", out, ranks=world, RIG_MODEL=tiny_model(out))
    return world, {
        name: ([json.loads((out / name / f"rank-{r}.json").read_text()) for r in range(world)], out / name / "out")
        for name in SCENARIOS
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_rollout_of_every_rank_with_the_callback_is_there_once(ranks, name):
    world, found = ranks
    facts, out = found[name]
    present = [rank for rank in range(world) if SCENARIOS[name](rank)]
    run = open_run(out)
    stored = list(run.rollouts())
    assert len(find_runs(out.with_name(f"{out.name}-rollouts"))) == 1
    assert len({rollout.id for rollout in stored}) == len(stored) == sum(len(facts[rank]["truth"]) for rank in present)
    for rank in present:
        mine = [[list(r.prompt), list(r.completion)] for r in stored if r.rank == rank]
        assert mine == facts[rank]["truth"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_indices_and_groups_are_global_over_ranks(ranks, name):
    world, found = ranks
    _, out = found[name]
    present = [rank for rank in range(world) if SCENARIOS[name](rank)]
    each = 1 if name == "group across ranks" else 2
    for step in (1, 2, 3):
        rollouts = list(open_run(out).rollouts(step=step))
        assert [r.index for r in rollouts] == [rank * each + i for rank in present for i in range(each)]
        assert all(r.group == r.index // 2 and r.group_size == 2 for r in rollouts)
        prompts = {}
        for r in rollouts:
            assert prompts.setdefault(r.group, r.prompt) == r.prompt


def test_losses_do_not_depend_on_who_has_the_callback(ranks):
    _, found = ranks
    losses = [found[name][0][0]["losses"] for name in ("all", "only first", "not first")]
    assert losses[0] == losses[1] == losses[2]


def test_sinks_on_rank_zero_see_all_ranks_and_other_ranks_have_none(ranks):
    world, found = ranks
    facts, out = found["all"]
    stored = {rollout.id: rollout.rank for rollout in open_run(out).rollouts()}
    seen = {ident: rank for ident, rank, gathered, _ in facts[0]["seen"] if gathered}
    assert seen == stored
    assert all(not facts[rank]["seen"] for rank in range(1, world))


def test_sinks_see_the_rewards_of_other_ranks_with_the_digits_they_were_given_with(ranks):
    _, found = ranks
    facts, out = found["all"]
    stored = {rollout.id: rollout.rewards["percent"] for rollout in open_run(out).rollouts()}
    assert {round(reward, 2) for reward in stored.values()} >= {52.07, 53.07, 53.17}
    seen = {ident: reward for ident, _, _, reward in facts[0]["seen"]}
    assert seen.keys() == stored.keys()
    assert all(abs(reward - stored[ident]) < 1e-12 for ident, reward in seen.items())
