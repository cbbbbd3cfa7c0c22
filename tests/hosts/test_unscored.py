"""Whatever a trainer generates is stored or counted, also where it generates and scores in its own way."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from copies import copy_of
from processes import environment
from rig import GRPO, SamplesTwice, call, dataset, make, tiny_model
from store_rig import collected
from tools import multiply
from transformers import TrainerCallback
from trl import GRPOTrainer

from rollout_plugins import RolloutPluginCallback, open_run, runs

ANSWERS = [f"answer number {n}" for n in range(64)]
SCORING = "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)"


def number_of(completion):
    return int(completion[0]["content"].split()[-1])


def numbers(completions, **kwargs):
    return [float(number_of(completion)) for completion in completions]


def recorded(trainer, folder, **options):
    """The run, and its rollouts by the number of their answer."""
    trainer.add_callback(RolloutPluginCallback(**options))
    trainer.train()
    run = open_run(folder / "out")
    rollouts = list(run.rollouts(tokens=True))
    found = {number_of(rollout.completion): rollout for rollout in rollouts}
    assert len(found) == len(rollouts)
    return run, found


class Awaits(TrainerCallback):
    """Ends a step when what is generated meanwhile is there; the last one only if that is not to come too late."""

    def __init__(self, ahead, is_late):
        self._ahead, self._is_late = ahead, is_late

    def on_step_end(self, args, state, control, **kwargs):
        wait(() if self._is_late and state.global_step == state.max_steps else self._ahead)


def generating_ahead(folder, is_late, **options):
    """It generates the next batch on a thread while it scores this one, as axolotl's asynchronous trainer does."""
    whole = ("_generate_and_score_completions", "_make_batch")
    cls = copy_of(GRPOTrainer, whole=whole, ahead=("self._generate(prompts)", "self._made_ahead(prompts)"))
    pool, generated, scoring, ahead = ThreadPoolExecutor(1), threading.Event(), threading.Event(), []
    single_turn = cls._generate_single_turn

    def slowly(trainer, *args, **kwargs):
        made = single_turn(trainer, *args, **kwargs)
        if threading.current_thread() is not threading.main_thread():
            generated.set()
            assert scoring.wait(300)
            scoring.clear()
        return made

    def made_ahead(trainer, prompts):
        made = ahead.pop().result() if ahead else trainer._generate(prompts)
        ahead.append(pool.submit(trainer._generate, prompts))
        assert generated.wait(300)  # or it would be of a later step on a busy machine
        generated.clear()
        return made

    def rewards(completions, trainer_state, **kwargs):
        if not is_late or trainer_state.global_step < 2:
            scoring.set()
        return numbers(completions)

    def finished():
        scoring.set()
        pool.shutdown()

    cls._generate_single_turn, cls._made_ahead = slowly, made_ahead
    cls._generate_and_score_completions = GRPOTrainer._generate_and_score_completions
    trainer = make(
        folder, ANSWERS, cls=cls, rows=dataset(2), rewards=rewards, max_steps=3, shuffle_dataset=False, **options
    )

    trainer.add_callback(Awaits(ahead, is_late))
    return trainer, finished


