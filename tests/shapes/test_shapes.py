"""What AReaL, tinker-cookbook, torchforge and verl have in memory, through the recorder into the store and trackio."""

import json
import math
import threading
from decimal import Decimal

import numpy as np
import pytest
import torch
from shape_rig import (
    Completion,
    Episode,
    Ids,
    OnDevice,
    Trajectory,
    TrajectoryGroup,
    Transition,
    keep,
    on_device,
    texts,
    through_trackio,
)
from store_rig import differences
from tool_cases import CASES, QUESTION, outcomes

from rollout_plugins import Rollout, RolloutRecorder, Tokens, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes import areal, tinker, torchforge, verl
from rollout_plugins.shapes.importing import import_rollouts

DECODED_ON = []


class Letters:
    """A tokenizer whose tokens are characters."""

    eos_token_id = ord(".")

    def decode(self, ids):
        DECODED_ON.append(threading.current_thread())
        return "".join(map(chr, ids))


LETTERS = Letters()
TALK = [("What is 2+2? ", 0), ("It is 5.", 1), (" <tool_response>no</tool_response> ", 0), ("It is 4.", 1)]


def trajectory(*talks, version=3, pad=0):
    """Talks as AReaL pads them: a row each, with what is behind the last token masked."""
    rows = [[(ord(letter), mask) for text, mask in talk for letter in text] for talk in talks]
    longest = max(map(len, rows)) + pad
    padded = [row + [(0, 0)] * (longest - len(row)) for row in rows]
    mask = torch.tensor([[wrote for _, wrote in row] for row in padded])
    return {
        "input_ids": torch.tensor([[token for token, _ in row] for row in padded]),
        "loss_mask": mask,
        "attention_mask": torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in rows], dtype=torch.bool
        ),
        "logprobs": -0.25 * mask,
        "versions": torch.where(mask == 1, version + (mask.cumsum(1) > 8).long(), -1),
        "rewards": torch.arange(len(rows), dtype=torch.float32),
    }


# --- AReaL ---------------------------------------------------------------------------------------------------------


def test_areal_turns_rewards_and_versions_reach_the_store_and_trackio(tmp_path):
    batch = trajectory(TALK, [("Hi? ", 0), ("Hello", 1)], pad=3)
    run, traces = through_trackio(tmp_path, areal.rollouts(batch, LETTERS))
    long, short = run.rollouts(tokens=True)
    assert texts(long.prompt) == [("user", "What is 2+2? ")]
    assert texts(long.completion) == [
        ("assistant", "It is 5."),
        ("tool", " <tool_response>no</tool_response> "),
        ("assistant", "It is 4."),
    ]
    assert (long.reward, long.rewards, long.finish) == (0.0, {"reward": 0.0}, "stop")
    assert (long.prompt_tokens, long.completion_tokens, long.policy_step) == (13, 16, 4)
    assert long.extra == {"head_version": 3, "tail_version": 4, "version_rle": [[3, 8], [4, 8]]}
    assert (texts(short.completion), short.reward, short.finish) == ([("assistant", "Hello")], 1.0, "unknown")
    assert short.completion_is_text
    assert long.tokens is None
    assert texts(traces[long.id]["messages"])[1:] == texts(long.completion)
    assert traces[short.id]["metadata"]["reward"] == 1.0


def test_areal_tokens_are_without_padding_and_align(tmp_path):
    batch = trajectory(TALK, [("Hi? ", 0), ("Hello", 1)], pad=3)
    _, short = keep(tmp_path, areal.rollouts(batch, LETTERS), tokens=True).rollouts(tokens=True)
    assert short.tokens == Tokens(
        prompt=list(map(ord, "Hi? ")), completion=list(map(ord, "Hello")), mask=[1] * 5, logprobs=[-0.25] * 5
    )


def test_areal_left_padding_is_no_prompt(tmp_path):
    whole = trajectory(TALK)
    batch = {
        name: torch.cat([torch.zeros_like(tensor[:, :2]), tensor], 1) if tensor.ndim == 2 else tensor
        for name, tensor in whole.items()
    }
    (rollout,) = keep(tmp_path, areal.rollouts(batch, LETTERS)).rollouts()
    assert texts(rollout.prompt) == [("user", "What is 2+2? ")]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("shape", ["a batch", "episodes"])
def test_areal_numbers_leave_the_device_in_one_copy_for_the_whole_batch(tmp_path, shape, tokens):
    batch = trajectory(*[TALK] * 16) if shape == "a batch" else [trajectory(TALK, TALK), None, trajectory(TALK)]
    with RolloutRecorder(dir=tmp_path / "runs", tokens=tokens) as recorder:
        recorder.record(1, areal.rollouts(on_device(batch), LETTERS))
    assert OnDevice.copies == {"cpu": 1}
    found = list(open_run(tmp_path / "runs").rollouts())
    assert len(found) == (16 if shape == "a batch" else 3)
    assert texts(found[-1].completion)[-1] == ("assistant", "It is 4.")


