"""Unsloth's real trainers on a CPU: the same rollouts as from TRL's own. `.ci/patched` runs it where Unsloth is installed.

UNSLOTH_ALLOW_CPU is Unsloth's own switch for its tests: with it, the import succeeds without a GPU and leaves TRL as
it is. So TRL's own trainers run first, and then `PatchFastRL` puts Unsloth's in their place, as on a GPU. Its loader
needs a GPU, so the model is transformers' own with the two methods that the loader adds.
"""

from __future__ import annotations

import functools
import os
import tempfile

os.environ.update(
    UNSLOTH_ALLOW_CPU="1",
    UNSLOTH_COMPILE_LOCATION=tempfile.mkdtemp(prefix="unsloth-"),
    UNSLOTH_COMPILE_DISABLE="1",
    UNSLOTH_DISABLE_STATISTICS="1",
    TORCHDYNAMO_DISABLE="1",
)

import unsloth  # isort: skip - it asks to be imported first
import pytest
import torch
import trl
from copies import facts
from rig import call, dataset, half, scripted, tiny_model
from tools import multiply
from transformers import AutoTokenizer, Qwen3ForCausalLM
from unsloth.models.rl import PatchFastRL
from unsloth.models.vision import FastBaseModel

from rollout_plugins import RolloutPluginCallback, open_run

NAMES = {"grpo": "GRPO", "rloo": "RLOO"}
TRL_OWN = {kind: (getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")) for kind, name in NAMES.items()}
assert unsloth.__version__


CASES = [("grpo", "text"), ("grpo", "tools"), ("rloo", "text")]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Rollouts of TRL's own trainers."""
    folder = tmp_path_factory.mktemp("pristine")
    return {
        (kind, script): recorded(folder / f"{kind} {script}", TRL_OWN[kind], *SCRIPTS[script])[1]
        for kind, script in CASES
    }


@pytest.fixture(scope="module")
def patched(pristine):
    """Unsloth's trainers and configs, in TRL's places."""
    del os.environ["UNSLOTH_ALLOW_CPU"]
    PatchFastRL()
    return {kind: (getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")) for kind, name in NAMES.items()}


def model(folder):
    made = Qwen3ForCausalLM.from_pretrained(tiny_model(folder), dtype=torch.float32)
    made.for_training = functools.partial(FastBaseModel.for_training, made)
    made.for_inference = functools.partial(FastBaseModel.for_inference, made)
    return made


def recorded(folder, classes, script, tools, **config):
    """A training as people attach the callback to it; what is stored of it, and what the reward function got."""
    trainer_class, config_class = classes
    given = []

    def rewards(prompts, completions, level, **kwargs):
        given.extend(zip(prompts, completions, level, strict=True))
        return half(completions)

    args = config_class(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, fp16=False, optim="adamw_torch", seed=7,
        per_device_train_batch_size=4, gradient_accumulation_steps=1, num_generations=2, max_completion_length=200,
        **{"max_steps": 2} | config, logging_steps=1, save_strategy="no", report_to=[], gradient_checkpointing=False,
        disable_tqdm=True, learning_rate=1e-6, beta=0.0,
    )  # fmt: skip
    trainer = trainer_class(
        model=model(folder),
        processing_class=AutoTokenizer.from_pretrained(tiny_model(folder)),
        reward_funcs=[rewards],
        train_dataset=dataset(level=list(range(8))),
        eval_dataset=dataset(level=list(range(100, 108))),
        args=args,
        **({"tools": tools} if tools else {}),
    )
    trainer.model.generate = scripted(trainer, script)
    trainer.add_callback(RolloutPluginCallback(tokens=True, rendered=True))
    trainer.train()
    run = open_run(folder / "out")
    assert run.health.drops == {}
    return given, list(run.rollouts(tokens=True))


def told(rollout):
    """All facts but log-probabilities, which Unsloth computes in its own way."""
    known = facts(rollout)
    tokens = known.pop("tokens")
    return known | {"prompt_ids": list(tokens.prompt), "ids": list(tokens.completion), "mask": list(tokens.mask)}


def timed(rollout):
    return [one.seconds is not None for one in rollout.tool_calls]


@pytest.mark.parametrize("kind", NAMES)
def test_evaluation_is_told_from_training_though_unsloth_leaves_the_model_in_training_mode(tmp_path, patched, kind):
    given, stored = recorded(
        tmp_path, patched[kind], *SCRIPTS["text"], eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4,
    )  # fmt: skip
    assert len(stored) == len(given)
    assert [rollout.columns["level"] >= 100 for rollout in stored] == [rollout.split == "eval" for rollout in stored]
    assert {(rollout.split, rollout.step - rollout.policy_step) for rollout in stored} == {("train", 1), ("eval", 0)}


SCRIPTS = {
    "text": (["it is 42", "it is 41", "nobody knows"], None),
    "tools": ([call("multiply", {"a": 6, "b": 7}), "plain", call("multiply", {"a": 1}), call("none", {})], [multiply]),
}


@pytest.mark.parametrize(("kind", "script"), CASES)
def test_unsloths_trainer_gives_the_rollouts_of_trls(tmp_path, pristine, patched, kind, script):
    given, stored = recorded(tmp_path, patched[kind], *SCRIPTS[script])
    assert patched[kind][0] is not TRL_OWN[kind][0]
    assert len(stored) == len(given) == 8
    assert [told(rollout) for rollout in stored] == [told(rollout) for rollout in pristine[kind, script]]
    assert [timed(rollout) for rollout in stored] == [timed(rollout) for rollout in pristine[kind, script]]
    for rollout, (prompt, completion, level) in zip(stored, given, strict=True):
        assert [dict(message) for message in rollout.prompt] == prompt
        assert [dict(message) for message in rollout.completion] == completion
        assert rollout.columns == {"level": level}
