"""What a rollout of an asynchronous trainer holds, and what the host says of itself."""

from collections import Counter
from functools import partial

import async_rig
import numpy as np
import pytest
from async_rig import Scripted, make_async, sample
from async_streams import KINDS, fates, said, samples, trained
from copies import copy_of, facts
from store_rig import until
from tools import Counted, multiply
from trackio.sqlite_storage import SQLiteStorage
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.trainers.async_grpo.queue import AsyncHost


def test_a_rollout_holds_what_the_sample_held(tmp_path, tok):
    stream = samples(tok, 12)
    stream[0].enqueued_at -= 100
    stream[0].metrics = {
        "reward": 0.5, "reward_std": 0.1, "rewards/by_len": 0.5, "rewards/nothing": float("nan"), "tools/x": 2.0
    }  # fmt: skip
    stream[0].completion = [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": {"a": 2, "b": [3]}}}]},
        {"role": "tool", "name": "multiply", "content": "{'error': 'no lists'}"},
        {"role": "assistant", "content": "hello 0"},
    ]  # fmt: skip
    _, run = trained(tmp_path, stream, tokens=True)
    rollout = next(iter(run.rollouts(tokens=True)))
    assert list(rollout.prompt) == stream[0].prompt
    assert list(rollout.completion) == stream[0].completion
    assert rollout.rewards == {"by_len": 0.5, "nothing": None}
    assert (rollout.reward, rollout.advantage, rollout.finish) == (0.5, 0.5, "stop")
    assert {name: rollout.extra[name] for name in ("reward_std", "tools/x")} == {"reward_std": 0.1, "tools/x": 2.0}
    assert (rollout.extra["model_version"], rollout.extra["staleness"], rollout.policy_step) == (1, 0, 0)
    assert rollout.extra["seconds_in_queue"] >= 100
    (made,) = rollout.tool_calls
    assert (made.name, made.arguments, made.status, made.error) == (
        "multiply",
        {"a": 2, "b": [3]},
        "error",
        "no lists",
    )
    assert made.seconds is None
    length = int(stream[0].completion_mask.sum())
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (len(stream[0].input_ids) - length, length)
    assert [*rollout.tokens.prompt, *rollout.tokens.completion] == stream[0].input_ids.tolist()
    assert rollout.tokens.mask == [1] * length
    assert rollout.tokens.logprobs == stream[0].old_log_probs[-length:].tolist()
    assert rollout.tokens.trainer_logprobs is None


def test_distillation_has_no_reward_and_names_its_teacher(tmp_path, tok):
    _, run = trained(tmp_path, samples(tok, 12, "distillation"), kind="distillation", tokens=True)
    first = next(iter(run.rollouts(tokens=True)))
    assert (first.rewards, first.reward, first.advantage, first.tokens.logprobs) == ({}, None, None, None)
    assert (first.extra["teacher_id"], first.group_size, first.finish) == ("t", 1, "stop")
    assert [r.group for r in run.rollouts(tokens=True)] == list(range(12))


def test_without_tokens_none_are_kept(tmp_path, tok):
    _, run = trained(tmp_path, samples(tok, 12))
    assert {r.tokens for r in run.rollouts(tokens=True)} == {None}


def test_a_completion_that_was_cut_off_ends_by_length(tmp_path, tok):
    stream = samples(tok, 12)
    stream[0].input_ids[-1] = tok("four", add_special_tokens=False)["input_ids"][0]
    _, run = trained(tmp_path, stream)
    assert [r.finish for r in run.rollouts()][:2] == ["length", "stop"]


class Grumpy:
    """Objects to being compared, printed and measured."""

    def __eq__(self, other):
        raise RuntimeError("not equal to anything")

    def __repr__(self):
        raise RuntimeError("no words")

    __hash__ = None


def test_hostile_content_neither_stops_training_nor_hides_other_samples(tmp_path, tok):
    stream = samples(tok, 16)
    stream[0].completion[0]["content"] = "\x1b[2J\u202e\ud800"
    for number in (1, 2):
        stream[number].completion = [{"role": 3, "content": Grumpy()}, None, 7]
    stream[3].metrics |= {"rewards/odd": float("inf"), "rewards/small": np.float32(0.5)}
    stream[4].prompt = "text, not messages"
    stream[5].group_id = "a group"
    stream[6].enqueued_at = None
    endless = stream[7].completion
    endless.append({"role": "assistant", "content": endless})
    del stream[8].prompt
    trainer, run = trained(tmp_path, stream)
    assert trainer.state.global_step == 2
    stored = list(run.rollouts())
    assert len(stored) == 11
    assert run.health.drops["not_observed"] == 1
    assert stored[3].rewards == {"by_len": 1.0, "odd": float("inf"), "small": 0.5}
    assert stored[4].prompt_is_text
    assert [r.marks["trained"] for r in stored[:8]] == ["yes"] * 8