def test_areal_texts_are_decoded_on_the_recorders_thread_with_a_tokenizer_of_its_own(tmp_path):
    DECODED_ON.clear()
    busy = Letters()
    busy.decode = lambda ids: pytest.fail("the loop's own tokenizer was used")
    busy.__deepcopy__ = lambda memo: Letters()
    keep(tmp_path, areal.rollouts(trajectory(TALK), busy))
    assert DECODED_ON
    assert threading.main_thread() not in DECODED_ON


def test_areal_with_a_real_tokenizer_that_the_loop_goes_on_using(tmp_path):
    from rig import tokenizer as made

    tokenizer = made()
    turns = [
        ("<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n", 0),
        ("the answer is four<|im_end|>", 1),
        ("\n<|im_start|>user\nGrüße, again<|im_end|>\n<|im_start|>assistant\n", 0),
        ("four<|im_end|>", 1),
    ]
    ids = [(i, wrote) for text, wrote in turns for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
    batch = {
        "input_ids": torch.tensor([[i for i, _ in ids]] * 64),
        "loss_mask": torch.tensor([[m for _, m in ids]] * 64),
    }
    with RolloutRecorder(dir=tmp_path / "runs") as recorder:
        for step in range(1, 6):
            recorder.record(step, areal.rollouts(batch, tokenizer))
            for length in range(2, 40):  # another truncation each time: what a tokenizer shared by threads objects to
                tokenizer(["hello world"] * 4, truncation=True, max_length=length, padding="max_length")
    run = open_run(tmp_path / "runs")
    assert (len(run), run.drops) == (5 * 64, {})
    rollout = next(run.rollouts())
    assert texts([*rollout.prompt, *rollout.completion]) == [
        (role, text) for role, (text, _) in zip(["user", "assistant"] * 2, turns, strict=True)
    ]
    assert rollout.finish == "stop"


def test_areal_a_tokenizer_that_cannot_be_copied_is_used_as_it_is(tmp_path):
    class Locked(Letters):
        def __init__(self):
            self.lock = threading.Lock()

    (rollout,) = keep(tmp_path, areal.rollouts(trajectory(TALK), Locked())).rollouts()
    assert texts(rollout.completion)[0] == ("assistant", "It is 5.")


def test_areal_rejected_episodes_are_counted_and_nothing_else_is_lost(tmp_path):
    run = keep(
        tmp_path,
        areal.rollouts([None, trajectory(TALK), None], LETTERS),
        areal.rollouts(None, LETTERS),
        areal.rollouts([None], LETTERS),
    )
    assert [rollout.step for rollout in run.rollouts()] == [1]
    assert run.drops == {"rejected": 4}


def test_areal_rows_of_the_dataset_give_prompts_and_columns(tmp_path):
    data = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "answer": 4}
    ]
    run = keep(
        tmp_path,
        areal.rollouts([trajectory(TALK, TALK)], LETTERS, data=data),
        areal.rollouts(trajectory(TALK, TALK), LETTERS, data=[{"answer": 1}, {"answer": 2}]),
    )
    first, second, third, fourth = run.rollouts()
    assert texts(first.prompt) == [("system", "Be brief."), ("user", "2+2?")]
    assert (first.columns, first.prompt_is_text, first.group_size) == ({"answer": 4}, False, 2)
    assert second.prompt == first.prompt
    assert (third.columns, fourth.columns, third.prompt_is_text) == ({"answer": 1}, {"answer": 2}, True)


