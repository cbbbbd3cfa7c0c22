"""Every rollout of a real GRPO or RLOO run is in the store, exactly as the trainer had it."""

import gc
import inspect
import math
import pickle
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from rig import GRPO, RLOO, call, dataset, half, make
from strict import same
from tools import PAGE, Counted, broken, lookup, multiply, now, numbers, search, slow, slow_broken, sort, sort_later
from trl import GRPOTrainer

from rollout_plugins import Placeholder, RolloutPluginCallback, open_run
from rollout_plugins.hosts.grpo import HOST
from rollout_plugins.hosts.kit.stand_ins import StandIns, swapped
from rollout_plugins.hosts.kit.watching import Watch, WatchedTools


def train(folder, *args, callback=None, **kwargs):
    trainer = make(folder, *args, **kwargs)
    trainer.add_callback(callback or RolloutPluginCallback())
    trainer.train()
    return trainer, open_run(folder / "out")


def assert_whole(trainer, run, split="train"):
    """What is stored is what the trainer had: all of it, in order, types included."""
    truth = [row for row in trainer.truth if row["split"] == split]
    stored = list(run.rollouts(split=split))
    assert len(stored) == len(truth) > 0
    for rollout, row in zip(stored, truth, strict=True):
        if rollout.prompt_is_text:
            assert rollout.prompt == ({"role": "user", "content": row["prompt"]},)
        else:
            assert same(list(rollout.prompt), row["prompt"])
        if rollout.completion_is_text:
            assert rollout.completion == ({"role": "assistant", "content": row["completion"]},)
        else:
            assert same(list(rollout.completion), row["completion"])
        assert rollout.policy_step == row["policy_step"]
        assert rollout.advantage == pytest.approx(row["advantage"])
        numbers = [float("nan") if value is None else value for value in rollout.rewards.values()]
        assert numbers == pytest.approx(row["rewards"], nan_ok=True)
        assert same(dict(rollout.columns), {k: v for k, v in row["row"].items() if k != "prompt"})
    assert len({rollout.id for rollout in stored}) == len(stored)


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
        self.signature = str(inspect.signature(self._sync_tool_dicts[0]["multiply"]))
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
    assert "2 values" in next(run.rollouts()).marks["extra:short"]
    assert run.drops["unserialisable_field"] == 8


def test_tool_calls_have_outcome_time_and_error(tmp_path):
    script = [call("multiply", {"a": 2, "b": 3}), call("nosuch", {}), call("broken", {"x": 1}), call("now", {"a": 1})]
    _, run = train(tmp_path, [*script, *["done"] * 4], tools=[multiply, broken, now], max_tool_calling_iterations=3)
    first = [rollout.tool_calls[0] for rollout in run.rollouts()]
    assert [c.status for c in first] == ["ok", "unknown", "error", "error"]
    assert first[0].result == "6"
    assert first[0].seconds > 0
    assert "nosuch not found" in first[1].error
    assert first[2].error == "RuntimeError: backend \x1b[31mdown\x1b[0m <script>alert(1)</script>"
    assert "unexpected keyword argument 'a'" in first[3].error
    assert {rollout.finish for rollout in run.rollouts()} == {"stop"}


def test_results_of_sync_and_async_calls_are_paired_right(tmp_path):
    both = call("slow", {"x": 1}) + "\n" + call("multiply", {"a": 2, "b": 3}) + "\n" + call("slow_broken", {"x": 5})
    _, run = train(
        tmp_path,
        [both + "\n" + call("slow", {"x": 7})] * 4 + ["done"] * 4,
        tools=[multiply, slow, slow_broken],
        max_completion_length=500,
    )
    for rollout in run.rollouts():
        calls = rollout.tool_calls
        assert [c.name for c in calls] == ["slow", "multiply", "slow_broken", "slow"]
        assert [c.result for c in calls] == ["2", "6", "{'error': 'late'}", "8"]
        assert [c.status for c in calls] == ["ok", "ok", "error", "ok"]
        assert [c.reply for c in calls] == [2, 1, 3, 4]
        assert calls[0].seconds >= 0.02
        assert calls[1].seconds < 0.02


