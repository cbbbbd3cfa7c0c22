"""Each trainer of TRL that makes rollouts: a real run, all of it in the store, and nothing changed by recording it."""

import pytest
import torch
from finished_trainings import LATE, trained
from trainers import KINDS, RUNNABLE, TRL, Version, hosts, kinds, make, through_vllm, tok

from rollout_plugins import RolloutPluginCallback, open_run

GROUPS = ("grpo", "rloo")
HAS_PROMPT_LENGTHS = Version("0.24") <= TRL


def assert_same(one, other):
    assert one.losses == other.losses
    assert all(torch.equal(weight, other.weights[name]) for name, weight in one.weights.items())
    assert one.attributes == other.attributes


def in_order(name, truth):
    """The truth as it is stored: train before eval, and the two completions of a prompt side by side."""
    if name == "online dpo":
        blocks = [truth[i : i + 8] for i in range(0, len(truth), 8)]
        truth = [row for block in blocks for pair in zip(block[:4], block[4:], strict=True) for row in pair]
    return sorted(truth, key=lambda row: row["split"] == "eval")


def by_split(rollouts):
    return sorted(rollouts, key=lambda rollout: rollout.split == "eval")


def text(done, ids):
    """What the trainer's own decoding gives, or ours without the token that ended the answer."""
    if "decoded" not in done.support.messages:
        return tok().decode(ids, skip_special_tokens=True)
    return tok().decode(ids[:-1] if ids[-1] == tok().eos_token_id else ids)


def rendered(prompt):
    return tok().apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=False)


@kinds
def test_every_rollout_is_there_word_for_word(name):
    assert_whole(trained(name, "in callbacks"))


@pytest.mark.parametrize("name", [name for name in ("distillation", "a2po", "online dpo", "gold") if name in RUNNABLE])
@pytest.mark.slow
def test_a_callback_added_as_a_class_sees_everything_too(name):
    assert_whole(trained(name, "added as class"))


def assert_whole(done):
    name = done.name
    truth = in_order(name, done.truth)
    stored = by_split(done.rollouts)
    assert len(stored) == len(truth) > 0
    assert done.run.health.drops == {}
    assert len({rollout.id for rollout in stored}) == len(stored)
    for rollout, row in zip(stored, truth, strict=True):
        assert rollout.split == row["split"]
        assert rendered(rollout.prompt) == tok().decode(row["prompt"])
        assert [message["content"] for message in rollout.completion] == [text(done, row["completion"])]
        assert rollout.prompt_is_text is False
        assert (rollout.marks.get("source") == "teacher") is (row["model"] == "teacher_model")
        assert (rollout.policy_step is None) is (row["model"] == "teacher_model")
        if row["model"] == "model":
            assert rollout.policy_step == row["step"]
            assert rollout.step == row["step"] + (row["split"] == "train")
    assert [attempt["attempt"] for attempt in done.run.attempts] == [1]


@kinds
def test_token_ids_are_those_that_were_generated(name):
    done = trained(name, LATE[name])
    truth = in_order(name, done.truth)
    stored = by_split(done.rollouts)
    assert len(stored) == len(truth)
    for rollout, row in zip(stored, truth, strict=True):
        if rollout.marks.get("stage"):
            assert rollout.tokens is None
            continue
        if name not in GROUPS or HAS_PROMPT_LENGTHS:
            assert list(rollout.tokens.prompt) == row["prompt"]
            assert rollout.prompt_tokens == len(row["prompt"])
            assert rollout.rendered == tok().decode(row["prompt"])
        assert list(rollout.tokens.completion) == row["completion"]
        assert list(rollout.tokens.mask) == [1] * len(row["completion"])
        assert rollout.completion_tokens == len(row["completion"])
        ended = row["completion"][-1] in (tok().eos_token_id, tok().pad_token_id)
        assert rollout.finish == ("stop" if ended else "length")
    assert all(
        rollout.tokens is None and rollout.rendered is None for rollout in trained(name, "in callbacks").rollouts
    )


