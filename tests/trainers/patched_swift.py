"""ms-swift's real GRPO trainer on a CPU: every rollout as swift had it. `.ci/patched` runs it where ms-swift is installed."""

from __future__ import annotations

import copy
import json
import os
from itertools import count
from pathlib import Path
from typing import ClassVar

os.environ.update(USE_HF="1", CUDA_VISIBLE_DEVICES="")

import pytest
import torch
from PIL import Image
from processes import run_worker
from rig import tiny_model, tokenizer
from swift.arguments import RLHFArguments
from swift.callbacks import callbacks_map
from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest, RolloutOutput
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.rewards import ORM, orms
from swift.rlhf_trainers.rollout_mixin import AsyncGenerateCallback
from swift.rollout import MultiTurnScheduler, multi_turns
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen3Config,
)

from rollout_plugins import RolloutPluginCallback, open_run

WORKER = Path(__file__).parents[1] / "support" / "swift_worker.py"
REQUIRED = {
    "rlhf_type": "grpo", "model_type": "qwen3", "template": "qwen3", "tuner_type": "full", "add_version": False,
    "torch_dtype": "float32", "attn_impl": "sdpa", "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 1, "num_generations": 2, "max_completion_length": 12, "max_steps": 2,
    "logging_steps": 1, "save_strategy": "no", "eval_strategy": "no", "split_dataset_ratio": 0, "report_to": ["none"],
    "check_model": False, "gradient_checkpointing": False, "dataset_num_proc": 1, "dataloader_num_workers": 0,
    "lr_scheduler_type": "constant", "reward_funcs": ["scored", "maybe"],
}  # fmt: skip


class Scored(ORM):
    """Rewards as the test wants them; what it is given is what swift has of each rollout."""

    given: ClassVar[list] = []
    rewards = staticmethod(lambda number: float(number % 2))

    def __call__(self, completions, **kwargs):
        rows = [dict(zip(kwargs, row, strict=True)) for row in zip(*map(_per_row, kwargs.values()), strict=False)]
        rewards = [self.rewards(len(Scored.given) + i) for i in range(len(completions))]
        Scored.given += [copy.deepcopy({**row, "reward": one}) for row, one in zip(rows, rewards, strict=True)]
        return rewards


class Maybe(ORM):
    def __call__(self, completions, **kwargs):
        return [None if i % 2 else 0.25 for i in range(len(completions))]


def _per_row(value):
    return value if isinstance(value, list) else [value] * 1000


class Looked(MultiTurnScheduler):
    """A tool's answer after the first turn, then a second answer."""

    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "tool", "content": f"the tool says {current_turn}"})
        return {"infer_request": infer_request, "rollout_infos": {"looked": True}}

    def check_finished(self, infer_request, response_choice, current_turn):
        return current_turn >= 2


class Raises(Looked):
    """It raises in the second turn, when the model has answered twice."""

    def step(self, infer_request, response_choice, current_turn):
        if current_turn == 2:
            raise RuntimeError("the environment is gone")
        return super().step(infer_request, response_choice, current_turn)

    def check_finished(self, infer_request, response_choice, current_turn):
        return False


class Withdraws(Looked):
    """It takes the first answer back, and asks in another way."""

    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages[-1:] = [{"role": "user", "content": "try again"}]
        return {"infer_request": infer_request}


class Rewrites(Looked):
    """It shortens the first answer once the second is there."""

    def step(self, infer_request, response_choice, current_turn):
        if current_turn == 2:
            infer_request.messages[2]["content"] = "what I said at first"
        return super().step(infer_request, response_choice, current_turn)

    def check_finished(self, infer_request, response_choice, current_turn):
        return current_turn >= 3


orms.update(scored=Scored, maybe=Maybe)
multi_turns.update(looked=Looked, raises=Raises, withdraws=Withdraws, rewrites=Rewrites)


@pytest.fixture(autouse=True)
def fresh():
    Scored.given = []
    Scored.rewards = staticmethod(lambda number: float(number % 2))


