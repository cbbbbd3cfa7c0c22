"""Tool calls and environments of GRPO and RLOO: outcome, time, error, and never the wrong answer."""

import asyncio
from types import SimpleNamespace

import pytest
import tools as toolbox
from rig import call, half
from tools import PAGE, Counted, broken, lookup, multiply, now, slow, slow_broken, sort, sort_later
from whole import assert_whole, train


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


def test_results_of_sync_and_async_calls_are_paired_right(tmp_path, monkeypatch):
    passed = [0.0]

    async def sleep(seconds):
        await asyncio.sleep(0)
        passed[0] += 1

    monkeypatch.setattr(toolbox, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("rollout_plugins.hosts.kit.watch_tools.perf_counter", lambda: passed[0])
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
        assert calls[0].seconds >= 1
        assert calls[1].seconds == 0


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
    rollout = run.rollouts()[0]
    assert [c.status for c in rollout.tool_calls] == ["ok", "not_run"]
    assert rollout.finish == "tool_limit"
    assert rollout.tool_calls[1].reply is None


def test_a_call_rolled_back_for_length_was_not_run_but_says_so(tmp_path):
    _, run = train(tmp_path, [call("multiply", {"a": 2, "b": 3})], tools=[multiply], max_completion_length=52)
    rollout = run.rollouts()[0]
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
    rollout = run.rollouts()[0]
    assert rollout.prompt[-1]["content"].endswith("The counter is at 0.")
    assert rollout.tool_calls[0].result == "3"
    assert rollout.rewards == {"half": 0.0, "Counter": 3.0}
    assert rollout.reward == 3.0
    assert run.info.tools[0]["function"]["name"] == "increment"
    assert_whole(trainer, run)
