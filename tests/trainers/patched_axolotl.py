"""axolotl's real GRPO trainers on a CPU. `.ci/patched` runs it where axolotl is installed.

The synchronous trainer is TRL's own with more around it. The asynchronous one generates on a thread and scores later,
in each of the ways its settings allow.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

os.environ.update(AXOLOTL_DO_NOT_TRACK="1", DO_NOT_TRACK="1")

import pytest
from ahead import Spied, assert_all_is_kept
from axolotl.core.trainers.grpo.args import AxolotlAsyncGRPOConfig, AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import (
    AxolotlAsyncGRPOTrainer,
    AxolotlGRPOTrainer,
)
from episodes import TOLD, heard, said
from PIL import Image
from processes import HERE, run_worker
from rig import call, dataset, scripted, tiny_model
from seeing import seeing
from tools import multiply
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollout_plugins import RolloutPluginCallback, open_run

SUPPORT = Path(__file__).parents[1] / "support"
ANSWERS = [f"answer number {n}" for n in range(64)]
ASYNC = {"async_prefetch": True}
PRODUCER = ASYNC | {"use_data_producer": True}
MODES = {
    "async": ASYNC,
    "producer": PRODUCER,
    "streaming": PRODUCER | {"streaming_partial_batch": True, "streaming_min_groups": 1},
    "workers": PRODUCER | {"reward_num_workers": 2},
    "iterations": PRODUCER | {"num_iterations": 2, "steps_per_generation": 2},
    "two ahead": ASYNC | {"prefetch_depth": 2},
}


def number(completions, **kwargs):
    return [int(completion[-1]["content"].split()[-1]) / 100 for completion in completions]


def picky(completions, **kwargs):
    return [None if completion[-1]["content"][-1] in "05" else 0.5 for completion in completions]


def made(folder, cls, config, script=ANSWERS, rewards=(number, picky), rows=None, path=None, **more):
    """A trainer of axolotl's that takes four steps, unless told otherwise."""
    args = {
        "output_dir": str(folder / "out"), "use_cpu": True, "bf16": False, "per_device_train_batch_size": 4, "seed": 7,
        "num_generations": 2, "max_completion_length": 64, "max_steps": 4, "logging_steps": 1, "save_strategy": "no",
        "report_to": [], "gradient_checkpointing": False, "disable_tqdm": True,
    }  # fmt: skip
    config_class = AxolotlAsyncGRPOConfig if issubclass(cls, AxolotlAsyncGRPOTrainer) else AxolotlGRPOConfig
    arguments = {
        "model": path or AutoModelForCausalLM.from_pretrained(tiny_model(folder)),
        "processing_class": AutoTokenizer.from_pretrained(tiny_model(folder)),
        "train_dataset": rows or dataset(32, level=list(range(32))),
    } | more
    if script:
        tokens = SimpleNamespace(processing_class=arguments["processing_class"])
        arguments["model"].generate = scripted(tokens, script)
    return cls(reward_funcs=list(rewards), args=config_class(**args | config), **arguments)


class SpiedAsync(Spied, AxolotlAsyncGRPOTrainer):
    pass


def trained(folder, trainer):
    callback = RolloutPluginCallback(tokens=True)
    trainer.add_callback(callback)
    trainer.train()
    for one in (trainer, getattr(trainer, "data_producer", None)):  # wait for what its thread still generates
        if getattr(one, "_executor", None) is not None:
            one._executor.shutdown()
    callback.on_epoch_end(None, None, None)  # or what came after the training is counted when the process ends
    assert callback.flush(600)
    return open_run(folder / "out")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_trained_on_is_stored_with_its_own_advantage_and_the_rest_says_so(tmp_path, mode):
    trainer = made(tmp_path, SpiedAsync, MODES[mode])
    run = trained(tmp_path, trainer)
    rollouts, rest = assert_all_is_kept(trainer, run)
    assert len(rollouts) >= 8
    assert rest
    for rollout in [*rollouts, *rest]:
        if rollout.advantage is not None:
            (said,) = rollout.completion
            assert rollout.rewards == {"number": number([[said]])[0], "picky": picky([[said]])[0]}


def test_the_synchronous_trainer_is_recorded_as_trls_own(tmp_path):
    trainer = made(tmp_path, AxolotlGRPOTrainer, {})
    run = trained(tmp_path, trainer)
    stored = list(run.rollouts())
    assert [rollout.rewards["number"] for rollout in stored] == [n / 100 for n in range(16)]
    assert all(rollout.advantage is not None and rollout.prompt_tokens for rollout in stored)
    assert run.health.drops == {}


