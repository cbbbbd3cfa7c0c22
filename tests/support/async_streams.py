"""Streams of samples for asynchronous trainers, and what became of them in the run."""

import json

import numpy as np
from async_rig import Scripted, distilled, ids_of, logprob_of, make_async, sample
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TurnRecord, _chain_to_sequences

from rollout_plugins import RolloutPluginCallback, open_run

KINDS = {"grpo": sample, "distillation": distilled}


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


class Closed(Scripted):
    """Cannot be seen to stop."""

    def __setattr__(self, name, value):
        if name == "stop":
            raise AttributeError("no more attributes")
        super().__setattr__(name, value)
