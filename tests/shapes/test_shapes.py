"""What torchforge and verl have in memory, and odd rows of every shape, through the recorder into the store."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from batches_of import Objects, begun, episode, transition
from shape_rig import (
    Completion,
    Episode,
    OnDevice,
    Trajectory,
    TrajectoryGroup,
    keep,
    on_device,
    texts,
    through_trackio,
)
from store_rig import differences
from tool_cases import CASES, QUESTION, outcomes

from rollout_plugins import Rollout, RolloutRecorder, Tokens, open_run
from rollout_plugins.shapes import tinker, torchforge, verl
from rollout_plugins.shapes.importing import import_rollouts


def test_torchforge_every_field_reaches_the_store_and_trackio(tmp_path):
    run, traces = through_trackio(
        tmp_path, torchforge.rollouts([[episode(), episode("5")], [episode("6")]]), tokens=True
    )
    first, second, third = run.rollouts(tokens=True)
    assert (first.group, second.group, third.group) == (0, 0, 1)
    assert (texts(first.prompt), texts(first.completion)) == ([("user", "2+2?")], [("assistant", "4")])
    assert (first.reward, first.advantage, first.policy_step) == (0.5, -0.25, 11)
    assert first.rewards == {"MathReward": 1.0, "ThinkingReward": 0.0}
    assert run.info.reward_names == ("MathReward", "ThinkingReward")
    assert first.extra == {"episode_id": "id-4", "request_len": 8, "response_len": 4, "pad_id": 0}
    assert (first.columns, first.finish) == ({"target": "4"}, "length")
    assert (first.prompt_tokens, first.completion_tokens) == (2, 3)
    assert first.tokens == Tokens(
        prompt=[7, 8], completion=[4, 5, 6], mask=[1, 1, 1], logprobs=[-0.5, -0.25, -1.0],
        reference_logprobs=[-0.75, -0.5, -2.0],
    )  # fmt: skip
    facts = traces[third.id]["metadata"]
    assert (facts["reward/MathReward"], facts["policy_step"], facts["extra/episode_id"]) == (1.0, 11, "id-6")


@pytest.mark.parametrize(("tokens", "copies"), [(False, {}), (True, {"cpu": 1})])
def test_torchforge_tensors_stay_on_the_device_unless_asked_for_and_leave_it_at_once(tmp_path, tokens, copies):
    episodes = [episode(str(number)) for number in range(8)]
    for one in episodes:
        one.ref_logprobs = on_device(one.ref_logprobs)
        one.completion = Completion(**{**vars(one.completion), "token_ids": on_device(one.completion.token_ids)})
    assert len(keep(tmp_path, torchforge.rollouts(episodes), tokens=tokens)) == 8
    assert OnDevice.copies == copies


def test_torchforge_episodes_that_are_none_or_half_filled(tmp_path):
    bare = Episode(request="2+2?", response="4")
    run = keep(tmp_path, torchforge.rollouts([bare, None, {"prompt": "1+1?", "response": "2", "reward": None}]))
    first, second = run.rollouts()
    assert (first.policy_step, first.reward, first.rewards, first.prompt_tokens) == (None, None, {}, None)
    assert texts(second.prompt) == [("user", "1+1?")]
    assert run.health.drops == {"rejected": 1}


def test_verl_in_memory_is_what_an_import_of_its_dump_gives_and_reaches_trackio(tmp_path):
    inputs, outputs, gts, scores = ["a?", "a?", "b?"], ["1", "2", "3"], ["1", None, "3"], [1.0, 0.0, 0.5]
    infos = {"acc": [True, False, True], "note": ["x", "y", "z"]}
    run, traces = through_trackio(tmp_path, verl.rollouts(inputs, outputs, gts, torch.tensor(scores), infos))
    rows = [
        {"input": i, "output": o, "gts": g, "score": s, "step": 1, "acc": a, "note": n}
        for i, o, g, s, a, n in zip(inputs, outputs, gts, scores, *infos.values(), strict=True)
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    imported = open_run(import_rollouts("verl", tmp_path / "1.jsonl", tmp_path).dir)
    for one, other in zip(run.rollouts(), imported.rollouts(), strict=True):
        assert set(differences(one, other)) <= {"time", "marks"}
        assert traces[one.id]["metadata"]["reward/score"] == one.rewards["score"]


def test_verl_groups_by_uid_where_there_is_one_and_keeps_what_is_for_no_rollout(tmp_path):
    infos = {"per_batch": [7.0]}
    run = keep(
        tmp_path, verl.rollouts(["a?"] * 3, ["1", "2", "3"], reward_extra_infos_dict=infos, uids=["u", "v", "u"])
    )
    first, second, third = run.rollouts()
    assert (first.group, second.group, third.group) == (0, 1, 0)
    assert (first.extra, second.extra) == ({"uid": "u", "per_batch": [7.0]}, {"uid": "v"})
    assert first.marks["extra:per_batch"] == "all 1 values; stored here in full"
    assert (first.reward, first.rewards) == (None, {"score": None})


def test_verl_messages_have_their_tool_calls(tmp_path):
    (said, outcome) = CASES["ids out of order"]
    (rollout,) = keep(tmp_path, verl.rollouts([QUESTION], [said])).rollouts()
    assert (list(rollout.completion), outcomes(rollout)) == (said, outcome)


def test_shapes_hold_plain_records_too(tmp_path):
    (rollout,) = keep(tmp_path, [Rollout(id="x", prompt=({"role": "user", "content": "a"},), reward=1.0)]).rollouts()
    assert (rollout.reward, texts(rollout.prompt)) == (1.0, [("user", "a")])


NUMBERS = {
    "float": 0.1,
    "int": 3,
    "flag": True,
    "float64": np.float64(0.1),
    "float32": np.float32(0.1),
    "int64": np.int64(3),
    "0-d array": np.array(0.1),
    "array of one": np.array([0.1]),
    "tensor": torch.tensor(0.1),
    "bfloat16": torch.tensor(0.1, dtype=torch.bfloat16),
    "with a gradient": torch.tensor(0.1, requires_grad=True),
    "tensor of one": torch.tensor([0.1]),
    "Decimal": Decimal("0.1"),
    "nan": math.nan,
    "inf": np.float32("inf"),
    "none": None,
}
NOT_NUMBERS = {
    "two": torch.tensor([1.0, 2.0]),
    "array of two": np.array([1.0, 2.0]),
    "text": "0.5",
    "dict": {"a": 1.0},
    "object": Objects(),
    "nowhere": torch.tensor(0.5, device="meta"),
}


def rows_with(value):
    return [{"prompt": "2+2?", "completion": "4", "reward": value, "advantage": value, "rewards": {"a": value}}]


def tinker_with(value):
    return tinker.rollouts(TrajectoryGroup([Trajectory([transition("a", "b", 0.0)])], [value], [{}]))


def verl_with(value):
    return verl.rollouts(["a?"], ["b"], scores=[value])


def forge_with(value):
    return torchforge.rollouts([episode(reward=value, advantage=value, reward_breakdown={"a": 1.0, "b": value})])


SHAPES_OF_NUMBERS = {"rows": rows_with, "tinker": tinker_with, "verl": verl_with, "torchforge": forge_with}


def as_given(value):
    return None if value is None else float(value.item() if hasattr(value, "item") else value)


def kept_with(values, shape, folder):
    """The values' names with the rollouts that were given them, a step each, and the run."""
    good = [{"prompt": "a", "completion": "b"}]  # mistakes in the first batch are raised
    run = keep(folder, good, *(SHAPES_OF_NUMBERS[shape](value) for value in values.values()))
    return [*zip(values, list(run.rollouts())[1:], strict=True)], run


