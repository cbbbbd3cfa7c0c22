"""What tinker-cookbook has in memory, through the recorder into the store and trackio."""

import json

import numpy as np
import pytest
import torch
from batches_of import LETTERS, begun, group, transition
from shape_rig import (
    Ids,
    Trajectory,
    TrajectoryGroup,
    Transition,
    keep,
    texts,
    through_trackio,
)
from store_rig import differences

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.shapes import tinker
from rollout_plugins.shapes.importing import import_rollouts


def test_tinker_groups_transitions_and_rewards_line_up_in_the_store_and_trackio(tmp_path):
    groups = [group([[0.1, 0.2], [0.3], [0.4, 0.5, 0.6]]), group([[1.0], [2.0]])]
    run, traces = through_trackio(tmp_path, tinker.rollouts(groups, tags=[["math"], ["code"]]))
    found = list(run.rollouts())
    assert [(r.group, r.group_size) for r in found] == [(0, 3)] * 3 + [(1, 2)] * 2
    for rollout, number, rewards in zip(
        found, [0, 1, 2, 0, 1], [[0.1, 0.2], [0.3], [0.4, 0.5, 0.6], [1.0], [2.0]], strict=True
    ):
        said = [content for role, content in texts(rollout.completion) if role == "assistant"]
        assert said == [f"answer {number}.{turn}" for turn in range(len(rewards))]
        assert [step["reward_data"]["raw"] for step in rollout.extra["steps"]] == rewards
        assert rollout.extra["trajectory_metrics"] == {"n": number}
        assert rollout.rewards == {"steps": pytest.approx(sum(rewards)), "final": 0.5 * number}
        assert rollout.reward == pytest.approx(sum(rewards) + 0.5 * number)
        assert texts(rollout.prompt) == [("user", "asked")]
        assert texts(traces[rollout.id]["messages"])[1:] == texts(rollout.completion)
    assert found[0].columns == {"tags": ["math"]}
    assert all(type(value) is float for rollout in found for value in rollout.rewards.values())


@pytest.mark.parametrize(("metric", "finish"), [("parse_error", "error"), ("context_overflow", "length")])
def test_tinker_prompts_are_from_before_the_environment_changed_its_history(tmp_path, metric, finish):
    history = [{"role": "user", "content": "asked"}]
    first = transition(history, "one")
    history += [{"role": "assistant", "content": "one"}, {"role": "user", "content": "again"}]
    last = transition(history, "two", -1.0, metrics={metric: 1.0}, episode_done=True)
    history.clear()
    (rollout,) = keep(tmp_path, tinker.rollouts(TrajectoryGroup([Trajectory([first, last])], [0.0], [{}]))).rollouts()
    assert texts(rollout.prompt) == [("user", "asked")]
    assert texts(rollout.completion) == [("assistant", "one"), ("user", "again"), ("assistant", "two")]
    assert (rollout.finish, rollout.reward) == (finish, -1.0)
    assert (rollout.error is not None) == (metric == "parse_error")