class Run(SwiftRLHF):
    """swift's own pipeline; `before` gets the trainer, and `trained` what it trained on."""

    def __init__(self, args, before):
        super().__init__(args)
        self.before = before
        self.trained = []

    def train(self, trainer):
        self.trainer = trainer
        log = trainer._log_rollout

        def logged(samples):
            self.trained += [
                {"request_id": one.request_id, "advantage": float(one.advantages), "encoded": one.encoded,
                 "ids": copy.deepcopy(one.response_token_ids), "logprobs": copy.deepcopy(one.rollout_logprobs),
                 "mask": copy.deepcopy(one.response_loss_mask), "step": trainer.state.global_step}
                for one in samples if hasattr(one, "advantages")
            ]  # fmt: skip
            return log(samples)

        trainer._log_rollout = logged
        self.before(trainer)
        return super().train(trainer)


def trained(folder, before=None, rows=None, **more):
    """A training of two steps; what was stored of it, what its reward function saw, and what it trained on."""
    path = folder / "rows.jsonl"
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello {}"}]
    with path.open("w") as file:
        for i in range(32):
            row = {"messages": [{**one, "content": one["content"].format(i)} for one in asked], "level": i}
            file.write(json.dumps({**row, **(rows or {})}) + "\n")
    more = {"model": tiny_model(folder), "dataset": [str(path)], "output_dir": str(folder / "out"), **more}
    args = RLHFArguments(**copy.deepcopy(REQUIRED) | more)
    run = Run(args, before or add())
    run.main()
    stored = open_run(more["output_dir"])
    return list(stored.rollouts(tokens=True)), Scored.given, run.trained, stored


def add(**options):
    return lambda trainer: trainer.add_callback(RolloutPluginCallback(**options))


def told(messages):
    return [(message["role"], message["content"]) for message in messages]


def whole(rollout):
    return told([*rollout.prompt, *rollout.completion])


def of(trained):
    return {one["request_id"]: one for one in trained}