@pytest.mark.parametrize("shape", SHAPES_OF_NUMBERS)
def test_a_number_is_the_number_that_was_given_whatever_holds_it(tmp_path, shape):
    stored, run = kept_with(NUMBERS, shape, tmp_path)
    for name, rollout in stored:
        want = repr(as_given(NUMBERS[name]))
        assert repr(rollout.reward) == want, name
        if shape in {"rows", "torchforge"}:
            assert repr(rollout.advantage) == want, name
            assert repr(rollout.rewards["a" if shape == "rows" else "b"]) == want, name
        assert rollout.marks == {}, name
    assert run.health.drops == {}


@pytest.mark.parametrize("shape", SHAPES_OF_NUMBERS)
def test_what_is_not_a_number_is_marked_and_never_replaced_by_another(tmp_path, shape):
    stored, run = kept_with(NOT_NUMBERS, shape, tmp_path)
    for name, rollout in stored:
        assert rollout.reward is None, name
        assert "lost:reward" in rollout.marks, name
        assert texts(rollout.completion), name
    assert run.health.drops["unserialisable_field"] >= len(NOT_NUMBERS)


def test_torchforge_rewards_on_a_device_leave_it_in_one_copy_and_are_those_of_the_moment(tmp_path):
    reward, part = torch.tensor(0.25), torch.tensor(0.75)
    given = [episode(reward=on_device(reward), advantage=torch.tensor(-1.5), reward_breakdown={"a": part, "b": "odd"})]
    with RolloutRecorder(dir=tmp_path / "runs") as recorder:
        recorder.record(1, torchforge.rollouts(given * 4))
        reward.fill_(9)
        part.fill_(9)
    assert OnDevice.copies == {"cpu": 1}
    first, *_ = found = list(open_run(tmp_path / "runs").rollouts())
    assert (first.reward, first.advantage, first.rewards, len(found)) == (0.25, -1.5, {"a": 0.75}, 4)
    assert first.extra["reward_breakdown"] == {"b": "odd"}


def odd_forge():
    class Angry:
        response = "4"

        @property
        def reward(self):
            raise RuntimeError("no")

    return [
        episode("good"), Angry(), 3, {"response": "4", "completion": {"token_ids": 5}}, None,
        episode("no ids", completion=Completion(torch.ones(2, device="meta"), torch.ones(3, dtype=torch.long)[::2])),
        episode("list", completion=Completion([1, 2], [3], [[-1.0], [2.0, 3.0]])), episode("last"),
    ]  # fmt: skip


def test_torchforge_an_odd_episode_costs_only_what_it_lacks(tmp_path):
    odd = odd_forge()
    odd[4] = {"response": "version", "policy_version": "x", "reward": 1.0}
    found, run = begun(tmp_path, torchforge.rollouts(odd), tokens=True)
    assert [texts(r.completion)[0][1] for r in found] == ["good", "version", "no ids", "list", "last"]
    good, version, no_ids, ragged, last = found
    assert good.tokens == last.tokens
    assert "lost:policy_step" in version.marks
    assert "lost:tokens.prompt_ids" in no_ids.marks
    assert (no_ids.tokens.prompt, no_ids.tokens.completion) == (None, [1, 1])
    assert (ragged.tokens.completion, ragged.tokens.logprobs) == ([3], None)
    assert "lost:tokens.logprobs" in ragged.marks
    assert (run.health.drops["unreadable"], run.health.drops["unserialisable_field"]) == (3, 1)
