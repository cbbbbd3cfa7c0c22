"""AsyncGRPO and AsyncDistillation: every sample the trainer received is there, with what became of it."""

import gc
import json
import logging
import os
import tempfile
import weakref
from collections import Counter
from functools import partial

os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))

import async_rig
import numpy as np
import pytest
import torch
from async_rig import Scripted, distilled, ids_of, logprob_of, make_async, number_of, sample, tokenizer
from copies import copy_of, facts
from tools import Counted, multiply
from trackio.sqlite_storage import SQLiteStorage
from transformers import TrainerCallback
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TurnRecord, _chain_to_sequences

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.hosts.async_queue import AsyncHost

KINDS = {"grpo": sample, "distillation": distilled}


@pytest.fixture
def tok(tmp_path):
    return tokenizer(tmp_path)


def samples(tok, count, kind="grpo", **changes):
    return [KINDS[kind](tok, number, group=number // 4, **changes) for number in range(count)]


def trained(folder, stream, *, kind="grpo", plugins=(), tokens=False, **config):
    """A training on these samples, and its run."""
    trainer = make_async(folder, stream, kind=kind, **config)
    trainer.add_callback(RolloutPluginCallback(plugins, tokens=tokens))
    trainer.train()
    return trainer, open_run(folder / "out")


def said(rollout):
    return rollout.completion[0]["content"].removesuffix("<|im_end|>")


def fates(run):
    return {said(r): (r.step, r.marks["trained"]) for r in run.rollouts()}


def with_truth(trainer, numbers, rest):
    """What the store has to say: the truth of those that were trained, and `rest` of the others."""
    steps = trainer.truth
    return {f"hello {n}": (steps[n], "yes") if n in steps else rest.get(n, rest[None]) for n in numbers}


# --- fates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_received_is_stored_once_with_its_step_and_fate(tmp_path, tok, kind):
    trainer, run = trained(tmp_path, samples(tok, 20, kind), kind=kind, gradient_accumulation_steps=2)
    assert len(trainer.truth) == 16
    assert fates(run) == with_truth(trainer, range(20), {None: (2, "no: left_over")})
    assert (run.drops, run.untrained) == ({}, {"left_over": 4})
    assert len(list(run.rollouts())) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_stale_samples_are_stored_and_counted(tmp_path, tok, kind):
    stream = samples(tok, 15, kind)
    for number in (1, 7, 8):
        stream[number].model_version = -3
    trainer, run = trained(tmp_path, stream, kind=kind, max_staleness=3)
    assert trainer.state.log_history[0]["sample/dropped_stale_total"] >= 1
    rest = {1: (1, "no: stale"), 7: (1, "no: stale"), 8: (1, "no: stale"), None: (2, "no: left_over")}
    assert fates(run) == with_truth(trainer, range(15), rest)
    assert (run.drops, run.untrained) == ({}, {"stale": 3, "left_over": 4})
    assert {r.extra["staleness"] for r in run.rollouts() if r.marks["trained"] == "no: stale"} == {4}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_over_the_token_budget_are_stored_and_counted(tmp_path, tok, kind):
    stream = samples(tok, 60, kind)  # AsyncGRPO packs what they share only once
    stream[2] = KINDS[kind](tok, 2, "hello 2" + " four" * 90, group=0)
    trainer, run = trained(tmp_path, stream, kind=kind, token_budget=60)
    received = 60 - trainer.rollout_queue.qsize()
    truth = with_truth(trainer, range(received), {2: (1, "no: over_budget"), None: (None, "no: left_over")})
    truth["hello 2" + " four" * 90] = truth.pop("hello 2")
    assert {text: (None if "left" in fate else step, fate) for text, (step, fate) in fates(run).items()} == truth
    assert run.untrained["over_budget"] == 1


def test_a_stream_of_which_nothing_is_trained_does_not_pile_up(tmp_path, tok):
    stream = samples(tok, 700, version=-9)
    stream[255:255] = forked(tok, 999, group=999)  # across the border of what is handed over at once
    for row in stream[255:257]:
        row.model_version = -9
    trainer = make_async(tmp_path, stream)
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(RuntimeError, match="the worker died"):
        trainer.train()
    callback.flush()
    run = open_run(tmp_path / "out")
    stored = [r for r in run.rollouts() if "forks" not in r.marks]
    assert [said(r) for r in stored] == [f"hello {n}" for n in range(700)]
    assert len(run) == 701
    assert {r.marks["trained"] for r in run.rollouts()} == {"no: stale"}
    assert len({r.generation for r in run.rollouts()}) == 3


def test_a_sample_dropped_for_reasons_of_its_own_is_told_by_what_overtook_it(tmp_path, tok):
    class Lenient(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            args.max_staleness = 99  # too late: the dataset has the old limit

    stream = samples(tok, 13)
    stream[1].model_version = -9
    _, run = trained(tmp_path, stream, callbacks=[Lenient()])
    assert fates(run)["hello 1"] == (1, "no: dropped")
    assert {r.generation for r in run.rollouts(step=1)} == {0}
    assert (run.drops, run.untrained) == ({}, {"dropped": 1, "left_over": 4})


def test_versions_are_kept_as_the_updates_the_weights_had(tmp_path, tok):
    stream = samples(tok, 24)
    for number in range(12, 24):
        stream[number].model_version = 2 if number < 20 else 3
    _, run = trained(tmp_path, stream, max_steps=5, weight_sync_steps=2, max_staleness=9)
    by = {said(r): (r.extra["model_version"], r.policy_step) for r in run.rollouts()}
    assert by["hello 0"] == (1, 0)
    assert by["hello 12"] == (2, 2)
    assert by["hello 20"] == (3, 4)


def test_a_resumed_training_goes_on_in_the_run_with_the_updates_counted_on(tmp_path, tok):
    options = {"save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, samples(tok, 12), **options)
    trainer = make_async(tmp_path, [sample(tok, n, group=n // 4) for n in range(20, 32)], max_steps=3, **options)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    run = open_run(tmp_path / "out")
    assert (run.info.resumed_from, run.info.attempt) == (1, 2)
    again = {said(r): (r.step, r.policy_step) for r in run.rollouts() if r.attempt == 2}
    assert again == {f"hello {n}": (2 if n < 24 else 3, 1) for n in range(20, 32)}
    assert [said(r) for r in run.rollouts() if r.attempt == 1] == [f"hello {n}" for n in range(4)]


# --- forks and groups -------------------------------------------------------------------------------------------------


def forked(tok, number, *, group=0, threshold=0, answer="four"):
    """The rows TRL makes of a conversation with a tool whose first answer came out in other tokens."""
    messages = [{"role": "user", "content": f"question {group}"}]
    before, _ = ids_of(tok, messages, "")
    first = [*tok("hel", add_special_tokens=False)["input_ids"], *tok("lo", add_special_tokens=False)["input_ids"]]
    said = {"role": "assistant", "content": "hello"}
    tool = {"role": "tool", "name": "multiply", "content": "6"}
    again, last = ids_of(tok, [*messages, said, tool], answer)
    turns = [
        TurnRecord(before, [*first, tok.eos_token_id], [logprob_of(number)] * (len(first) + 1)),
        TurnRecord(again, last, [logprob_of(number + 1)] * len(last)),
    ]
    sequences, tally = _chain_to_sequences(turns, "x", threshold)
    assert tally["fork"] == 1
    return [
        RolloutSample(
            prompt=json.loads(json.dumps(messages)),
            completion=json.loads(json.dumps([said, tool, {"role": "assistant", "content": answer}])),
            input_ids=np.array(sequence.input_ids),
            completion_mask=np.array(sequence.completion_mask),
            old_log_probs=np.array(sequence.old_log_probs, np.float32),
            advantage=0.5,
            model_version=1,
            group_id=group,
            metrics={"reward": 1.0, "rewards/by_len": 1.0},
        )
        for sequence in sequences
    ]


def test_forks_of_one_conversation_are_one_rollout_and_equal_siblings_are_not(tmp_path, tok):
    stream = [*forked(tok, 0), *forked(tok, 2), *[sample(tok, 4, "same", group=1) for _ in range(8)]]
    assert [len(a.input_ids) for a in stream[:2]] == [len(b.input_ids) for b in stream[2:4]]
    _, run = trained(tmp_path, stream, tokens=True)
    stored = list(run.rollouts(tokens=True))
    assert [r.group for r in stored] == [0, 0, *[1] * 8]
    forks = "came as 2 rows, whose tokens differ"
    assert [r.marks.get("forks") for r in stored] == [forks, forks, *[None] * 8]
    assert [number_of(r.tokens.logprobs[0]) for r in stored[:3]] == [0, 2, 4]
    written = [row.input_ids[row.completion_mask.argmax() :].tolist() for row in stream[:2]]
    tokens = stored[0].tokens
    assert [*tokens.prompt, *written[0]] == stream[0].input_ids.tolist()
    assert tokens.completion == [*written[0], *written[1]]
    assert sum(tokens.mask) == stored[0].completion_tokens == len(tokens.completion)
    assert [number_of(value) for value in tokens.logprobs] == [0] * len(written[0]) + [1] * len(written[1])


def test_siblings_that_say_the_same_in_other_tokens_are_two(tmp_path, tok):
    stream = samples(tok, 12)
    pieces = tok("he", add_special_tokens=False)["input_ids"] + tok("llo 0", add_special_tokens=False)["input_ids"]
    before, _ = ids_of(tok, stream[0].prompt, "")
    ids = [*before, *pieces, tok.eos_token_id]
    stream[1] = sample(tok, 0)
    stream[1].input_ids = np.array(ids)
    stream[1].completion_mask = np.array([0] * len(before) + [1] * (len(pieces) + 1))
    stream[1].old_log_probs = np.zeros(len(ids), np.float32)
    assert stream[1].completion == stream[0].completion
    assert stream[1].input_ids.tolist() != stream[0].input_ids.tolist()
    _, run = trained(tmp_path, stream)
    assert len(list(run.rollouts())) == 12


def test_a_conversation_cut_by_a_step_is_one_rollout_of_its_first_step(tmp_path, tok):
    stream = [*samples(tok, 3), *forked(tok, 20, group=5), *samples(tok, 10)[3:]]
    trainer, run = trained(tmp_path, stream, max_steps=2)
    assert (trainer.truth[20], trainer.truth[21]) == (1, 2)
    (cut,) = [r for r in run.rollouts() if r.group == 5]
    assert (cut.step, cut.marks["trained"]) == (1, "yes")


def test_a_conversation_of_which_a_part_was_trained_says_so(tmp_path, tok):
    stream = [*samples(tok, 7), *forked(tok, 20, group=5), *samples(tok, 10)[7:]]
    _, run = trained(tmp_path, stream)
    (cut,) = [r for r in run.rollouts() if r.group == 5]
    assert (cut.step, cut.marks["trained"]) == (2, "1 of 2 rows; no: left_over")
    assert (run.drops, run.untrained) == ({}, {"left_over": 3})


def test_groups_that_interleave_and_are_cut_keep_their_number(tmp_path, tok):
    order = [0, 4, 1, 5, 2, 6, 8, 3, 7, 9, 10, 11]
    made = samples(tok, 12)
    _, run = trained(tmp_path, [made[number] for number in order])
    stored = list(run.rollouts())
    assert [said(r) for r in stored] == [f"hello {n}" for n in order]
    assert [r.group for r in stored] == [n // 4 for n in order]
    assert {r.group_size for r in stored} == {4}
    assert [r.index for r in stored if r.step == 1] == [0, 1, 2, 3]


# --- what is in a rollout ---------------------------------------------------------------------------------------------


def test_a_rollout_holds_what_the_sample_held(tmp_path, tok):
    stream = samples(tok, 12)
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
    assert rollout.extra["seconds_in_queue"] > 0
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
    assert run.drops["not_observed"] == 1
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


# --- training is left alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_to_the_bit(tmp_path, tok, kind):
    def weights_and_losses(folder, callback):
        folder.mkdir()
        stream = samples(tok, 22, kind)
        for number in (3, 9):
            stream[number].model_version = -9
        trainer = make_async(folder, stream, kind=kind, gradient_accumulation_steps=2, learning_rate=1e-2)
        if callback is not None:
            trainer.add_callback(callback)
        trainer.train()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), losses, torch.rand(3)

    plain = weights_and_losses(tmp_path / "plain", None)
    watched = weights_and_losses(tmp_path / "watched", RolloutPluginCallback(tokens=True, rendered=True))
    assert torch.equal(plain[0], watched[0])
    assert plain[1] == watched[1]
    assert len(plain[1]) == 2
    assert torch.equal(plain[2], watched[2])


def test_everything_is_taken_off_at_the_end(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    before = [set(vars(x)) for x in (trainer, trainer.callback_handler, trainer.rollout_worker, trainer.rollout_queue)]
    callback = RolloutPluginCallback()
    trainer.add_callback(callback)
    trainer.train()
    assert set(vars(trainer.callback_handler)) == before[1] | {"train_dataloader"}
    callback.detach()
    after = [set(vars(x)) for x in (trainer, trainer.callback_handler, trainer.rollout_worker, trainer.rollout_queue)]
    ours = {"training_step", "get_train_dataloader", "log", "on_step_end", "on_epoch_end", "stop", "get"}
    assert not [new - old & ours for old, new in zip(before, after, strict=True) if (new - old) & ours]
    loader = trainer.callback_handler.train_dataloader
    assert "torch_call" not in vars(loader.collate_fn)
    assert trainer._rollout_dataset.queue is trainer.rollout_queue


@pytest.mark.parametrize("way", ["callbacks", "class", "instance", "trainer"])
def test_however_it_is_added(tmp_path, tok, way):
    trainer = make_async(tmp_path, samples(tok, 12), callbacks=[RolloutPluginCallback] if way == "callbacks" else None)
    if way != "callbacks":
        added = {
            "class": RolloutPluginCallback,
            "instance": RolloutPluginCallback(),
            "trainer": RolloutPluginCallback(trainer=trainer),
        }
        trainer.add_callback(added[way])
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 12
    assert open_run(tmp_path / "out").info.host == "async"


def test_two_callbacks_and_a_second_training(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    for name in ("one", "two"):
        trainer.add_callback(RolloutPluginCallback(dir=tmp_path / name))
    trainer.train()
    trainer.rollout_worker.start()
    trainer.train()
    for name in ("one", "two"):
        runs = sorted((tmp_path / name).iterdir())
        assert [len(open_run(run)) for run in runs] == [12, 12]


def test_the_queue_is_read_as_before_in_every_way(tmp_path, tok):
    seen = []

    class Reader(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            watched = trainer._rollout_dataset.queue
            seen.extend([watched.get(True, 1), watched.get(timeout=1), watched.get_nowait(), watched.qsize()])

    trainer = make_async(tmp_path, samples(tok, 18), max_steps=1)
    trainer.add_callback(RolloutPluginCallback())
    trainer.add_callback(Reader())
    trainer.train()
    assert [s.completion[0]["content"] for s in seen[:3]] == ["hello 8", "hello 9", "hello 10"]
    assert seen[3] == 7
    assert len(open_run(tmp_path / "out")) == 11


def test_a_collator_nobody_knows_leaves_the_fate_open_and_says_so(tmp_path, tok, caplog):
    trainer = make_async(tmp_path, samples(tok, 12))
    original = trainer.get_train_dataloader

    def changed():
        loader = original()
        collator = loader.base_dataloader.collate_fn
        loader.base_dataloader.collate_fn = partial(collator)
        return loader

    trainer.get_train_dataloader = changed
    trainer.add_callback(RolloutPluginCallback())
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    assert "partial has no method torch_call" in caplog.text
    run = open_run(tmp_path / "out")
    assert len(run) == 12
    assert {r.marks["trained"] for r in run.rollouts()} == {"unknown"}
    assert run.drops == {}


def test_micro_batches_that_look_different_leave_the_fate_open_from_then_on(tmp_path, tok):
    class Batches(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            collator = trainer.callback_handler.train_dataloader.collate_fn
            watched = collator.torch_call
            collator.torch_call = lambda examples: watched(iter(examples))

    trainer = make_async(tmp_path, samples(tok, 20), max_steps=4)
    trainer.add_callback(RolloutPluginCallback())
    trainer.add_callback(Batches())
    trainer.train()
    stored = fates(open_run(tmp_path / "out"))
    assert len(stored) == 20
    assert {stored[f"hello {n}"] for n in range(4)} == {(1, "yes")}
    assert {fate for _, fate in stored.values()} == {"yes", "unknown"}


def test_traces_of_trl_itself_stand_beside_ours_in_trackio(tmp_path, tok):
    stream = [sample(tok, n, group=n // 4, version=n // 8 + 1) for n in range(80)]
    options = {"report_to": ["trackio"], "project": f"async-{tmp_path.name}", "run_name": "r"}
    _, run = trained(tmp_path, stream, per_device_train_batch_size=8, max_steps=9, **options)
    found = SQLiteStorage.get_traces(options["project"], "r", limit=200)
    ours = {trace["metadata"]["id"]: trace for trace in found if "id" in trace["metadata"]}
    assert set(ours) == {r.id for r in run.rollouts()}
    assert Counter("id" in trace["metadata"] for trace in found) == {True: 80, False: 8}
    assert ours[next(run.rollouts()).id]["metadata"]["marks/trained"] == "yes"


class Closed(Scripted):
    """Cannot be seen to stop."""

    def __setattr__(self, name, value):
        if name == "stop":
            raise AttributeError("no more attributes")
        super().__setattr__(name, value)


def test_a_worker_that_takes_no_attributes_is_left_alone(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    trainer.rollout_worker.__class__ = Closed
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 12


# --- when training dies -----------------------------------------------------------------------------------------------


class Dies(TrainerCallback):
    """Raises in one of the trainer's events, in step 2."""

    def __init__(self, event, error):
        self.error = error
        setattr(self, event, self.die)

    def die(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise self.error


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["get", "training_step", "on_optimizer_step", "on_step_end", "on_log"])
def test_whatever_ends_training_what_was_received_is_stored(tmp_path, tok, place, kind):
    error = kind("no more")  # of this test alone: it holds on to the trainer
    trainer = make_async(tmp_path, samples(tok, 10 if place == "get" else 24), max_steps=5)
    if place == "get":
        trainer.rollout_worker.death = error
    elif place == "training_step":
        original = trainer.training_step

        def fail(*args, **kwargs):
            if trainer.state.global_step == 1:
                raise error
            return original(*args, **kwargs)

        trainer.training_step = fail
    else:
        trainer.add_callback(Dies(place, error))
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(kind) as caught:
        trainer.train()
    assert caught.value is error
    assert trainer.rollout_worker.stopped == 1
    callback.flush()
    stored = fates(open_run(tmp_path / "out"))
    received = len(trainer.rollout_worker.samples) - trainer.rollout_queue.qsize()
    assert set(stored) == {f"hello {n}" for n in range(received)}
    for number in range(received):
        is_trained = trainer.truth.get(number, 99) <= trainer.state.global_step
        assert stored[f"hello {number}"][1] == ("yes" if is_trained else "no: broke_off")


def test_a_training_that_dies_without_its_worker_being_seen_to_stop_hands_over_when_the_run_ends(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 10), max_steps=5)
    trainer.rollout_worker.__class__ = Closed
    trainer.rollout_worker.death = RuntimeError("no more")
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(RuntimeError):
        trainer.train()
    make_async(tmp_path / "next", samples(tok, 12), callbacks=[callback]).train()
    assert set(fates(open_run(tmp_path / "out"))) == {f"hello {n}" for n in range(10)}


def test_after_a_training_that_died_the_next_one_is_recorded(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 6))
    trainer.add_callback(RolloutPluginCallback())
    with pytest.raises(RuntimeError):
        trainer.train()
    trainer.rollout_worker.samples = [sample(tok, n, group=9) for n in range(20, 32)]
    trainer.rollout_worker.start()
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [said(r) for r in run.rollouts(where="marks like '%yes%'")] == [f"hello {n}" for n in range(20, 28)]
    assert len(list(run.rollouts(superseded=True))) == 18


def test_arrays_are_let_go_when_the_trainer_lets_them_go(tmp_path, tok):
    def alive(folder, callbacks):
        folder.mkdir()
        stream = samples(tok, 12)
        trainer = make_async(folder, stream, callbacks=callbacks)
        trainer.train()
        arrays = [weakref.ref(one.input_ids) for one in stream]
        trainer.rollout_worker.samples = stream = None
        gc.collect()
        return sum(array() is not None for array in arrays)

    plain = alive(tmp_path / "plain", [])
    assert alive(tmp_path / "watched", [RolloutPluginCallback()]) == plain < 12


# --- what it says of itself -------------------------------------------------------------------------------------------


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
    assert run.drops == pristine.drops