@pytest.mark.parametrize("tool", [sort, sort_later])
def test_a_tool_that_changes_its_arguments_and_results_does_not_change_the_record(tmp_path, tool):
    PAGE.clear()
    asked = {"items": [3, 1, 2], "options": {}}
    script = [call(tool.__name__, asked)] * 8 + ["done"] * 4
    _, run = train(
        tmp_path, script, tools=[tool], max_tool_calling_iterations=2, max_completion_length=2000, max_steps=1
    )
    for number, rollout in enumerate(run.rollouts()):
        assert [c.arguments for c in rollout.tool_calls] == [asked, asked]
        assert [c.status for c in rollout.tool_calls] == ["ok", "ok"]
        assert [len(c.result) for c in rollout.tool_calls] == [number + 1, number + 5]
        messages = [m for m in rollout.completion if m["role"] == "assistant"]
        assert [m["tool_calls"][0]["function"]["arguments"] for m in messages[:2]] == [asked, asked]
        assert [rollout.completion[c.reply]["content"] for c in rollout.tool_calls] == [
            c.result for c in rollout.tool_calls
        ]


def test_an_environment_that_changes_its_arguments_does_not_change_the_record(tmp_path):
    class Board:
        def reset(self, **kwargs):
            self.moves = []

        def play(self, move: dict) -> list:
            """
            Play a move.

            Args:
                move: where
            """
            move["played"] = True
            self.moves.append({"type": "text", "text": str(move)})
            return self.moves

    script = [call("play", {"move": {"x": i}}) for i in range(8)] + ["done"] * 4
    _, run = train(
        tmp_path, script, environment_factory=Board, max_tool_calling_iterations=2, max_completion_length=2000
    )
    for number, rollout in enumerate(run.rollouts()):
        assert [c.arguments for c in rollout.tool_calls] == [{"move": {"x": number}}, {"move": {"x": number + 4}}]
        assert [len(c.result) for c in rollout.tool_calls] == [1, 2]


def test_a_call_that_could_not_be_made_does_not_take_the_outcome_of_the_next(tmp_path):
    bad, good = call("lookup", ["not", "named"]), call("lookup", {"items": [1]})
    _, run = train(
        tmp_path, [f"{bad}\n{good}"] * 4 + ["done"] * 4, tools=[lookup], max_completion_length=2000, max_steps=1
    )
    for rollout in run.rollouts():
        assert [c.status for c in rollout.tool_calls] == ["error", "ok"]
        assert rollout.tool_calls[0].seconds is None
        assert rollout.tool_calls[1].seconds > 0


def test_a_call_cut_by_the_iteration_limit_was_not_run(tmp_path):
    _, run = train(tmp_path, [call("multiply", {"a": 2, "b": 3})], tools=[multiply], max_tool_calling_iterations=1)
    rollout = next(run.rollouts())
    assert [c.status for c in rollout.tool_calls] == ["ok", "not_run"]
    assert rollout.finish == "tool_limit"
    assert rollout.tool_calls[1].reply is None


def test_a_call_rolled_back_for_length_was_not_run_but_says_so(tmp_path):
    _, run = train(tmp_path, [call("multiply", {"a": 2, "b": 3})], tools=[multiply], max_completion_length=52)
    rollout = next(run.rollouts())
    assert rollout.tool_calls[0].status == "not_run"
    assert "rolled back" in rollout.tool_calls[0].error
    assert rollout.finish == "length"


def test_tool_result_tokens_are_not_completion_tokens(tmp_path):
    trainer, run = train(tmp_path, [call("multiply", {"a": 2, "b": 3})] * 4 + ["done"] * 4, tools=[multiply])
    means = [entry["completions/mean_length"] for entry in trainer.state.log_history if "loss" in entry]
    lengths = [rollout.completion_tokens for rollout in run.rollouts()]
    assert sum(lengths) / len(lengths) == means[0]
    assert all(rollout.prompt_tokens > 100 for rollout in run.rollouts())