def assert_scored(stored, given):
    """Each rollout that a reward function saw, with what it saw, in its order."""
    assert [one.extra["request_id"] for one in stored] == [row["request_id"] for row in given]
    assert [one.rewards["Scored"] for one in stored] == [row["reward"] for row in given]
    if "Maybe" in stored[0].rewards:
        assert [one.rewards["Maybe"] for one in stored] == [0.25, None] * (len(stored) // 2)
    assert [one.columns["level"] for one in stored] == [row["level"] for row in given]
    assert [one.prompt[-1]["content"] for one in stored] == [f"hello {row['level']}" for row in given]
    assert [one.finish for one in stored] == [row["finish_reason"] for row in given]


def assert_trained(stored, trained):
    """Each rollout that was trained on, with its advantage, and the tokens it was trained with."""
    known = of(trained)
    for rollout in stored:
        one = known.get(rollout.extra["request_id"])
        assert rollout.advantage == (None if one is None else pytest.approx(one["advantage"]))
        if one is None:
            continue
        tokens, ids, labels = rollout.tokens, list(one["encoded"]["input_ids"]), one["encoded"]["labels"]
        assert [*tokens.prompt, *tokens.completion] == ids
        assert [0] * len(tokens.prompt) + list(tokens.mask) == [int(label != -100) for label in labels]
        assert tokens.mask[0] == 1
        assert rollout.prompt_tokens == len(tokens.prompt)
        assert rollout.completion_tokens == sum(map(sum, one["mask"] or [[1] * len(one["ids"])]))
        if one["logprobs"]:
            assert [value for value in tokens.logprobs if value] == pytest.approx(
                [value for turn in one["logprobs"] for value in turn]
            )
        assert rollout.policy_step == one["step"] == rollout.step - 1


def test_a_turn_is_kept_whole(tmp_path):
    def before(trainer):
        trainer.request_config.logprobs = True
        trainer.add_callback(RolloutPluginCallback(tokens=True, rendered=True))

    stored, given, trained_on, run = trained(tmp_path, before)
    assert run.info.host == "ms-swift"
    assert run.info.reward_names == ("Scored", "Maybe")
    assert run.health.drops == {}
    assert len(stored) == len(trained_on) == 8
    assert [whole(one) for one in stored] == [told(row["messages"]) for row in given]
    assert [len(one.completion) for one in stored] == [1] * 8
    assert_scored(stored, given)
    assert_trained(stored, trained_on)
    assert [one.group for one in stored] == [0, 0, 1, 1] * 2
    assert all(one.marks == {} for one in stored)
    for rollout, one in zip(stored, trained_on, strict=True):
        assert len(rollout.tokens.logprobs) == len(one["ids"])
        assert rollout.rendered.endswith(f"<|im_start|>user\nhello {rollout.columns['level']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")  # fmt: skip


def test_several_turns_are_kept_whole_with_the_calls_in_them(tmp_path):
    asks = 'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>'

    def before(trainer):
        trainer.request_config.logprobs = True
        trainer.engine.model.generate = scripted(trainer, [asks, asks, "no call", "none"] + ["It is open."] * 4)
        trainer.add_callback(RolloutPluginCallback(tokens=True))

    tools = {"tools": json.dumps([{"type": "function", "function": {"name": "look", "parameters": {}}}])}
    stored, given, trained_on, run = trained(
        tmp_path, before, rows=tools, multi_turn_scheduler="looked", max_turns=2, max_completion_length=100
    )
    assert run.health.drops == {}
    assert len(stored) == len(trained_on) == 8
    for rollout, row in zip(stored, given, strict=True):
        shown = whole(rollout)
        assert [role for role, _ in shown] == ["system", "user", "assistant", "tool", "assistant"]
        assert len(rollout.completion) == 3
        assert all(a == b for a, b in zip(shown, told(row["messages"]), strict=True) if isinstance(b[1], str))
        assert rollout.extra["looked"] is True
        assert "decoded" in rollout.marks["turns"]
    assert [one.completion[0]["content"].removeprefix("<think>\n\n</think>\n\n") for one in stored] == [asks, asks, "no call", "none"] * 2  # fmt: skip
    assert_scored(stored, given)
    assert_trained(stored, trained_on)
    assert [[(c.name, json.loads(c.arguments), c.result) for c in one.tool_calls] for one in stored] == [
        [("look", {"at": "door"}, "the tool says 1")], [("look", {"at": "door"}, "the tool says 1")], [], []
    ] * 2  # fmt: skip


WORDS = [f"the answer is {word}" for word in ("hello", "world", "four", "assistant", "tool", "name", "user", "is")]


def in_turns(folder, scheduler, turns):
    """A training whose model says these words in this order, through a scheduler."""
    callback = RolloutPluginCallback(tokens=True)

    def before(trainer):
        trainer.request_config.logprobs = True
        trainer.engine.model.generate = scripted(trainer, WORDS)
        trainer.add_callback(callback)

    more = {"multi_turn_scheduler": scheduler, "max_turns": turns, "max_completion_length": 100}
    return callback, lambda: trained(folder, before, **more)


def test_a_scheduler_that_raises_costs_nothing_of_what_the_model_had_said(tmp_path):
    callback, train = in_turns(tmp_path, "raises", 3)
    with pytest.raises(RuntimeError, match="the environment is gone"):
        train()
    assert callback.flush(600)
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(tokens=True))
    assert [[role for role, _ in whole(one)] for one in stored] == [["system", "user", "assistant", "tool", "assistant"]] * 4  # fmt: skip
    assert [one.completion[-1]["content"].removeprefix("<think>\n\n</think>\n\n") for one in stored] == WORDS[4:8]
    assert all(WORDS[i] in one.completion[0]["content"] for i, one in enumerate(stored))
    assert {one.error for one in stored} == {"RuntimeError: the environment is gone"}
    assert [one.columns["level"] for one in stored] == [int(one.prompt[-1]["content"].split()[1]) for one in stored]
    assert all(one.rewards == {"Scored": None, "Maybe": None} and "rewards" in one.marks for one in stored)
    assert all(sum(one.tokens.mask) == one.completion_tokens == len(one.tokens.logprobs) > 8 for one in stored)
    assert [one.group for one in stored] == [0, 0, 1, 1]
    assert run.health.drops == {}


def assert_tokens_are_those_trained_on(stored, trained):
    """Whatever the scheduler did with the turns that came before."""
    known = of(trained)
    for rollout in stored:
        one = known[rollout.extra["request_id"]]
        tokens, labels = rollout.tokens, one["encoded"]["labels"]
        assert [*tokens.prompt, *tokens.completion] == list(one["encoded"]["input_ids"])
        assert [0] * len(tokens.prompt) + list(tokens.mask) == [int(label != -100) for label in labels]
        assert sum(tokens.mask) == rollout.completion_tokens
        assert rollout.prompt_tokens == len(tokens.prompt)


