"""Each trainer of TRL where something is odd: methods that are missing, trainings that die, tools, doubled prompts."""

import inspect
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import UserList
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from PIL import Image
from rig import call, dataset, half, tiny_model
from seeing import seeing
from test_trainers import RUNNABLE, kinds, outcome, trained
from tools import broken, multiply
from trainers import KINDS, TRL, Version, hosts, make, through_vllm, tok
from transformers import AutoModelForImageTextToText

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow


def needs(name):
    return pytest.mark.skipif(name not in RUNNABLE, reason=str(KINDS[name].skip()))


def signature_of(name):
    return inspect.signature(getattr(import_module("trl"), name)).parameters


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_trainer_a_host_names_is_tested():
    named = {support.trainer for host in hosts() for support in host.supports if support.is_of_trl}
    assert named == {kind.trainer for kind in KINDS.values()} | {"AsyncGRPOTrainer", "AsyncDistillationTrainer"}


# --- evaluation alone, starting over, resuming -----------------------------------------------------------------------


@kinds
def test_evaluate_alone(tmp_path, name, caplog):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback] if KINDS[name].evaluates else None)
    if not KINDS[name].evaluates:
        trainer.add_callback(callback)
    with suppress(ValueError if name == "online dpo" else ()):  # which TRL itself cannot evaluate
        trainer.evaluate()
    assert [text for text in warnings(caplog) if "rollout" in text] == []
    if not KINDS[name].evaluates:
        assert trainer.truth == []
        assert not (tmp_path / "out-rollouts").exists()
        return
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert len(rollouts) == len(trainer.truth) > 0
    assert {(rollout.split, rollout.step) for rollout in rollouts if not rollout.marks.get("stage")} == {("eval", 0)}


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdpo", "sdft", "a2po", "rloo") if n in RUNNABLE])
def test_evaluation_after_training_is_kept_whole_by_every_trainer(tmp_path, name, caplog):
    assert KINDS[name].evaluates
    trainer = make(tmp_path, name, eval_strategy="no", per_device_eval_batch_size=8)
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    before = len(trainer.truth)
    trainer.evaluate()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(split="eval", tokens=True))
    truth = trainer.truth[before:]
    assert len(stored) == len(truth) > 0
    assert [list(r.tokens.completion) for r in stored] == [row["completion"] for row in truth]
    assert all(r.completion and r.prompt and r.finish in {"stop", "length"} for r in stored)
    assert run.drops == {}
    assert [text for text in warnings(caplog) if "before" in text and "stage" not in text] == []


@needs("a2po")
def test_a2po_samples_before_training_in_the_run_of_that_training(tmp_path, caplog):
    done = trained("a2po", "in callbacks")
    first = [rollout for rollout in done.rollouts if rollout.marks.get("stage")]
    assert len(first) == sum(row["model"] == "ref_model" for row in done.truth) == 24
    assert {(r.split, r.step, r.policy_step, r.group_size, r.advantage) for r in first} == {("train", 0, 0, 2, None)}
    assert all(one.prompt == other.prompt for one, other in zip(first[::2], first[1::2], strict=True))
    values = {str(one.prompt): (one.reward, other.reward) for one, other in zip(first[::2], first[1::2], strict=True)}
    for rollout in done.rollouts:
        if rollout.advantage is not None:
            beta, worth = 0.5, torch.tensor(values[str(rollout.prompt)])
            estimate = beta * (torch.logsumexp(worth / beta, 0) - torch.log(torch.tensor(2.0)))
            assert rollout.advantage == pytest.approx(rollout.reward - estimate.item(), abs=1e-6)
    trainer = make(tmp_path, "a2po")
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    assert len(open_run(tmp_path / "out")) == sum(row["model"] == "model" for row in trainer.truth) == 20
    assert [text for text in warnings(caplog) if "A2PO's first stage" in text]


