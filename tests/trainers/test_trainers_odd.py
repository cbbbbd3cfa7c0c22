"""What some trainers of TRL have besides: doubled prompts, tools, images, ranks."""

import inspect
import json
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from finished_trainings import trained
from lives import warnings
from PIL import Image
from processes import run_worker
from rig import call, dataset, tiny_model
from seeing import seeing
from tools import broken, multiply
from trainers import KINDS, RUNNABLE, TAKES_TOOLS, TRL, Version, hosts, kinds, make, needs, through_vllm, tok
from transformers import AutoModelForImageTextToText

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow


def test_every_trainer_a_host_names_is_tested():
    named = {support.trainer for host in hosts() for support in host.supports if support.is_of_trl}
    assert named == {kind.trainer for kind in KINDS.values()} | {"AsyncGRPOTrainer", "AsyncDistillationTrainer"}


@pytest.mark.parametrize("name", [n for n in ("gkd", "gold", "iwopd") if n in RUNNABLE])
@pytest.mark.parametrize("seed", [7, 9])
def test_only_what_the_student_wrote_is_a_rollout(tmp_path, name, seed):
    more = {"distillation_objective": "jsd"} if name == "iwopd" else {}
    callback = RolloutPluginCallback(tokens=True)
    trainer = make(tmp_path, name, [callback], lmbda=0.5, max_steps=4, seed=seed, **more)
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts(tokens=True))
    assert 0 < len(trainer.truth) < 32
    assert [(r.tokens.prompt, r.tokens.completion) for r in stored] == [
        (row["prompt"], row["completion"]) for row in trainer.truth
    ]
    assert [rollout.policy_step for rollout in stored] == [row["step"] for row in trainer.truth]
    for rollout in stored:
        assert rollout.columns["messages"][0] == rollout.prompt[0]


@pytest.mark.parametrize("name", [n for n in ("gkd", "gold", "iwopd") if n in RUNNABLE])
def test_rows_with_the_same_prompt_are_told_apart_or_said_not_to_be(tmp_path, name):
    rows = [
        [{"role": "user", "content": "the same"}, {"role": "assistant", "content": f"answer {i % 3}"}]
        for i in range(8)
    ]
    trainer = make(tmp_path, name, [RolloutPluginCallback()], rows=Dataset.from_dict({"messages": rows}))
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert len(stored) == len(trainer.truth)
    for rollout in stored:
        assert rollout.prompt == ({"role": "user", "content": "the same"},)
        assert bool(rollout.columns) is ("columns" not in rollout.marks)
    assert any("several rows" in rollout.marks.get("columns", "") for rollout in stored)


@needs("gkd")
def test_prompts_are_decoded_where_other_processes_collate(tmp_path, caplog):
    trainer = make(tmp_path, "gkd", [RolloutPluginCallback()], dataloader_num_workers=1, max_steps=1)
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [rollout.prompt[0]["content"] for rollout in stored] == [
        tok().decode(row["prompt"]) for row in trainer.truth
    ]
    assert {rollout.prompt_is_text for rollout in stored} == {True}
    assert sum("dataloader_num_workers is 1" in text for text in warnings(caplog)) == 1


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdpo", "sdft", "a2po", "online dpo") if n in RUNNABLE])
def test_prompts_that_are_plain_text_read_back_as_such(tmp_path, name):
    columns = {"prompt": [f"hello {i}" for i in range(8)], "privileged_context": ["hint"] * 8}
    rows = Dataset.from_dict(columns)
    trainer = make(tmp_path, name, [RolloutPluginCallback()], rows=rows, eval_rows=rows.select(range(4)))
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert len(stored) == len(trainer.truth)
    for rollout in stored:
        assert rollout.prompt_is_text
        assert rollout.completion_is_text
        assert rollout.prompt[0]["content"].startswith("hello ")