def test_groups_that_a_replay_buffer_put_others_in_place_of_say_so(tmp_path):
    """The first half of the groups has no spread, so those that came before are trained on again."""
    script = [
        f"answer number {n}" for n in (10, 11, 12, 13, 20, 20, 30, 31, 40, 40, 50, 51, 60, 60, 70, 71, 80, 81, 90, 91)
    ]
    trainer = made(tmp_path, AxolotlAsyncGRPOTrainer, PRODUCER | {"replay_buffer_size": 8}, script, [number])
    run = trained(tmp_path, trainer)
    fates = {(number([rollout.completion])[0]): rollout.marks["trained"] for rollout in run.rollouts()}
    assert {n: fates[n] for n in (0.1, 0.2, 0.3, 0.31, 0.4, 0.5, 0.51)} == {
        0.1: "yes", 0.2: "no: replaced", 0.3: "yes", 0.31: "yes", 0.4: "no: replaced", 0.5: "yes", 0.51: "yes",
    }  # fmt: skip
    assert run.health.untrained["replaced"] == sum(fate == "no: replaced" for fate in fates.values()) * 2


def test_tools_that_are_called_on_the_thread_are_seen(tmp_path):
    asked = [call("multiply", {"a": n, "b": 2}) for n in (3, 4)]
    script = [asked[0], "plain", asked[1], "plain", "it is 6", "it is 8"]
    config = ASYNC | {"max_completion_length": 200}
    trainer = made(tmp_path, AxolotlAsyncGRPOTrainer, config, script, [talkative], tools=[multiply])
    run = trained(tmp_path, trainer)
    called = [rollout for rollout in run.rollouts(tokens=True) if rollout.tool_calls]
    assert len(called) == 10
    for rollout in called[2:]:
        (one,) = rollout.tool_calls
        _, answer, said = rollout.completion
        assert one.result == answer["content"] == str(one.arguments["a"] * 2)
        assert one.seconds is not None
        assert said["content"].startswith("it is")
        assert 0 < sum(rollout.tokens.mask) == rollout.completion_tokens < len(rollout.tokens.completion)


def talkative(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def test_images_and_evaluation(tmp_path):
    path, processor = seeing(tmp_path)
    pictures = [Image.new("RGB", (32, 28), (60 * i, 90, 160)) for i in range(4)]
    config = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "max_completion_length": 4}
    trainer = made(
        tmp_path, AxolotlAsyncGRPOTrainer, PRODUCER | config, None, [talkative], rows=dataset(4, image=pictures),
        path=path, processing_class=processor, eval_dataset=dataset(2, image=pictures[:2]),
    )  # fmt: skip
    run = trained(tmp_path, trainer)
    stored = list(run.rollouts())
    assert Counter(rollout.split for rollout in stored) == {"train": 20, "eval": 8}
    for rollout in stored:
        (image,) = rollout.images
        number = int(str(rollout.prompt).split("hello ")[1][0])
        assert Image.open(run.dir / image.path).convert("RGB").getpixel((0, 0)) == pictures[number].getpixel((0, 0))
    assert all(rollout.advantage is not None for rollout in stored if rollout.split == "eval")


def axolotl(out, ranks=None):
    """Run the worker, through a stand-in for vLLM's server."""
    run_worker("axolotl", out, ranks=ranks, path=[HERE / "vllm_package"], RIG_MODEL=tiny_model(out))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two ranks that train what the first one generates."""
    out = tmp_path_factory.mktemp("ranks")
    axolotl(out, ranks=2)
    return out


@pytest.mark.parametrize("mode", ["async", "producer", "streaming"])
def test_what_one_rank_generates_for_all_is_stored_once(ranks, mode):
    first, second = (json.loads((ranks / mode / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    run = open_run(ranks / mode / "out")
    stored = list(run.rollouts(tokens=True))
    ids = Counter(tuple(rollout.tokens.completion) for rollout in stored)
    alone = [rollout for rollout in stored if rollout.rank == 1]  # the data producer's first batch is of each rank
    assert len(alone) == (4 if mode == "producer" else 0)
    assert ids == Counter(tuple(own) for own, *_ in first["made"]) + Counter(tuple(r.tokens.completion) for r in alone)
    kept = {(tuple(r.tokens.completion), round(r.advantage, 4)) for r in stored if r.marks["trained"] == "yes"}
    assert kept == {(tuple(own), advantage) for one in (first, second) for own, advantage in one["given_out"]}
    batches = Counter(
        (rollout.generation, rollout.index) for rollout in stored if rollout.extra.get("seconds_in_queue")
    )
    assert set(batches.values()) == {1}
    assert {index for _, index in batches} == set(range(4 if mode == "producer" else 8))
    assert (run.health.drops, set(run.health.untrained)) == ({}, {"left_over"})


def test_what_a_function_plays_ahead_is_told_apart_and_its_fields_are_extra(tmp_path):
    """TRL 0.29 calls it where vLLM is used."""
    axolotl(tmp_path)
    stored = list(open_run(tmp_path / "out").rollouts(tokens=True))
    assert [rollout.extra["episode"] for rollout in stored] == list(range(20))
    for rollout in stored:
        assert rollout.completion == (said("I look."), heard("It is dark."), said("answer number 3"))
        assert rollout.marks["turns"] == TOLD["turns"]
        assert rollout.completion_tokens == sum(rollout.tokens.mask) < len(rollout.tokens.completion)
        assert tuple(rollout.columns) == ("level",)
        assert rollout.rewards in ({"number": 0.03}, {"number": None})