@pytest.mark.parametrize("name", [n for n in ("a2po", "distillation", "gold") if n in RUNNABLE])
def test_a_second_training_is_a_run_of_its_own_and_whole(tmp_path, name, caplog):
    trainer = make(tmp_path, name, [RolloutPluginCallback()])
    trainer.train()
    first = len(trainer.truth)
    trainer.train()
    assert len(open_run(tmp_path / "out")) == len(trainer.truth) - first > 0
    assert not [text for text in warnings(caplog) if "before the callback" in text]


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdft", "gold", "iwopd") if n in RUNNABLE])
def test_a_resumed_training_goes_on_in_its_run(tmp_path, name):
    first = make(tmp_path, name, [RolloutPluginCallback()], save_strategy="steps", save_steps=1, eval_strategy="no")
    first.train()
    again = make(tmp_path, name, [RolloutPluginCallback()], eval_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    # IWOPD finds its data used up: an attempt without rollouts takes the place of none
    before = [row for row in first.truth if row["step"] == 0 or not again.truth]
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts())
    assert len(run.attempts) == 2
    assert [message["content"] for rollout in stored for message in rollout.completion] == [
        tok().decode([token for token in row["completion"] if token != tok().eos_token_id])
        for row in [*before, *again.truth]
    ]
    assert [rollout.step for rollout in stored] == [row["step"] + 1 for row in [*before, *again.truth]]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("gold", "iwopd")])
def test_what_a_buffer_holds_that_cannot_be_read_is_counted(tmp_path, name):
    trainer = make(tmp_path, name)
    fill = trainer._fill_buffer

    def filling(generation_batch, buffer_steps):
        fill(generation_batch, buffer_steps)
        trainer._buffered_inputs = UserList(trainer._buffered_inputs)

    trainer._fill_buffer = filling
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (len(run), run.drops) == (0, {"not_observed": len(trainer.truth)})


@needs("a2po")
@pytest.mark.parametrize("given", ["its path", True])
def test_a_resumed_a2po_samples_again_in_the_attempt_that_resumes(tmp_path, given):
    make(tmp_path, "a2po", [RolloutPluginCallback()], save_strategy="steps", save_steps=1, eval_strategy="no").train()
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    again = make(tmp_path, "a2po", [RolloutPluginCallback()], eval_strategy="no")
    again.train(resume_from_checkpoint=given if given is True else str(tmp_path / "out" / "checkpoint-1"))
    run = open_run(tmp_path / "out")
    assert [attempt["resumed_from"] for attempt in run.attempts] == [None, 1]
    last = [rollout for rollout in run.rollouts() if rollout.attempt == 2]
    assert len(last) == len(again.truth)
    assert {rollout.step for rollout in last} == {0, 2}


# --- prompts of the dataset, found again -----------------------------------------------------------------------------


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


# --- what some of them have besides ----------------------------------------------------------------------------------


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