@needs("online dpo")
def test_online_dpo_keeps_the_rewards_it_compared_and_what_it_preferred(tmp_path):
    rows = dataset(answer=[str(i) for i in range(8)])
    script = ["good", "bad", "good", "bad", "bad", "bad", "good", "good"]
    trainer = make(
        tmp_path, "online dpo", [RolloutPluginCallback()], script=script, rows=rows, max_steps=1,
        gradient_accumulation_steps=1, remove_unused_columns=False, max_new_tokens=64,
        arguments={"reward_funcs": [lambda completions, **k: [float(c[0]["content"] == "good") for c in completions]]},
    )  # fmt: skip
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [rollout.completion[0]["content"] for rollout in stored] == [
        "good", "bad", "bad", "bad", "good", "good", "bad", "good",
    ]  # fmt: skip
    assert [rollout.marks["preference"] for rollout in stored] == [
        "chosen", "rejected", "chosen", "rejected", "chosen", "rejected", "rejected", "chosen",
    ]  # fmt: skip
    assert [rollout.reward for rollout in stored] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert [(rollout.index, rollout.group) for rollout in stored] == [(i, i // 2) for i in range(8)]
    assert all(f"hello {rollout.columns['answer']}" == rollout.prompt[0]["content"] for rollout in stored)
    assert open_run(tmp_path / "out").info.num_generations == 2


@needs("online dpo")
def test_online_dpo_takes_off_what_a_missing_end_costs():
    for rollout in trained("online dpo", "in callbacks").rollouts:
        summed = sum(value for value in rollout.rewards.values() if value is not None)
        assert rollout.reward == summed - (rollout.finish != "stop")


@pytest.mark.skipif(not TAKES_TOOLS, reason="DistillationTrainer takes no tools in this TRL")
def test_tools_of_distillation_are_told_by_what_they_did(tmp_path):
    good, bad = call("multiply", {"a": 2, "b": 3}), call("broken", {"x": 1})
    script = [good, bad + "\n" + good, "plain", call("nosuch", {}), good, bad, "the end", "the end"]
    trainer = make(
        tmp_path, "distillation", [RolloutPluginCallback(tokens=True)], script=script, arguments={"tools": [multiply, broken]},
        eval_strategy="no", max_completion_length=300, max_tool_calling_iterations=2, max_steps=1,
        gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer.train()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(tokens=True))
    told = [[(c.name, c.status) for c in rollout.tool_calls] for rollout in stored]
    assert told[0][0] == ("multiply", "ok")
    assert told[1][:2] == [("broken", "error"), ("multiply", "ok")]
    assert told[2] == []
    assert told[3][0] == ("nosuch", "unknown")
    assert stored[0].tool_calls[0].result == "6"
    assert stored[0].tool_calls[0].seconds > 0
    assert "backend" in stored[1].tool_calls[0].error
    assert [message["role"] for message in stored[0].completion][:2] == ["assistant", "tool"]
    for rollout in (stored[0], stored[1], stored[3]):
        assert sum(rollout.tokens.mask) == rollout.completion_tokens < len(rollout.tokens.completion)
    assert run.info.tools[0]["function"]["name"] == "multiply"


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdft", "gkd") if n in RUNNABLE])
def test_a_fill_up_token_that_the_model_wrote_itself_is_kept(tmp_path, name):
    trainer = make(tmp_path, name, [RolloutPluginCallback()], max_steps=1, eval_strategy="no")

    def generate(input_ids, **kwargs):
        made = torch.cat([input_ids, torch.tensor([[30, tok().pad_token_id]]).expand(len(input_ids), 2)], 1)
        return SimpleNamespace(sequences=made) if kwargs.get("return_dict_in_generate") else made

    trainer.model.generate = generate
    trainer.train()
    said = {rollout.completion[0]["content"] for rollout in open_run(tmp_path / "out").rollouts()}
    assert said == {tok().decode([30]) + tok().pad_token}


@needs("iwopd")
def test_iwopd_keeps_the_samplers_log_probabilities_when_vllm_gives_them(tmp_path):
    trainer = through_vllm(make(tmp_path, "iwopd", [RolloutPluginCallback(tokens=True)]))
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts(tokens=True))
    assert [list(rollout.tokens.completion) for rollout in stored] == trainer.vllm_generation.made * 2
    assert [list(rollout.tokens.logprobs) for rollout in stored] == [[-0.5 - i, -0.25, -1.0] for i in range(8)] * 2
    assert {rollout.policy_step for rollout in stored} == {0}  # the weights went to vLLM at step 0 alone
    assert {rollout.step for rollout in stored} == {1, 2}


def support(name):
    return next(s for host in hosts() for s in host.supports if s.trainer == KINDS[name].trainer)


@kinds
def test_tools_are_claimed_of_the_trainers_that_take_them(name):
    module = import_module(KINDS[name].module)
    takes = "tools" in inspect.signature(getattr(module, KINDS[name].trainer).__init__).parameters
    assert takes is support(name).tools or (Version("1.16") > TRL and not takes)


@pytest.mark.parametrize("name", [n for n in RUNNABLE if support(n).images])
def test_images_are_kept_of_the_trainers_that_are_said_to_have_them(tmp_path, name):
    path, processor = seeing(tmp_path)
    pictures = [Image.new("RGB", (32, 28), (20 * i, 90, 160)) for i in range(8)]
    rows = dataset(8, image=pictures)
    if name == "gold":
        rows = rows.add_column("completion", [[{"role": "assistant", "content": f"answer {i}"}] for i in range(8)])
    callback = RolloutPluginCallback()
    arguments = {"processing_class": processor}
    if name == "online dpo":
        arguments["model"] = AutoModelForImageTextToText.from_pretrained(path)
    trainer = make(
        tmp_path, name, [callback], model=path, rows=rows, eval_rows=rows.select(range(4)), script=["one", "two"],
        max_steps=1, arguments=arguments,
    )  # fmt: skip
    trainer.train()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts())
    assert len(stored) == len(trainer.truth) > 0
    for rollout in stored:
        number = int(str(rollout.prompt).split("hello ")[1][0])
        kept = Image.open(run.dir / rollout.images[0].path).convert("RGB")
        assert kept.getpixel((0, 0)) == pictures[number].getpixel((0, 0))


def test_two_ranks_keep_their_rollouts_under_places_of_the_whole_batch(tmp_path):
    names = [name for name in ("online dpo", "a2po", "gold") if name in RUNNABLE]
    run_worker("trainers", tmp_path, *names, ranks=2, RIG_MODEL=tiny_model(tmp_path))
    for name in names:
        stored = list(open_run(tmp_path / name / "out").rollouts(tokens=True))
        for rank in (0, 1):
            truth = json.loads((tmp_path / name / f"rank-{rank}.json").read_text())
            wrote = sorted(row["completion"] for row in truth if row["model"] == "model")
            mine = [rollout for rollout in stored if rollout.rank == rank]
            assert len(mine) == len(truth) > 0
            assert sorted(list(rollout.tokens.completion) for rollout in mine if rollout.tokens) == wrote
        for generation in {rollout.generation for rollout in stored}:
            batch = sorted((r for r in stored if r.generation == generation), key=lambda rollout: rollout.index)
            assert [rollout.index for rollout in batch] == list(range(len(batch)))
            assert [rollout.group for rollout in batch] == [i // batch[0].group_size for i in range(len(batch))]
            for group in {rollout.group for rollout in batch}:
                assert len({str(rollout.prompt) for rollout in batch if rollout.group == group}) == 1
                assert len({rollout.group_size for rollout in batch}) == 1
