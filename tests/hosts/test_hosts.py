"""A trainer nobody here knows, observed by somebody else's host."""

import inspect
from functools import partial
from types import MethodType

import pytest
import torch
from copies import bare, copy_of
from rig import GRPO, SamplesTwice, call, dataset, make
from tools import multiply
from trl import GRPOTrainer

from rollout_plugins import Batch, Rollout, RolloutPluginCallback, Support, hookimpl, open_run
from rollout_plugins.hosts import host_for, kit, nearest_to


class Foreign:
    """A host for a trainer that keeps its texts in a method of its own."""

    name = "foreign"

    def matches(self, trainer):
        return True

    def attach(self, trainer, emit, options):
        original = trainer._generate_and_score_completions

        def observed(inputs):
            out = original(inputs)
            step = trainer.state.global_step + 1

            def build():
                return [
                    Rollout(
                        id="",
                        index=i,
                        prompt=tuple(row["prompt"]),
                        completion=({"role": "assistant", "content": "x"},),
                    )
                    for i, row in enumerate(inputs)
                ]

            emit(Batch(build=build, step=step, count=len(inputs)))
            return out

        trainer._generate_and_score_completions = observed
        return lambda: delattr(trainer, "_generate_and_score_completions")

    def describe(self, trainer):
        return {"trainer": type(trainer).__name__, "reward_names": ("theirs",)}


class Plugin:
    @hookimpl
    def register_hosts(self):
        return [Foreign()]


class Broken:
    @hookimpl
    def register_hosts(self):
        raise RuntimeError("no host today")


@pytest.mark.parametrize("plugins", [[Plugin()], [Broken(), Plugin()]])
def test_a_registered_host_comes_before_ours_and_records(tmp_path, plugins):
    trainer = make(tmp_path, max_steps=2)
    trainer.add_callback(RolloutPluginCallback(plugins))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert run.info.host == "foreign"
    assert run.info.reward_names == ("theirs",)
    assert [r.completion[0]["content"] for r in run.rollouts()] == ["x"] * 8
    assert len({r.id for r in run.rollouts()}) == 8


class Undecided(Foreign):
    name = "undecided"

    def matches(self, trainer):
        return trainer.of_theirs

    @hookimpl
    def register_hosts(self):
        return [self]


@pytest.mark.parametrize(("plugin", "said"), [(Broken(), "no host today"), (Undecided(), "no attribute 'of_theirs'")])
def test_a_broken_host_leaves_ours_in_place_and_is_told_of(tmp_path, plugin, said, caplog):
    trainer = make(tmp_path)
    trainer.add_callback(RolloutPluginCallback([plugin]))
    trainer.train()
    assert open_run(tmp_path / "out").info.host == "grpo"
    assert said in caplog.text


def refusing(folder, **options):
    """A trainer whose `_calculate_rewards` has another signature than is known."""
    trainer = make(folder, max_steps=2, **options)
    original = trainer._calculate_rewards

    def scored(rows, asked, answers, ids):
        return original(rows, asked, answers, ids)

    trainer._calculate_rewards = scored
    return trainer


def test_a_trainer_with_another_signature_is_recorded_from_what_it_generates(tmp_path, caplog):
    trainer = refusing(tmp_path)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in trainer.truth]
    assert [list(r.rewards.values()) for r in run.rollouts()] == [row["rewards"] for row in trainer.truth]
    assert all(r.prompt_tokens and r.completion_tokens for r in run.rollouts())
    assert run.health.drops == {"without:_calculate_rewards": 8}
    assert "expected _calculate_rewards(inputs, prompts, completions, completion_ids_list)" in caplog.text


@pytest.mark.parametrize(("cls", "lost"), [(GRPO, {}), (SamplesTwice, {"not_observed": 8})])
def test_a_trainer_that_generates_differently_is_read_from_its_log_and_the_rest_counted(tmp_path, cls, lost, caplog):
    trainer = refusing(tmp_path, cls=cls)
    generate = trainer._generate
    trainer._generate = lambda prompts: list(generate(prompts))
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run, rows = open_run(tmp_path / "out"), trainer.truth
    logged = rows if cls is GRPO else rows[4:8] + rows[12:]
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in logged]
    assert {r.marks["source"] for r in run.rollouts()} == {"the trainer's own log"}
    assert "recorded from its log, without columns" in caplog.text
    assert run.health.drops == {"without:_calculate_rewards": 8, **lost}