TAKES_TOOLS = "distillation" in RUNNABLE and "max_tool_calling_iterations" in signature_of("DistillationConfig")


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
    here = Path(__file__).parents[1] / "support"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "RIG_MODEL": tiny_model(tmp_path)}
    command += [str(here / "trainers_worker.py"), str(tmp_path), *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
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


# --- what breaks -----------------------------------------------------------------------------------------------------


MISSING = {  # what is recorded of how many when the method takes other arguments than expected
    ("gmpo", "_calculate_rewards"): "all",
    ("distillation", "_generate_and_score_completions"): "all",
    ("distillation", "_generate"): "none",
    ("online dpo", "_calculate_rewards_from_functions"): "none",
    ("a2po", "_calculate_rewards"): "none",
    ("a2po", "_prepare_inputs"): "all",
    ("sdpo", "_calculate_rewards"): "all",
    ("sdpo", "_prepare_training_batch"): "all",
    ("sdft", "_prepare_training_batch"): "all",
    ("sdft", "_generate"): "none",
    ("gkd", "generate_on_policy_outputs"): "all",
    ("gold", "_prepare_inputs"): "all",
    ("iwopd", "_fill_buffer"): "all",
}


def take_other_arguments(trainer, method):
    original = getattr(trainer, method)

    def another(*args, **kwargs):
        return original(*args, **kwargs)

    theirs = inspect.signature(original).parameters.values()
    another.__signature__ = inspect.Signature([one.replace(name=f"their_{one.name}") for one in theirs])
    setattr(trainer, method, another)


BOTH = {
    "distillation": ("_generate_and_score_completions", "_generate"),
    "sdft": ("_prepare_training_batch", "_generate"),
    "online dpo": ("training_step", "_calculate_rewards_from_functions"),
    "a2po": ("_prepare_inputs", "_calculate_rewards"),
}


@pytest.mark.parametrize("name", [name for name in BOTH if name in RUNNABLE])
def test_what_is_made_where_no_method_takes_the_expected_arguments_is_counted(tmp_path, name, caplog):
    trainer = make(tmp_path, name)
    for method in BOTH[name]:
        take_other_arguments(trainer, method)
    trainer.callback_handler.callbacks.append(RolloutPluginCallback(trainer=trainer))
    trainer.train()
    assert outcome(trainer).losses == trained(name, "alone").outcome.losses
    made = sum(row["model"] != "teacher_model" for row in trainer.truth)
    assert open_run(tmp_path / "out").drops == {"not_observed": made}
    assert sum("cannot be observed" in text for text in warnings(caplog)) == 1


@pytest.mark.parametrize(("name", "method"), [key for key in MISSING if key[0] in RUNNABLE])
def test_a_method_that_takes_other_arguments_costs_what_it_tells_and_is_named(tmp_path, name, method, caplog):
    trainer = make(tmp_path, name)
    take_other_arguments(trainer, method)
    callback = RolloutPluginCallback(trainer=trainer)
    trainer.callback_handler.callbacks.append(callback)
    trainer.train()
    assert outcome(trainer).losses == trained(name, "alone").outcome.losses
    assert sum(method in text for text in warnings(caplog)) == (name not in {"gkd", "gold", "iwopd"})
    run = open_run(tmp_path / "out")
    made = sum(row["model"] != "teacher_model" for row in trainer.truth)
    assert len(run) == (made if MISSING[name, method] == "all" else 0)
    assert len(run) + run.drops.get("not_observed", 0) == made


def dying(trainer, callback):
    """Train until it dies, and what is in the store then."""
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert callback.flush()
    return list(open_run(trainer.args.output_dir).rollouts())


def on_call(number, function):
    """The function, which dies when it is called for that time."""
    calls = []

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == number:
            raise ZeroDivisionError("in the middle")
        return function(*args, **kwargs)

    return dies


def dies(completions, **kwargs):
    raise ZeroDivisionError("in the middle")


@pytest.mark.parametrize("name", [n for n in ("gmpo", "sdpo", "a2po", "online dpo") if n in RUNNABLE])
def test_a_reward_function_that_ends_training_leaves_what_it_was_given(tmp_path, name):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback], arguments={"reward_funcs": [half, dies]})
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) > 0
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
    assert {rollout.finish for rollout in stored} == {"error"}
    assert [rollout.rewards for rollout in stored] == [
        {"half": float(i % 2) if name != "online dpo" else float(i // 2 % 2), "dies": None} for i in range(len(stored))
    ]


@pytest.mark.skipif(not TAKES_TOOLS, reason="DistillationTrainer takes no tools in this TRL")
def test_a_generation_that_breaks_off_between_turns_leaves_the_turns_there_were(tmp_path):
    callback = RolloutPluginCallback()
    script = [call("multiply", {"a": 2, "b": 3}), "plain"] * 2
    trainer = make(
        tmp_path, "distillation", [callback], script=script, arguments={"tools": [multiply]}, eval_strategy="no",
        max_completion_length=300, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer.model.generate = on_call(2, trainer.model.generate)
    stored = dying(trainer, callback)
    assert [[c.result for c in rollout.tool_calls] for rollout in stored] == [["6"], [], ["6"], []]
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
    assert [rollout.prompt[0]["content"][:6] for rollout in stored] == ["hello "] * 4


@pytest.mark.parametrize("name", [n for n in ("gold", "iwopd", "gkd") if n in RUNNABLE])
def test_a_student_that_dies_over_its_second_answer_leaves_the_first(tmp_path, name):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback])
    trainer.model.generate = on_call(2, trainer.model.generate)
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) == 4
    assert {rollout.error for rollout in stored} == ({None} if name == "gkd" else {"ZeroDivisionError: in the middle"})


@needs("sdft")
def test_what_follows_the_generation_of_sdft_may_die(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, "sdft", [callback])
    trainer.teacher_context_builder.build = on_call(1, None)
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) == 8
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