def test_tinker_in_memory_and_on_disk_are_the_same_record(tmp_path):
    made = group([[0.1, 0.2], [0.3]])
    remembered = list(keep(tmp_path, tinker.rollouts(made)).rollouts())
    talk = lambda messages: {"type": "conversation", "messages": messages}  # noqa: E731
    rows = [
        {
            "split": "train", "iteration": 1, "group_idx": 0, "traj_idx": number, "tags": [],
            "total_reward": sum(step.reward for step in one.transitions) + made.final_rewards_G[number],
            "final_reward": made.final_rewards_G[number], "trajectory_metrics": made.metrics_G[number],
            "steps": [
                {
                    "ob_len": step.ob.length, "ac_len": 1, "reward": step.reward, "episode_done": False,
                    "stop_reason": "stop",
                    "trace": {
                        "prompt": talk(step.trace.prompt), "reward_data": step.trace.reward_data,
                        "policy_response": talk([{"role": "assistant", "content": step.trace.policy_response}]),
                    },
                }
                for step in one.transitions
            ],
        }
        for number, one in enumerate(made.trajectories_G)
    ]  # fmt: skip
    (tmp_path / "train_rollout_summaries.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    imported = open_run(import_rollouts("tinker", tmp_path / "train_rollout_summaries.jsonl", tmp_path).dir)
    for one, other in zip(remembered, imported.rollouts(), strict=True):
        assert set(differences(one, other)) <= {"time", "columns"}


def test_tinker_without_traces_texts_come_from_the_tokens(tmp_path):
    said = ["ask", "one", " more ", "two"]
    ids = [list(map(ord, text)) for text in said]
    turns = [
        Transition(Ids(ids[0]), Ids(ids[1], [-0.5] * 3), 0.0),
        Transition(Ids(ids[0] + ids[1] + ids[2]), Ids(ids[3], [-1.0] * 3), 1.0),
    ]
    made = TrajectoryGroup([Trajectory(turns)], [0.0], [{}])
    (rollout,) = keep(tmp_path, tinker.rollouts(made, LETTERS), tokens=True).rollouts(tokens=True)
    assert texts(rollout.prompt) == [("user", "ask")]
    assert texts(rollout.completion) == [("assistant", "one"), ("user", " more "), ("assistant", "two")]
    assert rollout.tokens.completion == ids[1] + ids[2] + ids[3]
    assert rollout.tokens.mask == [1] * 3 + [0] * 6 + [1] * 3
    assert rollout.tokens.logprobs == [-0.5] * 3 + [0.0] * 6 + [-1.0] * 3


def test_tinker_rewards_that_line_up_with_nothing_are_nobodys(tmp_path):
    with RolloutRecorder(dir=tmp_path / "runs") as recorder:
        recorder.record(1, tinker.rollouts(group([[1.0]])))
        recorder.record(2, tinker.rollouts(group([[1.0], [2.0]], finals=[0.5])))
        recorder.record(3, tinker.rollouts([None, group([[1.0]]), "x"]))
    run = open_run(tmp_path / "runs")
    assert [(r.rewards, r.reward) for r in run.rollouts(step=2)] == [
        ({"steps": None, "final": None}, None),
        ({"steps": None, "final": None}, None),
    ]
    assert run.count(step=3) == 1
    assert run.health.drops == {"rejected": 1, "unreadable": 1}


class Images:
    """tinker's `ModelInput` with an image in it."""

    length = 3

    def to_ints(self):
        raise ValueError("to_ints only supported for ModelInput with EncodedTextChunks")


@pytest.mark.parametrize("tokenizer", [None, LETTERS])
def test_tinker_a_trajectory_with_images_loses_its_token_ids_alone(tmp_path, tokenizer):
    seen = transition([{"role": "user", "content": "look"}], "a cat", 1.0)
    seen.ob = Images()
    group = TrajectoryGroup([Trajectory([seen]), Trajectory([transition("a", "b", 2.0)])], [0.5, 0.0], [{}, {}])
    run = keep(tmp_path, tinker.rollouts(group, tokenizer), tokens=True)
    first, second = run.rollouts(tokens=True)
    assert (texts(first.prompt), texts(first.completion)) == ([("user", "look")], [("assistant", "a cat")])
    assert (first.reward, first.rewards, first.prompt_tokens) == (1.5, {"steps": 1.0, "final": 0.5}, 3)
    assert (first.tokens, second.tokens.completion) == (None, [2])
    assert first.marks == {
        "lost:tokens": "a turn has no token ids: to_ints only supported for ModelInput with EncodedTextChunks"
    }


def test_tinker_rewards_may_be_an_array_and_an_odd_trajectory_costs_itself(tmp_path):
    good = [Trajectory([transition("a", "b", np.float32(0.5))]), Trajectory([transition("a", "c", torch.tensor(1.0))])]
    group = TrajectoryGroup([good[0], 3, None, good[1]], np.array([0.25, 1, 1, 2.0], "float32"), [{}, {}, {}, {}])
    found, run = begun(tmp_path, tinker.rollouts([group, TrajectoryGroup(good, [1.0], [{}, {}])]))
    assert [r.reward for r in found] == [0.75, 3.0, None, None]
    assert found[0].rewards == {"steps": 0.5, "final": 0.25}
    assert found[2].marks["lost:final_rewards_G"] == "group 1 has 2 trajectories, but 1 of final_rewards_G"
    assert run.health.drops == {"unreadable": 1, "rejected": 1}


def test_tinker_small_rewards_of_steps_survive_a_large_final_one(tmp_path):
    made = TrajectoryGroup([Trajectory([transition("a", "b", 0.1), transition("a", "b", 0.2)])], [1e17], [{}])
    (rollout,) = keep(tmp_path, tinker.rollouts(made)).rollouts()
    assert rollout.rewards == {"steps": 0.1 + 0.2, "final": 1e17}
