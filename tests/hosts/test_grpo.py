"""GRPO and RLOO: each completion is recorded once and whole, under its step and group."""

import pytest
import torch
from rig import GRPO, RLOO, call, dataset, half
from strict import same
from tools import lookup, multiply, now, numbers, search
from whole import assert_whole, train

from rollout_plugins import Placeholder, RolloutPluginCallback

BATCHES = {
    "only calls without arguments": ([call("now", {})], [now], {}),
    "a nested empty object": ([call("lookup", {"items": [{}, {"a": {}}]})], [lookup], {}),
    "content blocks beside strings": ([call("search", {"query": "x"}), "plain"], [search], {}),
    "a list of mixed types as argument": ([call("lookup", {"items": [1, "a", 1.0, True, None]})], [lookup], {}),
    "a tool that returns a list of numbers": ([call("numbers", {})], [numbers], {}),
    "some call a tool and some do not": ([call("multiply", {"a": 2, "b": 3}), "nothing"], [multiply], {}),
    "two tools with other arguments": (
        [call("multiply", {"a": 2, "b": 3}), call("search", {"query": "x", "limit": 1})],
        [multiply, search],
        {},
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_that_stop_trl_read_back_equal(tmp_path, name):
    script, tools, options = BATCHES[name]
    trainer, run = train(tmp_path, [*script, "the end"], tools=tools, max_steps=2, **options)
    assert trainer.state.global_step == 2
    assert_whole(trainer, run)


def test_log_extra_of_any_kind_is_kept_or_marked(tmp_path):
    class Odd:
        def __repr__(self):
            raise RuntimeError("no repr")

    def scorer(completions, log_extra, **kwargs):
        n = len(completions)
        log_extra("fits", [{"x": {}}, [1, "a"], "\ud800", 10**400])
        log_extra("objects", [Odd() for _ in range(n)])
        log_extra("scalars", torch.tensor([0.5, 1.5, 2.5, 3.5]))
        log_extra("tensors", list(torch.ones(n, 2)))
        log_extra("short", ["only", "two"])
        return half(completions)

    _, run = train(tmp_path, ["a", "b"], rewards=scorer)
    rows = [rollout.extra for rollout in run.rollouts()]
    assert same([row["fits"] for row in rows], [{"x": {}}, [1, "a"], "\ud800", 10**400])
    assert [row["scalars"] for row in rows] == [0.5, 1.5, 2.5, 3.5]
    assert all(isinstance(row["objects"], Placeholder) for row in rows)
    assert rows[0]["tensors"].type == "torch.Tensor"
    assert rows[0]["short"] == ["only", "two"]
    assert ["short" in row for row in rows] == [True, False, False, False]
    assert "2 values" in run.rollouts()[0].marks["extra:short"]
    assert run.health.drops["unserialisable_field"] == 8


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_plain_string_prompts_read_back_as_strings(tmp_path, cls):
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": [f"hello {i}" for i in range(8)], "answer": [{"x": i} for i in range(8)]})
    trainer, run = train(tmp_path, cls=cls, rows=rows, max_steps=2)
    assert all(rollout.prompt_is_text and rollout.completion_is_text for rollout in run.rollouts())
    assert_whole(trainer, run)


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_logging_steps_do_not_thin_the_store_and_eval_does_not_touch_train(tmp_path, cls):
    trainer, run = train(
        tmp_path, cls=cls, max_steps=10, logging_steps=5, eval_strategy="steps", eval_steps=5, eval_rows=dataset(6),
        per_device_eval_batch_size=6, num_generations_eval=3,
    )  # fmt: skip
    assert len(list(run.rollouts(split="train"))) == 40
    assert [rollout.step for rollout in run.rollouts(split="train")] == [
        step for step in range(1, 11) for _ in range(4)
    ]
    assert {rollout.step for rollout in run.rollouts(split="eval")} == {5, 10}
    assert {rollout.group_size for rollout in run.rollouts(split="eval")} == {3}
    assert_whole(trainer, run)
    assert_whole(trainer, run, "eval")


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_each_completion_is_recorded_once_with_the_step_it_first_trains(tmp_path, cls):
    trainer, run = train(
        tmp_path, cls=cls, max_steps=6, num_iterations=3, steps_per_generation=2, gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
    )  # fmt: skip
    assert [rollout.step for rollout in run.rollouts()] == [1] * 4 + [4] * 4
    assert_whole(trainer, run)


def test_groups_and_indices_are_global(tmp_path):
    _, run = train(tmp_path, max_steps=1, num_generations=4, per_device_train_batch_size=8)
    assert [(r.index, r.group, r.group_size) for r in run.rollouts()] == [(i, i // 4, 4) for i in range(8)]


def test_rendered_keeps_the_templated_prompt_with_its_tool_definitions(tmp_path):
    _, run = train(
        tmp_path,
        [call("multiply", {"a": 1, "b": 1}), "x"],
        tools=[multiply],
        callback=RolloutPluginCallback(rendered=True),
    )
    rollout = run.rollouts()[0]
    assert '"name": "multiply"' in rollout.rendered
    assert rollout.rendered.endswith("<|im_start|>assistant\n")
    assert '"name": "multiply"' not in str(rollout.prompt)
    assert run.info.chat_template
    assert run.info.tools[0]["function"]["parameters"]["properties"]["a"] == {
        "type": "integer",
        "description": "first",
    }


def test_tokens_are_kept_only_when_asked_for(tmp_path):
    _, run = train(tmp_path / "without", [call("multiply", {"a": 1, "b": 1}), "x"], tools=[multiply])
    assert run.rollouts(tokens=True)[0].tokens is None
    trainer, run = train(
        tmp_path / "with", [call("multiply", {"a": 1, "b": 1})] * 4 + ["x"] * 4, tools=[multiply],
        callback=RolloutPluginCallback(tokens=True),
    )  # fmt: skip
    rollout = run.rollouts(tokens=True)[0]
    text = trainer._tokenizer.decode(rollout.tokens.completion)
    assert text.startswith("<tool_call>")
    assert sum(rollout.tokens.mask) == rollout.completion_tokens < len(rollout.tokens.completion)