def test_environments_observations_and_tools_are_recorded(tmp_path):
    class Counter(Counted):
        def reset(self, **kwargs):
            super().reset(**kwargs)
            return " The counter is at 0."

    trainer, run = train(
        tmp_path, [call("increment", {"by": 3})] * 4 + ["done"] * 4, environment_factory=Counter, rewards=[half]
    )
    rollout = next(run.rollouts())
    assert rollout.prompt[-1]["content"].endswith("The counter is at 0.")
    assert rollout.tool_calls[0].result == "3"
    assert rollout.rewards == {"half": 0.0, "Counter": 3.0}
    assert rollout.reward == 3.0
    assert run.info.tools[0]["function"]["name"] == "increment"
    assert_whole(trainer, run)


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
    rollout = next(run.rollouts())
    assert list(rollout.rewards.values())[:3] == [1.0, 2.0, 0.5]
    assert rollout.reward == pytest.approx(sum(rollout.rewards.values()))
    assert run.table(["reward/later"])["reward/later"].to_pylist() == [0.5] * 4
    assert_whole(trainer, run)


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


def test_reward_functions_that_change_messages_do_not_change_the_record(tmp_path):
    def vandal(prompts, completions, answer, **kwargs):
        for prompt, completion in zip(prompts, completions, strict=True):
            prompt[0]["content"] = "changed"
            completion.append({"role": "user", "content": "added"})
        answer[0].append("added")
        return half(completions)

    trainer, run = train(tmp_path, rewards=vandal, rows=dataset(answer=[["a"]] * 8))
    assert_whole(trainer, run)
    assert next(run.rollouts()).prompt[0]["content"].startswith("hello")


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
    callback.flush()
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert len(rollouts) == 12
    assert [r.error for r in rollouts[8:]] == ["ZeroDivisionError: in the reward"] * 4
    assert {r.finish for r in rollouts[8:]} == {"error"}
    assert rollouts[8].rewards == {"dies_late": None}


def test_rendered_keeps_the_templated_prompt_with_its_tool_definitions(tmp_path):
    _, run = train(
        tmp_path,
        [call("multiply", {"a": 1, "b": 1}), "x"],
        tools=[multiply],
        callback=RolloutPluginCallback(rendered=True),
    )
    rollout = next(run.rollouts())
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
    assert next(run.rollouts(tokens=True)).tokens is None
    trainer, run = train(
        tmp_path / "with", [call("multiply", {"a": 1, "b": 1})] * 4 + ["x"] * 4, tools=[multiply],
        callback=RolloutPluginCallback(tokens=True),
    )  # fmt: skip
    rollout = next(run.rollouts(tokens=True))
    text = trainer._tokenizer.decode(rollout.tokens.completion)
    assert text.startswith("<tool_call>")
    assert sum(rollout.tokens.mask) == rollout.completion_tokens < len(rollout.tokens.completion)


# --- what waits -----------------------------------------------------------------------------------------------------


class Emitted(list):
    """The batches of a host, as they wait for the worker thread."""

    __call__ = list.append

    def waits(self, count, hand_over):
        pass

    def lost(self, reason, count):
        raise AssertionError(reason)


LONG = ["word " * 150 + "end"]
SHAPES = {
    "short": {},
    "a large batch": {"per_device_train_batch_size": 32, "num_generations": 8},
    "long answers": {"script": LONG, "max_completion_length": 400},
    "long prompts": {"rows": dataset(8, note=["语" * 3000] * 8, facts=[list(range(500, 900))] * 8)},
    "tools": {"script": [call("multiply", {"a": 2, "b": 3})] * 3 + ["no", "done", "ok", "six"], "tools": [multiply]},
}


@pytest.mark.parametrize(
    ("shape", "tokens"), [*[(shape, False) for shape in SHAPES], ("short", True), ("tools", True)]
)
@pytest.mark.slow
def test_what_waits_for_the_worker_is_counted_as_it_is_held(tmp_path, shape, tokens):
    trainer = make(tmp_path, cls=GRPOTrainer, max_steps=4, steps_per_generation=1, num_iterations=2, **SHAPES[shape])
    emitted = Emitted()
    detach = HOST.attach(trainer, emitted, {"tokens": tokens})
    tracemalloc.start()
    trainer.train()
    detach()
    gc.collect()
    counted = sum(batch.bytes for batch in emitted)
    kept = [batch.build.args[0].tensors for batch in emitted]
    tensors = sum(tensor.nbytes for some in kept for tensor in some.values())  # which are not Python's memory
    assert len(emitted) == 2
    assert bool(tensors) is tokens
    before = tracemalloc.get_traced_memory()[0]
    del kept[:], emitted[:]
    gc.collect()
    held = before - tracemalloc.get_traced_memory()[0] + tensors
    tracemalloc.stop()
    assert held / 1.3 < counted < held * 1.3