def test_a_turn_that_a_scheduler_withdraws_is_neither_shown_nor_among_the_token_ids(tmp_path):
    stored, given, trained_on, run = in_turns(tmp_path, "withdraws", 2)[1]()
    assert len(stored) == len(trained_on) == 8
    assert [whole(one) for one in stored] == [told(row["messages"]) for row in given]
    assert [[role for role, _ in told(one.prompt)] for one in stored] == [["system", "user"]] * 8
    assert [[role for role, _ in told(one.completion)] for one in stored] == [["user", "assistant"]] * 8
    assert_tokens_are_those_trained_on(stored, trained_on)
    assert all(one.marks["turns"].startswith("the scheduler withdrew 1 of 2 turns") for one in stored)
    assert all(len(one.tokens.logprobs) == len(one.tokens.completion) for one in stored)
    assert run.health.drops == {}


def test_a_turn_that_a_scheduler_rewrites_says_so_beside_the_token_ids_that_are_trained_on(tmp_path):
    stored, _, trained_on, run = in_turns(tmp_path, "rewrites", 3)[1]()
    assert len(stored) == len(trained_on) == 8
    for one in stored:
        assert one.completion[0]["content"] == "what I said at first"
        assert "the scheduler rewrote turns" in one.marks["turns"]
    assert_trained(stored, trained_on)
    assert run.health.drops == {}


@pytest.mark.parametrize(("reweight", "is_marked"), [({}, True), ({"teacher_kl_coef": 0.0}, False)])
def test_an_advantage_to_which_a_teacher_adds_says_so(tmp_path, reweight, is_marked):
    teacher = {"teacher_model": tiny_model(tmp_path), "teacher_model_type": "qwen3"}
    stored, _, trained_on, run = trained(tmp_path, add(), **teacher, **reweight)
    assert [one.advantage for one in stored] == pytest.approx([one["advantage"] for one in trained_on])
    assert ["advantage" in one.marks for one in stored] == [is_marked] * 8
    assert run.health.drops == {}


def scripted(trainer, script):
    number, tok = count(), trainer.processing_class

    def generate(*args, input_ids=None, **kwargs):
        texts = [script[next(number) % len(script)] for _ in range(input_ids.shape[0])]
        rows = [torch.tensor([*tok(text, add_special_tokens=False)["input_ids"], tok.eos_token_id]) for text in texts]
        made = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tok.pad_token_id)
        scores = torch.randn(made.shape[1], len(made), len(tok), generator=torch.Generator().manual_seed(7))
        return {"sequences": torch.cat([input_ids, made.to(input_ids)], 1), "logits": tuple(scores)}

    return generate


DYNAMIC = {"reward_funcs": ["scored"], "dynamic_sample": True, "max_resample_times": 3}


