"""Rewards and advantages of GRPO and RLOO are those that functions gave and that were trained with."""

import inspect
import math
import pickle
import weakref
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from rig import GRPO, RLOO, call, dataset, half, make
from tools import multiply, now
from trl import GRPOTrainer
from whole import assert_whole, train

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.hosts.kit.stand_ins import StandIns, swapped
from rollout_plugins.hosts.kit.watch_tools import Watch, WatchedTools


def test_reward_none_is_none_and_nan_is_nan(tmp_path):
    def picky(completions, **kwargs):
        return [None, float("nan"), 0.0, 1]

    trainer, run = train(tmp_path, ["a", "b"], rewards=[picky, half], max_steps=1)
    values = [rollout.rewards["picky"] for rollout in run.rollouts()]
    assert values[0] is None
    assert math.isnan(values[1])
    assert values[2:] == [0.0, 1.0]
    assert [rollout.reward for rollout in run.rollouts()] == [0.0, 1.0, 0.0, 2.0]
    assert_whole(trainer, run)


BUFFER = np.array([math.nan, 0.1, 0.2, 0.3])

SCORES = {
    "an array": lambda: np.array([math.nan, 0.1, 0.2, 0.3]),
    "an array that is used again": lambda: BUFFER,
    "NumPy scalars": lambda: list(np.array([math.nan, 0.1, 0.2, 0.3])),
    "a tensor": lambda: torch.tensor([math.nan, 0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True),
    "scalar tensors": lambda: list(torch.tensor([math.nan, 0.1, 0.2, 0.3], dtype=torch.float64)),
    "a series": lambda: pd.Series([math.nan, 0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize(("name", "is_async"), [*((name, False) for name in SCORES), ("an array", True)])
def test_nan_in_arrays_and_tensors_is_nan_and_digits_stay(tmp_path, name, is_async):
    def score(completions, **kwargs):
        return SCORES[name]()

    async def score_later(completions, **kwargs):
        return score(completions)

    def spoils(completions, **kwargs):
        BUFFER[:] = 7.0
        return half(completions)

    BUFFER[:] = [math.nan, 0.1, 0.2, 0.3]
    _, run = train(tmp_path, ["a"], rewards=[score_later if is_async else score, half if is_async else spoils])
    values = [next(iter(rollout.rewards.values())) for rollout in run.rollouts()]
    assert math.isnan(values[0])
    assert values[1:] == [0.1, 0.2, 0.3]


def test_none_among_numpy_scalars_is_none(tmp_path):
    rewards = [None, np.float64("nan"), np.float32(0.5), np.bool_(1)]
    _, run = train(tmp_path, ["a"], rewards=lambda completions, **kwargs: rewards)
    values = [rollout.rewards["<lambda>"] for rollout in run.rollouts()]
    assert values[0] is None
    assert math.isnan(values[1])
    assert values[2:] == [0.5, 1.0]


class Judge:
    """A reward with a state, as its trainer knows it."""

    __name__ = "judge"

    def __init__(self):
        self.scale = 2.0
        self.used = 0

    def __call__(self, completions, **kwargs):
        return [self.scale * score for score in half(completions)]


class LooksAtFunctions(GRPO):
    """A trainer that deals with its reward functions and tools while it uses them."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        (judge, *_) = self.reward_funcs
        self.found = isinstance(judge, Judge), JUDGE in self.reward_funcs, judge.used, str(inspect.signature(judge))
        judge.used += 1
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if len(self.reward_funcs) == 1:
            self.reward_funcs.append(half)
            self.reward_func_names.append("half")
            self.reward_processing_classes.append(None)
            self.reward_weights = torch.ones(2)
            return torch.cat([rewards, torch.zeros_like(rewards)], 1)
        return rewards

    def _tool_call_loop(self, *args, **kwargs):
        tool = self._sync_tool_dicts[0]["multiply"]
        self.signature = str(inspect.signature(tool))
        self.told = tool.__module__, tool.__doc__, str(tool), weakref.ref(tool)() is tool
        self._sync_tool_dicts[0]["now"] = now
        return super()._tool_call_loop(*args, **kwargs)


JUDGE = Judge()


def test_what_a_trainer_does_to_its_reward_functions_and_tools_while_it_runs_stays_done(tmp_path):
    global JUDGE  # noqa: PLW0603 - the trainer's class looks for it
    JUDGE = Judge()
    given = [JUDGE]
    script = [call("multiply", {"a": 2, "b": 3})] * 4 + ["done"] * 4
    trainer, run = train(tmp_path, script, cls=LooksAtFunctions, rewards=given, tools=[multiply], max_steps=2)
    assert trainer.found == (True, True, 1, "(completions, **kwargs)")
    assert trainer.signature == "(a: int, b: int) -> int"
    assert trainer.told == (multiply.__module__, multiply.__doc__, str(multiply), True)
    assert JUDGE.used == 2
    assert trainer.reward_funcs == [JUDGE, half]
    assert [type(one) for one in trainer.reward_funcs] == [Judge, type(half)]
    assert trainer._sync_tool_dicts[0]["now"] is now
    assert len(run) == 8


MOVES = [
    lambda items: items.reverse(),
    lambda items: items.append({"late": 3}),
    lambda items: items.pop(0),
    lambda items: items.insert(1, items[0]),
    lambda items: items.__setitem__(slice(1, 3), items[:1]),
    lambda items: items.__iadd__([items[-1]]),
    lambda items: items.sort(key=len),
    lambda items: list(reversed(items)) + [*items] + items * 2 + items.copy(),
    lambda items: pickle.loads(pickle.dumps(items)),
]


@pytest.mark.parametrize("move", MOVES)
def test_a_list_of_stand_ins_is_moved_about_as_the_trainers_own_would_be(move):
    def items():
        return [{"a": 1}, {}, {"b": 2, "c": 3}]

    alone, trainer = items(), SimpleNamespace(tools=items())
    theirs = trainer.tools
    expected = move(alone)
    with swapped(trainer, tools=StandIns(theirs, lambda i, tools: WatchedTools(tools, Watch(), is_async=False))):
        assert {type(one) for one in trainer.tools} == {WatchedTools} == {type(trainer.tools[-1])}
        assert move(trainer.tools) == expected
        assert all(type(one) is WatchedTools or one == {"late": 3} for one in trainer.tools)
    assert trainer.tools is theirs
    assert theirs == alone
    assert {type(one) for one in theirs} == {dict}


def test_a_rollout_nobody_scored_has_no_reward(tmp_path):
    _, run = train(tmp_path, ["a"], rewards=lambda completions, **kwargs: [None, None, 0.25, 1.0])
    assert [rollout.reward for rollout in run.rollouts()] == [None, None, 0.25, 1.0]


def test_raw_rewards_keep_the_digits_the_function_gave(tmp_path):
    _, run = train(tmp_path, ["a"], rewards=lambda completions, **kwargs: [0.1, 0.2, 0.3, 0.7], reward_weights=[0.5])
    assert [rollout.rewards["<lambda>"] for rollout in run.rollouts()] == [0.1, 0.2, 0.3, 0.7]
    assert [rollout.reward for rollout in run.rollouts()] == [0.05, 0.1, 0.15, 0.35]


def test_several_reward_functions_two_of_one_name_and_a_model(tmp_path):
    from transformers import AutoModelForSequenceClassification

    trainer = make(tmp_path)
    path = trainer.model.config._name_or_path
    judge = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    judge.config.pad_token_id = trainer.processing_class.pad_token_id
    judge.config._name_or_path = path

    async def later(completions, **kwargs):
        return [0.5 for _ in completions]

    functions = [lambda completions, **k: [1.0] * len(completions), lambda completions, **k: [2.0] * len(completions)]
    trainer, run = train(tmp_path, rewards=[*functions, later, judge])
    assert run.info.reward_names[:3] == ("<lambda>", "<lambda>#2", "later")
    rollout = run.rollouts()[0]
    assert list(rollout.rewards.values())[:3] == [1.0, 2.0, 0.5]
    assert rollout.reward == pytest.approx(sum(rollout.rewards.values()))
    assert run.table(["reward/later"])["reward/later"].to_pylist() == [0.5] * 4
    assert_whole(trainer, run)


def test_reward_functions_that_change_messages_do_not_change_the_record(tmp_path):
    def vandal(prompts, completions, answer, **kwargs):
        for prompt, completion in zip(prompts, completions, strict=True):
            prompt[0]["content"] = "changed"
            completion.append({"role": "user", "content": "added"})
        answer[0].append("added")
        return half(completions)

    trainer, run = train(tmp_path, rewards=vandal, rows=dataset(answer=[["a"]] * 8))
    assert_whole(trainer, run)
    assert run.rollouts()[0].prompt[0]["content"].startswith("hello")


def test_rollouts_survive_a_reward_function_that_ends_training(tmp_path):
    calls = []

    def dies_late(completions, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("in the reward")
        return half(completions)

    callback = RolloutPluginCallback()
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, rewards=dies_late, max_steps=5, callback=callback)
    callback.flush(600)
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert len(rollouts) == 12
    assert [r.error for r in rollouts[8:]] == ["ZeroDivisionError: in the reward"] * 4
    assert {r.finish for r in rollouts[8:]} == {"error"}
    assert rollouts[8].rewards == {"dies_late": None}


class Scales(GRPOTrainer):
    """Changes what TRL's method gives back, as people do who try an idea of their own."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        self.trained_with = out["advantages"] = out["advantages"] * 2 + 1
        return out


class Shifts(Scales):
    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args) + 10


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("cls", [Scales, Shifts])
def test_what_a_subclass_makes_of_rewards_and_advantages_is_what_it_trained_with(tmp_path, cls, others):
    trainer = make(tmp_path, ["a", "b"], cls=cls)
    for i in range(others):
        trainer.add_callback(RolloutPluginCallback(dir=tmp_path / f"other-{i}"))
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [rollout.advantage for rollout in stored] == trainer.trained_with.tolist()
    assert [rollout.rewards for rollout in stored] == [{"half": 0.0}, {"half": 1.0}] * 2
    assert [rollout.reward for rollout in stored] == ([10.0, 11.0] if cls is Shifts else [0.0, 1.0]) * 2
    said = "as the functions returned them; the trainer changed those of half"
    assert {rollout.marks.get("rewards") for rollout in stored} == {said if cls is Shifts else None}


class Halves(GRPOTrainer):
    """Trains on the first two alone, with advantages of its own."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        out = {name: value[:2] if torch.is_tensor(value) and value.ndim else value for name, value in out.items()}
        return out | {"advantages": out["advantages"] * 3}


def test_rows_that_a_subclass_leaves_out_keep_the_advantage_they_were_given(tmp_path):
    trainer, run = train(tmp_path, ["a", "b"], cls=Halves)
    logged = list(trainer._logs["advantages"])
    stored = list(run.rollouts())
    assert [rollout.advantage for rollout in stored[:2]] == pytest.approx([3 * value for value in logged[:2]])
    assert [rollout.advantage for rollout in stored[2:]] == logged[2:]
    assert ["replaced" in rollout.marks for rollout in stored] == [False, False, True, True]


class ForEachToken(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        out["advantages"] = out["advantages"][:, None].expand_as(out["completion_ids"]).clone()
        return out

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"][:, 0]})


class Renames(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        return {"worth" if name == "advantages" else name: value for name, value in out.items()}

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "advantages": inputs["worth"]})


@pytest.mark.parametrize("cls", [ForEachToken, Renames])
def test_advantages_that_a_subclass_brings_into_another_form_are_the_logged_ones_and_say_so(tmp_path, cls):
    trainer, run = train(tmp_path, ["a", "b"], cls=cls)
    for rollout, logged in zip(run.rollouts(), trainer._logs["advantages"], strict=True):
        assert rollout.advantage == logged
        assert rollout.marks["advantage"] == "from TRL's log; the trainer trains on another form of it"


def test_what_a_method_that_is_wrapped_after_ours_gives_is_in_doubt_and_the_mark_says_so(tmp_path):
    trainer = make(tmp_path, ["a", "b"], cls=GRPOTrainer, callbacks=[RolloutPluginCallback()])
    inner = trainer._generate_and_score_completions

    def nines(inputs):
        out = inner(inputs)
        return out | {"advantages": out["advantages"] * 0 + 9}

    trainer._generate_and_score_completions = nines
    trainer.add_callback(RolloutPluginCallback(dir=tmp_path / "around"))  # attaches when training begins
    trainer.train()
    for rollout in open_run(tmp_path / "out").rollouts():
        assert "code that wrapped that method later may have changed it" in rollout.marks["advantage"]
    assert [(r.advantage, dict(r.marks)) for r in open_run(tmp_path / "around").rollouts()] == [(9.0, {})] * 4


def test_trls_own_trainer_is_not_said_to_change_anything(tmp_path):
    trainer, run = train(tmp_path, ["a", "b"], cls=GRPOTrainer)
    assert [rollout.advantage for rollout in run.rollouts()] == list(trainer._logs["advantages"])
    assert {(rollout.reward, *rollout.marks) for rollout in run.rollouts()} == {(0.0,), (1.0,)}


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_reward_is_the_sum_with_the_weights_that_the_trainer_has_then(tmp_path, cls):
    def first(completions, trainer_state, **kwargs):
        trainer.reward_weights[1] = 0.1 + trainer_state.global_step
        return [1.0, 0.0] * (len(completions) // 2)

    trainer = make(tmp_path, ["a", "b"], cls=cls, rewards=[first, half], reward_weights=[0.2, 7.0], max_steps=3)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    for step, weight in ((1, 0.1), (2, 1.1), (3, 2.1)):
        assert [r.reward for r in open_run(tmp_path / "out").rollouts(step=step)] == [0.2, weight] * 2