def test_a_method_that_takes_more_than_is_needed_or_tells_nothing_of_it_is_watched(tmp_path, caplog):
    trainer = make(tmp_path, max_steps=2)
    score = trainer._calculate_rewards
    trainer._calculate_rewards = lambda inputs, prompts, completions, completion_ids_list, more=None: score(
        inputs, prompts, completions, completion_ids_list
    )
    trainer._generate_and_score_completions = MethodType(bare(GRPO._generate_and_score_completions), trainer)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in trainer.truth]
    assert [r.advantage for r in run.rollouts()] == pytest.approx([row["advantage"] for row in trainer.truth])
    assert run.health.drops == {}
    assert "expected" not in caplog.text


class WithProperties(GRPO):
    """It has no items yet, and makes some of its methods anew each time."""

    def __len__(self):
        return 0

    @property
    def log(self):
        return partial(GRPO.log, self)

    @property
    def _tool_call_loop(self):
        return partial(GRPO._tool_call_loop, self)


@pytest.mark.parametrize("given", [{}, {"tools": [multiply], "script": [call("multiply", {"a": 2, "b": 3}), "done"]}])
def test_a_method_that_is_a_property_is_left_alone_and_each_rollout_stored_once(tmp_path, given, caplog):
    trainer = make(tmp_path, cls=WithProperties, max_steps=3, **given)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in trainer.truth]
    assert "WithProperties has log as a property, which nothing can be put around" in caplog.text
    assert "could not" not in caplog.text


class Elsewhere(Foreign):
    """A host of somebody else's, with attributes that mean something else than ours of these names."""

    missing, supports = "nothing", ()

    def matches(self, trainer):
        return False

    @hookimpl
    def register_hosts(self):
        return [self]


def test_what_an_unknown_trainer_lacks_is_named(tmp_path, caplog):
    copy = copy_of(GRPOTrainer, rewards=("_calculate_rewards(", "_score("))
    trainer = make(tmp_path, cls=copy)
    trainer.add_callback(RolloutPluginCallback([Elsewhere()]))
    trainer.train()
    assert "most like TRL's GRPOTrainer, but it has no method _calculate_rewards" in caplog.text
    assert "docs/how-to/host.md" in caplog.text