def test_areal_what_changes_after_recording_does_not_show(tmp_path):
    batch, data = trajectory(TALK), [{"answer": [4]}]
    with RolloutRecorder(dir=tmp_path / "runs") as recorder:
        recorder.record(1, areal.rollouts(batch, LETTERS, data=data))
        batch["input_ids"].zero_()
        batch["rewards"].fill_(9)
        data[0]["answer"].clear()
    (rollout,) = open_run(tmp_path / "runs").rollouts()
    assert (texts(rollout.completion)[0], rollout.reward) == (("assistant", "It is 5."), 0.0)
    assert rollout.columns == {"answer": [4]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: areal.rollouts(3, LETTERS), "trajectory is of type int; give AReaL's dict of tensors"),
        (lambda: areal.rollouts({"input_ids": torch.ones(1, 2)}, LETTERS), "no loss_mask; it has input_ids"),
        (lambda: areal.rollouts(trajectory(TALK), 7), "tokenizer is of type int; give a tokenizer"),
        (lambda: areal.rollouts(trajectory(TALK), LETTERS, data=[{}, {}]), "data has 2 rows for 1 sequences"),
        (lambda: tinker.rollouts([3]), "group 0 is of type int; give a TrajectoryGroup"),
        (lambda: tinker.rollouts(group([[1.0]], finals=[1.0, 2.0])), "1 trajectories, but 2 of final_rewards_G"),
        (lambda: torchforge.rollouts("x"), "episodes is of type str; give a list"),
        (lambda: torchforge.rollouts([3]), "an episode, of type int, is without request and response"),
        (lambda: verl.rollouts(["a"], ["b"], scores=[1.0, 2.0]), "1 outputs, but 2 of score; give one for each"),
    ],
)
def test_another_shape_is_a_mistake_at_first_and_costs_only_itself_later(tmp_path, given, words):
    with RolloutRecorder(dir=tmp_path / "runs") as recorder:
        with pytest.raises(SetupError, match=words):
            recorder.record(1, given())
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
        recorder.record(2, given())
        recorder.record(3, [{"prompt": "2+2?", "completion": "4"}])
    run = open_run(tmp_path / "runs")
    assert {1, 3} <= set(run.steps)


def test_areal_a_broken_sequence_costs_only_itself(tmp_path):
    good, bad = trajectory(TALK), trajectory(TALK)
    bad["loss_mask"] = bad["loss_mask"][:, :3]
    run = keep(tmp_path, areal.rollouts([good, bad, good], LETTERS))
    assert len(run) == 2
    assert run.drops == {"unreadable": 1}


# --- tinker-cookbook -----------------------------------------------------------------------------------------------


def transition(prompt, answer, reward=0.0, **more):
    trace = tinker.RolloutTrace(prompt=prompt, policy_response=answer, reward_data={"raw": reward})
    return Transition(Ids([1] * len(prompt)), Ids([2]), reward, trace=trace, **more)


def group(rewards, finals=None, metrics=None):
    """A trajectory for each list of rewards, a transition for each reward; every text says where it belongs."""
    trajectories = []
    for number, some in enumerate(rewards):
        history = [{"role": "user", "content": "asked"}]
        steps = []
        for turn, reward in enumerate(some):
            steps.append(transition(history, f"answer {number}.{turn}", reward))
            history += [{"role": "assistant", "content": f"answer {number}.{turn}"}, {"role": "user", "content": "on"}]
        trajectories.append(Trajectory(steps))
    count = len(rewards)
    return TrajectoryGroup(
        trajectories, finals or [0.5 * n for n in range(count)], metrics or [{"n": n} for n in range(count)]
    )


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
def test_tinker_prompts_are_from_before_the_environment_changed_its_history_on_every_ending(tmp_path, metric, finish):
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
    assert run.drops == {"rejected": 1, "unreadable": 1}


# --- torchforge ----------------------------------------------------------------------------------------------------


def episode(response="4", **more):
    completion = Completion(
        torch.tensor([7, 8]), torch.tensor([4, 5, 6]), torch.tensor([-0.5, -0.25, -1.0]), 11, "length"
    )
    facts = {
        "episode_id": f"id-{response}", "target": "4", "request": "2+2?", "response": response, "completion": completion,
        "ref_logprobs": torch.tensor([-0.75, -0.5, -2.0, 0.0]), "reward": 0.5, "advantage": -0.25,
        "reward_breakdown": {"MathReward": 1.0, "ThinkingReward": 0.0},
    }  # fmt: skip
    return Episode(**{**facts, **more})


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
    assert run.drops == {"rejected": 1}


# --- verl ----------------------------------------------------------------------------------------------------------


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
    assert first.marks["extra:per_batch"] == "all 1 values; kept here whole"
    assert (first.reward, first.rewards) == (None, {"score": None})


def test_verl_messages_have_their_tool_calls(tmp_path):
    (said, outcome) = CASES["ids out of order"]
    (rollout,) = keep(tmp_path, verl.rollouts([QUESTION], [said])).rollouts()
    assert (list(rollout.completion), outcomes(rollout)) == (said, outcome)


def test_shapes_hold_plain_records_too(tmp_path):
    (rollout,) = keep(tmp_path, [Rollout(id="x", prompt=({"role": "user", "content": "a"},), reward=1.0)]).rollouts()
    assert (rollout.reward, texts(rollout.prompt)) == (1.0, [("user", "a")])


# --- hostile rows --------------------------------------------------------------------------------------------------


class Objects:
    """Objects to being turned into anything."""

    def __float__(self):
        raise RuntimeError("no")

    __len__ = __iter__ = __bool__ = item = __float__


class Images:
    """tinker's `ModelInput` with an image in it."""

    length = 3

    def to_ints(self):
        raise ValueError("to_ints only supported for ModelInput with EncodedTextChunks")


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