@kinds
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.slow
def test_training_is_the_same_to_the_bit_and_the_trainer_left_as_it_was(name, tokens):
    done, alone = trained(name, LATE[name] if tokens else "in callbacks"), trained(name, "alone")
    assert_same(done.outcome, alone.outcome)
    assert not [key for key in done.made if key not in alone.made]
    assert len(done.outcome.losses) == 2
    loader = done.loader
    while "collate_fn" not in vars(loader):
        loader = vars(loader).get("dataloader") or vars(loader)["base_dataloader"]
    assert not hasattr(loader.collate_fn, "_link")


@kinds
def test_a_host_keeps_its_word(name):
    done, support = trained(name, "in callbacks"), trained(name, "in callbacks").support
    stage = [rollout for rollout in done.rollouts if not rollout.marks.get("stage")]
    scored = support.rewards != "none"
    for rollout in stage:
        assert (rollout.reward is not None) is scored
        assert tuple(rollout.rewards) == done.run.info.reward_names
        assert bool(rollout.rewards) is scored
        assert (rollout.advantage is not None) is support.advantage
        assert (rollout.group_size > 1) is support.groups
        knows_prompts = support.lengths == "prompt and completion" and (name not in GROUPS or HAS_PROMPT_LENGTHS)
        assert (rollout.prompt_tokens is not None) is knows_prompts
        assert (rollout.completion_tokens is not None) is (support.lengths != "with tokens=True")
        assert (rollout.finish != "unknown") is (support.lengths != "with tokens=True")
    assert any(rollout.split == "eval" for rollout in stage) is support.evaluation
    for rollout in trained(name, LATE[name]).rollouts:
        assert rollout.tokens is None or rollout.tokens.logprobs is rollout.tokens.trainer_logprobs is None
    groups = {}
    for rollout in stage:
        groups.setdefault((rollout.split, rollout.generation, rollout.group), []).append(rollout)
    for group in groups.values():
        assert len(group) == group[0].group_size
        assert len({str(rollout.prompt) for rollout in group}) == 1


LOGPROBS = {"sampler": "logprobs", "trainer": "trainer_logprobs", "reference": "reference_logprobs"}


def sampled(prompts, trainer):
    """A `rollout_func` that knows the sampler's log-probabilities."""
    ids = [[30 + i, 31, tok().eos_token_id] for i in range(len(prompts))]
    logprobs = [[-0.5, -0.25, -1.0 - i] for i in range(len(prompts))]
    return {"prompt_ids": [[5, 6]] * len(prompts), "completion_ids": ids, "logprobs": logprobs}


HAS_SAMPLERS = Version("1.0") <= TRL  # without vLLM; test_vllm has what it tells
ALL_THERE_IS = {  # settings in which a trainer has all log-probabilities it can have
    "grpo": {"num_iterations": 2, "beta": 0.1, "arguments": {"rollout_func": sampled} if HAS_SAMPLERS else {}},
    "gmpo": {"num_iterations": 2, "beta": 0.1},
    "rloo": {"num_iterations": 2, "beta": 0.1},
    "sdpo": {"num_iterations": 2},
    "sdft": {"num_iterations": 2},
}


@pytest.mark.parametrize("name", [name for name in RUNNABLE if name != "sdft, teacher's prompts"])
@pytest.mark.slow
def test_log_probabilities_are_kept_where_the_trainer_has_them(tmp_path, name):
    config = {"eval_strategy": "no"} | ALL_THERE_IS.get(name, {})
    trainer = make(tmp_path, name, [RolloutPluginCallback(tokens=True)], **config)
    if name in {"gmpo", "iwopd"}:
        through_vllm(trainer)
    trainer.train()
    promised = next(s for host in hosts() for s in host.supports if s.trainer == KINDS[name].trainer).logprobs
    if not HAS_SAMPLERS:
        promised = promised.replace("sampler, ", "")
    for rollout in open_run(tmp_path / "out").rollouts(tokens=True):
        for who, name_of_it in LOGPROBS.items():
            values = rollout.tokens and getattr(rollout.tokens, name_of_it)
            assert (values is not None) is (who in promised), who
            assert values is None or len(values) == len(rollout.tokens.completion)
            assert values is None or all(value < 0 for value in values)