class OverridesAll(GRPO):
    """Generates, scores and logs in ways of its own; it returns what TRL's `_compute_loss` needs."""

    def _generate_and_score_completions(self, inputs):
        tok, device = self.processing_class, self.accelerator.device
        prompts = tok(["hi"] * len(inputs), return_tensors="pt")["input_ids"]
        ids = torch.tensor([[*tok("an answer")["input_ids"], tok.eos_token_id, tok.pad_token_id]] * len(inputs))
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        return {
            "prompt_ids": prompts.to(device), "prompt_mask": torch.ones_like(prompts), "completion_ids": ids,
            "completion_mask": mask, "advantages": torch.tensor([0.5, -0.5] * (len(inputs) // 2)),
            "num_items_in_batch": mask.sum(),
        }  # fmt: skip


class OverridesMore(OverridesAll):
    def _prepare_inputs(self, generation_batch):
        return OverridesAll._generate_and_score_completions.__get__(self)(generation_batch)

    def _generate_and_score_completions(self, inputs):
        raise AssertionError("nothing of this trainer comes here")


def test_a_subclass_that_overrides_everything_is_recorded_from_what_it_trains_on(tmp_path, caplog):
    trainer = make(tmp_path, cls=OverridesAll, max_steps=2, rows=dataset(level=list(range(8))))
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(tokens=True))
    assert [r.completion for r in stored] == [({"role": "assistant", "content": "an answer"},)] * 8
    assert [r.prompt[0]["content"] for r in stored] == [f"hello {r.columns['level']}" for r in stored]
    assert [r.advantage for r in stored] == [0.5, -0.5] * 4
    assert [r.finish for r in stored] == ["stop"] * 8
    assert [r.completion_tokens for r in stored] == [len(r.tokens.completion) for r in stored]
    assert {r.marks["source"] for r in stored} == {"the token ids that the trainer trains on"}
    assert {r.marks["rewards"] for r in stored} == {"the trainer scored it in its own way"}
    assert not any("advantage" in r.marks for r in stored)
    assert {tuple(r.rewards.values()) for r in stored} == {(None,)}
    said = "OverridesAll generates or scores in its own way: its rollouts are recorded from the token ids"
    assert said in caplog.text
    assert "without rewards, the original messages and tool calls; docs/how-to/host.md explains how" in caplog.text
    assert run.health.drops == {}


def test_a_subclass_that_goes_round_everything_is_counted_and_said(tmp_path, caplog):
    trainer = make(tmp_path, cls=OverridesMore, max_steps=3)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    assert open_run(tmp_path / "out").health.drops == {"not_observed": 12}
    assert caplog.text.count("cannot be observed") == 1
    assert "docs/how-to/host.md explains how to write a host" in caplog.text


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words for it")


def test_an_exception_that_cannot_be_shown_reaches_the_caller_as_it_is(tmp_path):
    def rewards(**kwargs):
        raise Unspeakable

    callback = RolloutPluginCallback()
    trainer = make(tmp_path, rewards=rewards)
    trainer.add_callback(callback)
    with pytest.raises(Unspeakable):
        trainer.train()
    assert callback.flush(600)
    assert {rollout.error for rollout in open_run(tmp_path / "out").rollouts()} == {"Unspeakable"}


def test_a_trainer_of_trl_that_works_differently_is_not_taken_for_the_known_one():
    assert host_for(type("SDFTTrainer", (), {"__module__": "trl.experimental.sdft"})()) is None


class Detailed(Foreign):
    """It has everything that `HostDetails` lists, and no base class of ours."""

    name = "detailed"
    supports = (Support(trainer="TheirTrainer", evaluation=True, since="theirs 2.0"),)

    def matches(self, trainer):
        return not self.missing(trainer)

    def missing(self, trainer):
        lacking = [name for name in ("evaluate", "roll_out") if not hasattr(trainer, name)]
        return [f"has no method {name}" for name in lacking]

    def recover(self, trainer, count):
        def build():
            return [Rollout(id="", index=i, completion=({"role": "assistant", "content": "x"},)) for i in range(count)]

        return Batch(build=build, split="eval", step=trainer.state.global_step, count=count)

    @hookimpl
    def register_hosts(self):
        return [self]


def test_a_trainer_that_lacks_something_of_a_third_partys_is_told_what(caplog):
    class Theirs:
        def evaluate(self):
            pass

    assert nearest_to(Theirs(), [Detailed()]) == "it is most like TheirTrainer, but it has no method roll_out"
    assert host_for(Theirs(), [Detailed()]) is None


@pytest.mark.slow
def test_a_third_partys_host_recovers_what_was_evaluated_before_it_came(tmp_path):
    class Fits(Detailed):
        def missing(self, trainer):
            return []

    trainer = make(tmp_path, eval_rows=dataset(2))
    trainer.add_callback(RolloutPluginCallback([Fits()]))
    trainer.evaluate()
    run = open_run(tmp_path / "out")
    assert [(rollout.split, rollout.completion[0]["content"]) for rollout in run.rollouts()] == [("eval", "x")] * 4
    assert run.health.drops == {}


def test_a_host_without_any_details_is_complete():
    assert host_for(object(), [Foreign()]).name == "foreign"
    assert nearest_to(object(), [Foreign()]) == ""


def test_what_the_kit_offers_is_there_and_has_a_docstring():
    assert kit.VERSION == 1
    assert all(inspect.getdoc(getattr(kit, name)) for name in kit.__all__ if name != "VERSION")