def begun(folder, batch, **options):
    """A recorder that has seen a good batch is past the point where mistakes are raised."""
    run = keep(folder, [{"prompt": "a", "completion": "b"}], batch, **options)
    return list(run.rollouts(step=2, tokens=bool(options))), run


@pytest.mark.parametrize("shape", SHAPES_OF_NUMBERS)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_the_number_that_was_given_whatever_holds_it(tmp_path, shape, name):
    value = NUMBERS[name]
    ((rollout,), run) = begun(tmp_path, SHAPES_OF_NUMBERS[shape](value))
    want = as_given(value)
    assert repr(rollout.reward) == repr(want)
    if shape in {"rows", "torchforge"}:
        assert repr(rollout.advantage) == repr(want)
        assert repr(rollout.rewards["a" if shape == "rows" else "b"]) == repr(want)
    assert (rollout.marks, run.drops) == ({}, {})


@pytest.mark.parametrize("shape", SHAPES_OF_NUMBERS)
@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_what_is_not_a_number_is_marked_and_never_replaced_by_another(tmp_path, shape, name):
    ((rollout,), run) = begun(tmp_path, SHAPES_OF_NUMBERS[shape](NOT_NUMBERS[name]))
    assert rollout.reward is None
    assert "lost:reward" in rollout.marks
    assert run.drops["unserialisable_field"] >= 1
    assert texts(rollout.completion)


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
    assert (run.drops["unreadable"], run.drops["unserialisable_field"]) == (3, 1)


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
    assert run.drops == {"unreadable": 1, "rejected": 1}


def test_tinker_small_rewards_of_steps_survive_a_large_final_one(tmp_path):
    made = TrajectoryGroup([Trajectory([transition("a", "b", 0.1), transition("a", "b", 0.2)])], [1e17], [{}])
    (rollout,) = keep(tmp_path, tinker.rollouts(made)).rollouts()
    assert rollout.rewards == {"steps": 0.1 + 0.2, "final": 1e17}


def odd_areal():
    one = trajectory(TALK)
    return {
        "ids are ragged lists": {**one, "input_ids": [[1], [2, 3]]},
        "ids are a number": {**one, "input_ids": torch.tensor(3)},
        "ids are nowhere": {**one, "input_ids": one["input_ids"].to("meta")},
        "a mask of another length": {**one, "loss_mask": one["loss_mask"][:, :3]},
        "objects": {**one, "input_ids": Objects()},
    }


@pytest.mark.parametrize("name", odd_areal())
def test_areal_an_odd_episode_costs_only_itself(tmp_path, name):
    good = trajectory(TALK)
    found, run = begun(tmp_path, areal.rollouts([good, odd_areal()[name], good], LETTERS))
    assert [texts(r.completion)[0] for r in found] == [("assistant", "It is 5.")] * 2
    assert run.drops == {"unreadable": 1}


ODD_PARTS = {
    "rewards": [torch.ones(5), "x", torch.ones(1, device="meta"), Objects()],
    "versions": [torch.ones(7), [[1], [2, 3]]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in ODD_PARTS.items() for value in some])
def test_areal_what_does_not_line_up_is_marked_and_nobodys(tmp_path, name, value):
    good = trajectory(TALK)
    found, _ = begun(tmp_path, areal.rollouts([good, {**good, name: value}], LETTERS))
    first, second = found
    assert (first.reward, first.policy_step) == (0.0, 4)
    assert second.marks == {f"lost:{name}": "not a tensor with a row for each of 1 sequences"}
    assert (second.reward if name == "rewards" else second.policy_step) is None


@pytest.mark.parametrize("reward", [torch.tensor(0.1), np.float32(0.1), 0.1, np.array([0.1], "float32"), [0.1]])
def test_areal_a_reward_of_any_kind_is_the_number_that_was_given(tmp_path, reward):
    alone = {name: tensor[0] for name, tensor in trajectory(TALK).items()}
    found, _ = begun(
        tmp_path, areal.rollouts([{**alone, "rewards": reward}, {**trajectory(TALK), "rewards": reward}], LETTERS)
    )
    assert [r.reward for r in found] == [pytest.approx(0.1)] * 2


def test_areal_rows_of_the_dataset_that_are_none_or_too_many_are_marked(tmp_path):
    good = trajectory(TALK)
    found, _ = begun(tmp_path, areal.rollouts([good, good], LETTERS, data=[None, {"a": 1}]))
    assert [r.columns for r in found] == [{}, {"a": 1}]
    assert found[0].marks == {"lost:data": "its row is of type NoneType, not a dict"}
    found, _ = begun(tmp_path / "more", areal.rollouts([good], LETTERS, data=[{}, {}]))
    assert found[0].marks == {"lost:data": "data has 2 rows for 1 episodes"}
