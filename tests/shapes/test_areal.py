"""What AReaL has in memory, through the recorder into the store and trackio."""

import threading

import numpy as np
import pytest
import torch
from batches_of import DECODED_ON, LETTERS, TALK, Letters, Objects, begun, group, trajectory
from shape_rig import (
    OnDevice,
    keep,
    on_device,
    texts,
    through_trackio,
)

from rollout_plugins import RolloutRecorder, Tokens, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes import areal, tinker, torchforge, verl


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


def test_areal_left_padding_is_not_a_prompt(tmp_path):
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
    assert (len(run), run.health.drops) == (5 * 64, {})
    rollout = run.rollouts()[0]
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
    assert run.health.drops == {"rejected": 4}


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
        (lambda: areal.rollouts(3, LETTERS), "trajectory is of type int: give AReaL's dict of tensors"),
        (lambda: areal.rollouts({"input_ids": torch.ones(1, 2)}, LETTERS), "no loss_mask; it has input_ids"),
        (lambda: areal.rollouts(trajectory(TALK), 7), "tokenizer is of type int: give a tokenizer"),
        (lambda: areal.rollouts(trajectory(TALK), LETTERS, data=[{}, {}]), "data has 2 rows for 1 sequences"),
        (lambda: tinker.rollouts([3]), "group 0 is of type int: give a TrajectoryGroup"),
        (lambda: tinker.rollouts(group([[1.0]], finals=[1.0, 2.0])), "1 trajectories, but 2 of final_rewards_G"),
        (lambda: torchforge.rollouts("x"), "episodes is of type str: give a list"),
        (lambda: torchforge.rollouts([3]), "an episode, of type int, has neither request nor response"),
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
    assert run.health.drops == {"unreadable": 1}


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
    assert run.health.drops == {"unreadable": 1}


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