@pytest.mark.parametrize("is_late", [False, True])
def test_batches_generated_and_scored_on_two_threads_are_not_mixed(tmp_path, caplog, is_late):
    trainer, finished = generating_ahead(tmp_path, is_late)
    callback = RolloutPluginCallback(tokens=True)
    trainer.add_callback(callback)
    trainer.callback_handler.callbacks.reverse()
    trainer.train()
    finished()
    assert callback.flush(600)  # what comes after the training is added to its run
    run = open_run(tmp_path / "out")
    found = {number_of(rollout.completion): rollout for rollout in run.rollouts(tokens=True)}
    assert sorted(found) == list(range(16))
    assert len(run) == 16
    for number, rollout in found.items():
        is_scored = number < 12
        assert rollout.reward == (float(number) if is_scored else None)
        assert rollout.policy_step == max(0, number // 4 - 1)
        assert rollout.step == min(number // 4, 2) + 1
        assert rollout.prompt == ({"role": "user", "content": f"hello {number % 4 // 2}"},)
        assert rollout.prompt_tokens == len(rollout.tokens.prompt) > 0
        assert ("rewards" in rollout.marks) is not is_scored
        assert "advantage" in rollout.marks
    assert run.health.drops == {}
    assert "generates rollouts that it does not score" in caplog.text


@pytest.mark.parametrize("logs", [True, False])
def test_rewards_that_are_computed_past_the_method_for_them(tmp_path, logs):
    replaced = {"scoring": (SCORING, SCORING.replace("_calculate_rewards", "_score"))}
    if not logs:
        replaced["log"] = ('self._logs["rewards"][name].extend(', "(lambda rows: None)(")
    cls = copy_of(GRPOTrainer, **replaced)
    cls._score = GRPOTrainer._calculate_rewards
    run, found = recorded(make(tmp_path, ANSWERS, cls=cls, rewards=numbers, max_steps=2), tmp_path)
    assert sorted(found) == list(range(8))
    assert [found[n].rewards for n in range(8)] == [{"numbers": float(n) if logs else None} for n in range(8)]
    assert [("rewards" in found[n].marks) for n in range(8)] == [not logs] * 8
    assert {round(found[n].advantage, 3) for n in range(8)} == {-0.707, 0.707}
    assert all(rollout.prompt[0]["content"].startswith("hello") for rollout in found.values())
    assert run.health.drops == {}


class Rejects(GRPO):
    """What it samples first is thrown away."""

    def _generate(self, prompts, *args, **kwargs):
        super()._generate(prompts, *args, **kwargs)
        return super()._generate(prompts, *args, **kwargs)


class RejectsHalf(GRPO):
    """It samples some of the answers again, and goes on with the first ones."""

    def _generate(self, prompts, *args, **kwargs):
        first = super()._generate(prompts, *args, **kwargs)
        super()._generate(prompts[: len(prompts) // 2], *args, **kwargs)
        return first


@pytest.mark.parametrize("tools", [None, [multiply]])
@pytest.mark.parametrize(("cls", "thrown"), [(Rejects, 8), (RejectsHalf, 4)])
def test_rollouts_that_are_sampled_and_thrown_away_are_counted(tmp_path, cls, thrown, tools, caplog):
    script = [call("multiply", {"a": 2, "b": 3}), "done"] if tools else None
    trainer = make(tmp_path, script, cls=cls, tools=tools, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in trainer.truth]
    assert run.health.drops == {"not_observed": thrown}
    assert "cannot be observed" in caplog.text


class TakesTurns(GRPO):
    """It has the model go on with what it wrote: no answer is thrown away."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _generate(self, prompts, *args, **kwargs):
        out = super()._generate(prompts, *args, **kwargs)
        asked = [[*prompt, *answer] for prompt, answer in zip(out[0], out[1], strict=True)]
        self._generate_single_turn(asked, None, {}, self.num_generations)
        return out


def test_turns_of_a_class_of_its_own_are_not_taken_for_other_answers(tmp_path):
    trainer = make(tmp_path, cls=TakesTurns, max_steps=2, callbacks=[RolloutPluginCallback()])
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops) == (8, {})


@pytest.mark.parametrize("tokens", [True, False])
def test_rollouts_that_are_scored_and_thrown_away_are_stored_and_marked(tmp_path, tokens):
    trainer = make(tmp_path, ANSWERS, cls=SamplesTwice, rewards=numbers, max_steps=2)
    run, found = recorded(trainer, tmp_path, tokens=tokens)
    assert sorted(found) == list(range(16))
    for number, rollout in found.items():
        is_kept = number % 8 >= 4
        assert rollout.rewards == {"numbers": float(number)}
        assert (rollout.advantage is not None) is is_kept
        assert ("advantage" in rollout.marks) is not is_kept
    assert [len({r.advantage for r in found.values()} - {None})] == [2]
    assert run.health.drops == {}


def rows_of(out, rows):
    return {name: value[rows] if value.ndim else value for name, value in out.items()}


def joined(first, second):
    """Two batches as one; all completions are equally long here."""
    return {name: torch.cat([one, second[name]]) if one.ndim else one for name, one in first.items()}


class InHalves(GRPO):
    """Generates a part of the batch after the other, which takes less memory."""

    def _generate_and_score_completions(self, inputs):
        halves = (inputs[:2], inputs[2:])
        self.trained = joined(*map(super()._generate_and_score_completions, halves))
        return self.trained


class PutsTogether(GRPO):
    """Trains on the second group of one generation and on the first group of another, as dynamic sampling does."""

    def _generate_and_score_completions(self, inputs):
        first, second = (super(PutsTogether, self)._generate_and_score_completions(inputs) for _ in range(2))
        self.trained = joined(rows_of(first, slice(2, 4)), rows_of(second, slice(0, 2)))
        return self.trained


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize(("cls", "kept"), [(InHalves, [0, 1, 2, 3]), (PutsTogether, [2, 3, 4, 5])])
def test_rollouts_of_several_generations_that_are_trained_on_together_are_known(tmp_path, cls, kept, tokens):
    script = [f"answer number {n}" for n in range(10, 18)]  # all equally long
    trainer = make(tmp_path, script, cls=cls, rewards=numbers, beta=0.1)
    run, found = recorded(trainer, tmp_path, tokens=tokens)
    of = [found[10 + n] for n in range(len(found))]
    assert [rollout.advantage for rollout in (of[n] for n in kept)] == trainer.trained["advantages"].tolist()
    assert all(not rollout.marks for rollout in (of[n] for n in kept))
    assert [n for n, rollout in enumerate(of) if "replaced" in rollout.marks] == [
        n for n in range(len(of)) if n not in kept
    ]
    if tokens:
        stored = [of[n].tokens.reference_logprobs for n in kept]
        assert stored == trainer.trained["ref_per_token_logps"].tolist()
    assert run.health.drops == {}


class LogsMore(GRPO):
    """Writes other numbers of rows into its log than it has rollouts, as dynamic sampling does."""

    rows = 0

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        for _ in range(self.rows):
            self._logs["advantages"].append(9.0)
            self._logs["rewards"]["numbers"].append(9.0)
        for _ in range(-self.rows):
            self._logs["advantages"].pop()
        return out


@pytest.mark.parametrize("rows", [2, 4, -1])
def test_a_log_of_another_length_is_not_taken_for_that_of_the_batch(tmp_path, rows):
    kind = type("LogsOtherwise", (LogsMore,), {"rows": rows})
    run, found = recorded(make(tmp_path, ANSWERS, cls=kind, rewards=numbers, max_steps=2), tmp_path)
    assert sorted(found) == list(range(8))
    for number, rollout in found.items():
        assert rollout.rewards == {"numbers": float(number)}
        assert rollout.advantage == pytest.approx(-0.7071 if number % 2 == 0 else 0.7071, abs=1e-3)
    assert run.health.drops == {}


class ReplacesRows(GRPO):
    """The second half of each batch is what the first batch was, as a replay buffer does."""

    first = None

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        self.first = self.first or {name: value.clone() for name, value in out.items() if hasattr(value, "clone")}
        for name, value in self.first.items():
            if value.ndim and len(value) == 4 and value.shape == out[name].shape:
                out[name][2:] = value[2:]
        return out


def test_log_probabilities_of_replayed_rows_stay_away_from_the_rollouts_they_replace(tmp_path):
    script = [f"answer number {n}" for n in range(10, 74)]  # all equally long
    trainer = make(tmp_path, script, cls=ReplacesRows, rewards=numbers, max_steps=2, beta=0.1)
    _, found = recorded(trainer, tmp_path, tokens=True)
    assert [found[n].tokens.reference_logprobs is None for n in range(10, 18)] == [False] * 6 + [True] * 2
    assert ["replaced" in found[n].marks for n in range(10, 18)] == [False] * 6 + [True] * 2
    assert all(found[n].advantage is not None for n in range(10, 18))


class Replays(ReplacesRows):
    """The second group of each batch is the first batch's, as in a trainer with a replay buffer."""

    replay_buffer = ()


@pytest.mark.parametrize("rows", [dataset(8), dataset(2)], ids=["other prompts", "same prompts"])
def test_short_answers_do_not_hide_that_a_replay_buffer_replaced_their_rollouts(tmp_path, rows):
    """All answers are "4": the prompt tells the rollouts apart, and where that is the same, the advantage."""
    rewards = iter([0.0, 1.0, 2.0, 5.0, 7.0, 7.0, 9.0, 9.0])

    def scored(completions, **kwargs):
        return [next(rewards) for _ in completions]

    trainer = make(tmp_path, ["4"], cls=Replays, rewards=scored, rows=rows, max_steps=2, shuffle_dataset=False)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert ["replaced" in one.marks for one in stored] == [False] * 6 + [True] * 2
    assert [one.advantage for one in stored[6:]] == [0.0, 0.0]
    assert [one.marks.get("trained") for one in stored] == [None] * 6 + ["no: replaced"] * 2
    assert open_run(tmp_path / "out").health.untrained == {"replaced": 2}


def test_what_a_method_that_cannot_be_watched_would_have_told_is_counted(tmp_path, caplog):
    trainer = make(tmp_path, ANSWERS, rewards=numbers, max_steps=2)
    original = trainer._generate_and_score_completions

    def generate(rows):
        return original(rows)

    trainer._generate_and_score_completions = generate
    run, found = recorded(trainer, tmp_path)
    assert [found[n].reward for n in range(8)] == [float(n) for n in range(8)]
    assert all("advantage" in rollout.marks and rollout.prompt_tokens > 0 for rollout in found.values())
    assert run.health.drops == {"without:_generate_and_score_completions": 8}
    assert caplog.text.count("expected _generate_and_score_completions(inputs)") == 1


class Peeks(TrainerCallback):
    """Generates two answers after each step, for nobody."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer._generate([[{"role": "user", "content": "look"}]] * 2)


class LetsGo(TrainerCallback):
    """Takes our callback off after the first step."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.remove_callback(RolloutPluginCallback)


def test_what_waits_to_be_scored_when_the_callback_is_removed_is_stored(tmp_path):
    trainer = make(tmp_path, ANSWERS, rewards=numbers, max_steps=2)
    callback = RolloutPluginCallback()
    for one in (callback, Peeks(trainer), LetsGo(trainer)):
        trainer.add_callback(one)
    trainer.train()
    assert callback.flush(600)
    run = open_run(tmp_path / "out")
    assert sorted(number_of(rollout.completion) for rollout in run.rollouts()) == list(range(6))


class BreaksOff(TrainerCallback):
    """Ctrl-C in the second step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            raise KeyboardInterrupt


def broken_off(folder):
    """A trainer whose training broke off while two rollouts waited to be scored, and the callback."""
    trainer = make(folder, ANSWERS, rewards=numbers, max_steps=2)
    callback = RolloutPluginCallback()
    for one in (callback, Peeks(trainer), BreaksOff()):
        trainer.add_callback(one)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return trainer, callback


def train_again(trainer, callback, folder):
    trainer.remove_callback(BreaksOff)
    trainer.train()


def train_another(trainer, callback, folder):
    make(folder / "other", callbacks=[callback]).train()


def take_off(trainer, callback, folder):
    trainer.remove_callback(callback)
    train_another(trainer, callback, folder)


@pytest.mark.parametrize("goes_on", [train_again, train_another, take_off])
def test_what_waits_to_be_scored_when_training_breaks_off_is_stored_and_marked(tmp_path, goes_on):
    goes_on(*broken_off(tmp_path), tmp_path)
    run = runs(tmp_path / "out")[0]
    first = list(run.rollouts())
    assert [number_of(rollout.completion) for rollout in first] == list(range(6))
    assert [rollout.reward for rollout in first] == [0.0, 1.0, 2.0, 3.0, None, None]
    assert ["rewards" in rollout.marks for rollout in first] == [False] * 4 + [True] * 2
    assert run.health.drops == {}


def test_what_waits_to_be_scored_in_a_trainer_that_is_deleted_is_counted(tmp_path, caplog):
    assert broken_off(tmp_path)[1].flush(600)
    collected(lambda: open_run(tmp_path / "out").health.drops == {"kept_back": 2})
    assert len(open_run(tmp_path / "out")) == 4
    assert "2 unfinished rollouts were lost because their trainer was deleted" in caplog.text


def leave(folder):
    """For a process of its own, which ends then."""
    globals()["kept"] = broken_off(folder)


def leave_without_training(folder):
    trainer = make(folder, ANSWERS, rewards=numbers, callbacks=[RolloutPluginCallback()])
    trainer._generate([[{"role": "user", "content": "look"}]] * 6)
    globals()["kept"] = trainer


def leave_to_a_child(folder):
    """The child trains on and ends; what waited before it was forked is stored once, by the parent."""
    trainer, callback = broken_off(folder)
    globals()["kept"] = trainer, callback
    child = os.fork()
    if not child:
        trainer.args.output_dir = str(folder / "child")
        train_again(trainer, callback, folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not {4, 5} & {number_of(rollout.completion) for rollout in open_run(folder / "child").rollouts()}


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [leave, leave_without_training, leave_to_a_child])
def test_what_waits_to_be_scored_when_the_process_ends_is_stored(tmp_path, leaves):
    env = environment(RIG_MODEL=tiny_model(tmp_path))
    code = "import sys, pathlib, test_unscored; getattr(test_unscored, sys.argv[1])(pathlib.Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, leaves.__name__, str(tmp_path)], env=env, check=True)
    run = open_run(tmp_path / "out")
    assert sorted(number_of(rollout.completion) for rollout in run.rollouts()) == list(range(6))
    assert run.health.drops == {}


@pytest.mark.parametrize("is_known", [True, False])
def test_what_nobody_scores_is_stored_and_marked_or_else_counted(tmp_path, caplog, is_known):
    trainer = make(tmp_path, ANSWERS, rewards=numbers, max_steps=2)
    generate = trainer._generate
    if not is_known:
        trainer._generate = lambda prompts: list(generate(prompts))
    trainer.add_callback(RolloutPluginCallback())  # detached at the end, after the last step
    trainer.add_callback(Peeks(trainer))
    trainer.train()
    run = open_run(tmp_path / "out")
    found = {number_of(rollout.completion): rollout for rollout in run.rollouts()}
    looked = {n: rollout for n, rollout in found.items() if rollout.prompt[0]["content"] == "look"}
    assert sorted(looked) == ([4, 5, 10, 11] if is_known else [])
    assert len(run) == 8 + len(looked)
    assert all(r.reward is None and {"rewards", "advantage"} <= set(r.marks) for r in looked.values())
    assert [looked[n].policy_step for n in sorted(looked)] == ([1, 1, 2, 2] if is_known else [])
    assert run.health.drops == ({} if is_known else {"not_observed": 4})
    assert caplog.text.count("in a way that cannot be observed") == (not is_known)