def test_a_worker_that_changes_its_messages_later_changes_no_rollout(tmp_path, tok):
    stream = samples(tok, 12)

    class Meddler(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            for one in stream:
                one.prompt[0]["content"] = one.completion[0]["content"] = "meddled"

    trainer = make_async(tmp_path, stream, callbacks=[Meddler()])
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts(step=1))
    assert [(r.prompt[0]["content"], said(r)) for r in stored] == [("question 0", f"hello {n}") for n in range(4)]


def test_traces_of_trl_itself_stand_beside_ours_in_trackio(tmp_path, tok):
    stream = [sample(tok, n, group=n // 4, version=n // 8 + 1) for n in range(80)]
    options = {"report_to": ["trackio"], "project": f"async-{tmp_path.name}", "run_name": "r"}
    _, run = trained(tmp_path, stream, per_device_train_batch_size=8, max_steps=9, **options)
    until(lambda: len(SQLiteStorage.get_traces(options["project"], "r", limit=200)) >= 88)  # TRL's go by a thread
    found = SQLiteStorage.get_traces(options["project"], "r", limit=200)
    ours = {trace["metadata"]["id"]: trace for trace in found if "id" in trace["metadata"]}
    assert set(ours) == {r.id for r in run.rollouts()}
    assert Counter("id" in trace["metadata"] for trace in found) == {True: 80, False: 8}
    assert ours[run.rollouts()[0].id]["metadata"]["marks/trained"] == "yes"


def test_the_host_knows_these_trainers_alone(tmp_path, tok):
    host = AsyncHost()
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        assert host.matches(make_async(tmp_path / kind, [], kind=kind))
    assert not host.matches(Scripted([]))


def by_len(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize("environment", [Counted, partial(Counted), {"one": Counted, "two": partial(Counted)}])
def test_rewards_and_tools_of_the_worker_are_facts_of_the_run(tmp_path, tok, environment):
    trainer = make_async(tmp_path, rewards=[partial(by_len, x=1)], tools=[multiply], environment=environment)
    facts = AsyncHost().describe(trainer)
    assert facts["reward_names"] == ("by_len", "Counted")
    assert facts["reward_weights"] == (1.0, 1.0)
    assert [tool["function"]["name"] for tool in facts["tools"]] == ["multiply", "increment"]
    assert list(facts["tools"][1]["function"]["parameters"]["properties"]) == ["by"]
    assert facts["settings"]["max_staleness"] == trainer.args.max_staleness


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_keeps_its_word(tmp_path, tok, kind):
    trainer, run = trained(tmp_path, samples(tok, 12, kind), kind=kind, tokens=True)
    base = type(trainer).__mro__[2].__name__
    (word,) = [support for support in AsyncHost.supports if support.trainer == base]
    stored = list(run.rollouts(tokens=True))
    assert word.messages == "as they were"
    assert all(r.prompt and r.completion for r in stored)
    assert (word.rewards == "each function") == all(r.rewards and r.reward is not None for r in stored)
    assert word.advantage == all(r.advantage is not None for r in stored)
    assert word.groups == any(r.group_size > 1 for r in stored)
    assert (word.logprobs == "sampler") == all(r.tokens.logprobs is not None for r in stored)
    assert not word.evaluation
    assert {r.split for r in stored} == {"train"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_copy_of_the_trainers_source_gives_the_same_rollouts(tmp_path, tok, kind, monkeypatch):
    _, pristine = trained(tmp_path / "pristine", samples(tok, 20, kind), kind=kind, tokens=True)
    name = {"grpo": "AsyncGRPO", "distillation": "AsyncDistillation"}[kind]
    rigged = getattr(async_rig, name)
    bases = (async_rig.Truth, copy_of(rigged.__mro__[2]))
    monkeypatch.setattr(async_rig, name, type(name, bases, {"number": rigged.number}))
    _, run = trained(tmp_path / "copy", samples(tok, 20, kind), kind=kind, tokens=True)
    assert fates(run) == fates(pristine)
    assert [facts(r) for r in run.rollouts(tokens=True)] == [facts(r) for r in pristine.rollouts(tokens=True)]
    assert run.health.drops == pristine.health.drops