def every_second_group_is_flat(number):
    return 1.0 if (number // 2) % 2 else float(number % 2)


def test_ranks_know_what_became_of_their_own_rollouts_though_others_train_on_them(tmp_path):
    run_worker("swift", tmp_path, ranks=2, RIG_MODEL=tiny_model(tmp_path))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    given, trained_on = ({**ranks[0][name], **ranks[1][name]} for name in ("given", "trained"))
    run = open_run(tmp_path / "out")
    stored = {one.extra["request_id"]: one for one in run.rollouts()}
    assert {name: one.rewards["Scored"] for name, one in stored.items()} == given
    assert {name for name, one in stored.items() if one.marks["trained"] == "yes"} == trained_on.keys()
    assert {name: stored[name].advantage for name in trained_on} == pytest.approx(trained_on)
    assert any(stored[name].rank == 0 for name in ranks[1]["trained"])
    assert (len(stored), run.health.drops, run.health.untrained) == (32, {}, {"no_spread": 16})


def test_what_dynamic_sampling_throws_away_is_stored_and_marked(tmp_path):
    Scored.rewards = staticmethod(every_second_group_is_flat)
    stored, given, trained_on, run = trained(
        tmp_path, add(tokens=True), **DYNAMIC
    )  # fmt: skip
    assert len(stored) == len(given) == 16
    assert [whole(one) for one in stored] == [told(row["messages"]) for row in given]
    assert_scored(stored, given)
    assert_trained(stored, trained_on)
    assert [one.marks["trained"] for one in stored] == (["yes"] * 2 + ["no: no_spread"] * 2) * 4
    assert {one.extra["request_id"] for one in stored if one.marks["trained"] == "yes"} == of(trained_on).keys()
    assert (run.health.drops, run.health.untrained) == ({}, {"no_spread": 8})
    assert len({one.id for one in stored}) == 16
    for rollout in stored:
        alike = [one for one in stored if (one.step, one.generation, one.group) == (rollout.step, rollout.generation, rollout.group)]  # fmt: skip
        assert {one.columns["level"] for one in alike} == {rollout.columns["level"]}
        assert len(alike) == 2


def test_groups_that_overflow_and_a_batch_that_never_fills(tmp_path):
    flat = set(range(4)) | set(range(8, 24))  # the first sampling of step 1, and all of step 2
    Scored.rewards = staticmethod(lambda number: 1.0 if number in flat or number in {4, 5} else float(number % 2))
    stored, given, trained_on, run = trained(
        tmp_path, add(tokens=True), reward_funcs=["scored"], dynamic_sample=True, max_resample_times=2
    )  # fmt: skip
    assert_scored(stored, given)
    assert_trained(stored, trained_on)
    assert {one.extra["request_id"] for one in stored if one.marks["trained"] == "yes"} == of(trained_on).keys()
    assert sum(run.health.untrained.values()) == len(stored) - len(trained_on) == len(given) - 8


def test_evaluation_makes_rollouts_too(tmp_path):
    stored, given, _, run = trained(
        tmp_path, add(), eval_strategy="steps", eval_steps=2, split_dataset_ratio=0.25, num_generations_eval=1
    )
    assert {one.split for one in stored} == {"train", "eval"}
    assert len(stored) == len(given)
    assert run.health.drops == {}


IN_PARTS = {"steps_per_generation": 4, "per_device_train_batch_size": 2}


def takes(taken):
    """Note the token ids of each micro-batch that is trained on."""

    def before(trainer):
        prepare = trainer._prepare_inputs

        def prepared(inputs):
            out = prepare(inputs)
            model_inputs = out["model_inputs"]
            taken.extend(tuple(row[mask.bool()].tolist()) for row, mask in zip(model_inputs["input_ids"], model_inputs["attention_mask"], strict=True))  # fmt: skip
            return out

        trainer._prepare_inputs = prepared
        trainer.add_callback(RolloutPluginCallback(tokens=True))

    return before


@pytest.mark.parametrize(("steps", "left"), [(2, 4), (7, 2), (4, 0)])
def test_what_training_ends_before_is_marked_and_counted(tmp_path, steps, left):
    taken = []
    stored, given, trained_on, run = trained(tmp_path, takes(taken), max_steps=steps, **IN_PARTS)
    assert len(stored) == len(given) == len(trained_on)
    assert_scored(stored, given)
    whole_ids = [(*one.tokens.prompt, *one.tokens.completion) for one in stored]
    assert {ids for ids, one in zip(whole_ids, stored, strict=True) if one.marks.get("trained") != "no: left_over"} == set(taken)  # fmt: skip
    assert [one.marks.get("trained") for one in stored].count("no: left_over") == left
    assert (run.health.drops, run.health.untrained) == ({}, {"left_over": left} if left else {})


class Server:
    """Answers as ms-swift's vLLM server does, here with its own engine; a scheduler there makes two rounds of some."""

    def __init__(self, engine):
        self.engine = engine
        self.sent = []

    def infer(self, requests, config, use_tqdm=False):
        asked = [RolloutInferRequest(**request) for request in requests]
        answers = self.engine.infer(asked, RequestConfig(**config), use_tqdm=False)
        for number, (request, response) in enumerate(zip(asked, answers, strict=True)):
            response.id = request.uuid
            told = [*request.messages, {"role": "assistant", "content": response.choices[0].message.content}]
            more = [*told, {"role": "user", "content": "again"}, {"role": "assistant", "content": "the second round"}]
            for messages in [told, more] if number % 2 else [told]:
                self.sent.append(
                    RolloutOutput(response=response, messages=messages, rollout_infos={"round": len(messages)})
                )
        return self.sent[-(len(asked) + len(asked) // 2) :]


def test_several_samples_of_one_trajectory_are_rollouts_with_one_request_id(tmp_path):
    def before(trainer):
        trainer.vllm_mode, trainer.enable_server_multi_turn = "server", True
        trainer.vllm_client = Server(trainer.engine)
        trainer.add_callback(RolloutPluginCallback())

    Scored.rewards = staticmethod(lambda number: 0.5)
    stored, given, trained_on, run = trained(tmp_path, before, reward_funcs=["scored"], gradient_accumulation_steps=1)
    assert run.health.drops == {}
    assert len(stored) == len(given) == len(trained_on) == 12
    assert [whole(one) for one in stored] == [told(row["messages"]) for row in given]
    assert [one.extra["request_id"] for one in stored] == [one["request_id"] for one in trained_on]
    assert [one.columns["level"] for one in stored] == [row["level"] for row in given]
    assert len({one.extra["request_id"] for one in stored}) == 8
    for rollout, row in zip(stored, given, strict=True):
        assert f"prompt_{rollout.group}" == row["prompt_id"]
        assert rollout.extra["round"] == len(row["messages"])
        assert len(rollout.completion) == 1
        assert rollout.advantage == 0


def test_what_is_generated_ahead_has_the_step_it_was_asked_for_at_and_the_rest_is_counted(tmp_path):
    """As with vLLM, whose place ms-swift's own engine takes here."""

    def before(trainer):
        trainer.async_generate = trainer.args.async_generate = trainer.use_fast_infer = True
        trainer._move_model_to_vllm = lambda **kwargs: None
        trainer.add_callback(RolloutPluginCallback())
        trainer.add_callback(AsyncGenerateCallback(trainer))

    stored, given, trained_on, run = trained(tmp_path, before, max_steps=3)
    assert len(stored) == len(given) == len(trained_on) == 12
    assert_scored(stored, given)
    assert [one.policy_step for one in stored] == [0] * 8 + [1] * 4
    assert [one.step for one in stored] == [1] * 4 + [2] * 4 + [3] * 4
    assert run.health.drops == {"not_observed": 4}


ANSWERED = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]}


def distilled(folder, row=ANSWERED, **more):
    """A training with GKD: what was stored of it, and the samples that the student answered."""
    made = []

    def before(trainer):
        answered = trainer._generate_completions

        def noted(samples):
            made.extend(answered(samples))
            return made[-len(samples) :]

        trainer._generate_completions = noted
        trainer.request_config.logprobs = True
        trainer.add_callback(RolloutPluginCallback(tokens=True))

    alone = {"reward_funcs": [], "num_generations": 1, "rlhf_type": "gkd"}
    teacher = {"teacher_model": tiny_model(folder), "teacher_model_type": "qwen3"}
    stored, _, _, run = trained(folder, before, row, **alone, **teacher | more)
    return stored, made, run


def test_what_a_student_answers_is_kept(tmp_path):
    stored, samples, run = distilled(tmp_path, lmbda=1.0)
    tok = tokenizer()
    assert run.info.host == "ms-swift"
    assert len(stored) == len(samples) == 8
    for rollout, sample in zip(stored, samples, strict=True):
        assert told(rollout.prompt) == [("user", "hello")]
        assert whole(rollout) == told(sample.messages)
        assert tok.decode([*rollout.tokens.prompt, *rollout.tokens.completion]).endswith(
            f"user\nhello<|im_end|>\n<|im_start|>assistant\n{sample.messages[-1]['content']}"
        )
        assert list(rollout.tokens.completion) == list(sample.response_token_ids)
        assert len(rollout.tokens.logprobs) == len(sample.response_token_ids)
        assert rollout.completion_tokens == len(sample.response_token_ids)
        assert rollout.finish == sample.finish_reason
        assert rollout.columns == sample.extra
        assert rollout.policy_step == rollout.step - 1
        assert (rollout.rewards, rollout.advantage, rollout.group_size) == ({}, None, 1)
    assert [rollout.index for rollout in stored] == [0, 1, 2, 3] * 2
    assert run.health.drops == {}


def test_what_the_dataset_answers_is_no_rollout(tmp_path):
    stored, samples, run = distilled(tmp_path, lmbda=0.0)
    assert (stored, samples, run.health.drops) == ([], [], {})


def test_what_a_student_answers_in_evaluation_is_kept(tmp_path):
    stored, samples, run = distilled(
        tmp_path, lmbda=1.0, eval_strategy="steps", eval_steps=2, split_dataset_ratio=0.25
    )
    assert {one.split for one in stored} == {"train", "eval"}
    assert sorted(map(whole, stored)) == sorted(told(sample.messages) for sample in samples)
    assert run.health.drops == {}


def tiny_vlm(folder):
    words = tokenizer()
    words.add_tokens(["<image>"], special_tokens=True)
    image = words.convert_tokens_to_ids("<image>")
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = LlavaProcessor(
        pixels, words, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )  # fmt: skip
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = Qwen3Config(vocab_size=len(words), num_key_value_heads=1, head_dim=16, **small)
    seeing = CLIPVisionConfig(image_size=28, patch_size=14, projection_dim=16, **small)
    config = LlavaConfig(vision_config=seeing, text_config=text, image_token_id=image, image_seq_length=4)
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = words.eos_token_id, words.pad_token_id
    model.save_pretrained(folder / "vlm")
    processor.save_pretrained(folder / "vlm")
    return str(folder / "vlm")


def test_images_stand_where_the_text_says_that_they_are(tmp_path):
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    for i, path in enumerate(paths):
        Image.new("RGB", (40, 40), (100 * i, 9, 9)).save(path)
    rows = {"images": paths, "messages": [{"role": "user", "content": "<image>is not <image> here"}]}
    stored, given, trained_on, run = trained(
        tmp_path, add(tokens=True), rows, model=tiny_vlm(tmp_path), model_type="llava1_5_hf", template="llava1_5_hf"
    )
    assert run.health.drops == {}
    assert len(stored) == len(given) == 8
    for rollout, row in zip(stored, given, strict=True):
        (asked,) = rollout.prompt
        kinds = [block.get("text", block["type"]) for block in asked["content"]]
        assert kinds == ["image", "is not ", "image", " here"]
        assert [image.uri for image in rollout.images] == paths
        assert [(image.width, image.height) for image in rollout.images] == [(40, 40)] * 2
        assert told(rollout.completion) == told(row["messages"][-1:])
    assert_trained(stored, trained_on)


def test_a_student_that_sees_is_kept_with_its_images(tmp_path):
    Image.new("RGB", (40, 40), (9, 9, 9)).save(tmp_path / "seen.png")
    asked = [{"role": "user", "content": "<image>what is it?"}, {"role": "assistant", "content": "dark"}]
    vlm = {"model": tiny_vlm(tmp_path), "model_type": "llava1_5_hf", "template": "llava1_5_hf"}
    teacher = {"teacher_model": vlm["model"], "teacher_model_type": "llava1_5_hf"}
    row = {"images": [str(tmp_path / "seen.png")], "messages": asked}
    stored, samples, run = distilled(tmp_path, row, lmbda=1.0, **vlm, **teacher)
    assert len(stored) == len(samples) == 8
    for rollout, sample in zip(stored, samples, strict=True):
        assert [block.get("text", block["type"]) for block in rollout.prompt[0]["content"]] == ["image", "what is it?"]
        assert [image.uri for image in rollout.images] == row["images"]
        assert told(rollout.completion) == told(sample.messages[-1:])
    assert run.health.drops == {}


def test_registered_in_callbacks_map_it_finds_its_trainer(tmp_path):
    callbacks_map["rollouts"] = lambda args, trainer: RolloutPluginCallback()
    stored, given, _, run = trained(tmp_path, lambda trainer: None, callbacks=["rollouts"])
    assert [whole(one) for one in stored] == [told(row["messages"]) for row in given]
    assert run.health.drops == {}


def test_a_reward_that_raises_costs_only_what_it_did_not_score(tmp_path):
    def rewards(number):
        if number == 5:
            raise RuntimeError("no reward today")
        return float(number % 2)

    Scored.rewards = staticmethod(rewards)
    callback = RolloutPluginCallback()
    with pytest.raises(RuntimeError, match="no reward today"):
        trained(tmp_path, lambda trainer: trainer.add_callback(callback))
    assert callback.flush(600)
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [one.error for one in stored] == [None] * 4 + ["RuntimeError: no reward today"] * 4
    assert all(one.rewards == {"Scored": None, "Maybe": None} for one in stored[4:])
