"""Files of other libraries become runs: TRL, verl, verifiers, tinker, AReaL, OpenAI messages."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from imported import brought, lines, tinker_row, tinker_step
from tool_cases import CASES, QUESTION, outcomes

TRL_CALL = {"type": "function", "function": {"name": "multiply", "arguments": {"a": 6, "b": 7}}}


def trl_file(folder: Path, step: int) -> None:
    """What `GRPOTrainer.log` of TRL 1.16 writes."""
    question = [{"role": "user", "content": "6 times 7?"}]
    table = {
        "step": [step, step],
        "prompt": [question, question],
        "completion": [
            [
                {"role": "assistant", "content": "", "tool_calls": [TRL_CALL]},
                {"role": "tool", "name": "multiply", "content": "42"},
                {"role": "assistant", "content": "42"},
            ],
            [{"role": "assistant", "content": "I think 41."}],
        ],
        "correct": [1.0, 0.0],
        "style": [math.nan, 0.5],
        "note": ["good", "bad"],
        "advantage": [0.7, -0.7],
    }
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).to_parquet(folder / f"completions_{step:05d}.parquet")


def test_trl(tmp_path):
    for step in (2, 10):
        trl_file(tmp_path / "completions", step)
    (tmp_path / "completions" / "completions_00011.parquet").touch()
    run, report = brought("trl", tmp_path)
    assert (run.steps, dict(report.skipped)) == ([2, 10], {"Parquet file that cannot be read": 1})
    assert run.health.drops == {"Parquet file that cannot be read": 1}
    first, second = run.rollouts(step=2)
    assert first.completion[0] == {"role": "assistant", "content": "", "tool_calls": [TRL_CALL]}
    assert first.rewards == {"correct": 1.0, "style": None}
    assert (first.reward, second.reward, first.advantage) == (1.0, 0.5, 0.7)
    assert (first.extra, second.group, second.group_size) == ({"note": "good"}, 0, 2)
    assert [(call.name, call.arguments, call.result, call.status) for call in first.tool_calls] == [
        ("multiply", {"a": 6, "b": 7}, "42", "ok")
    ]


def test_trl_in_a_folder_named_like_a_column(tmp_path):
    folder = tmp_path / "lr=3" / "completions"
    folder.mkdir(parents=True)
    trl_file(folder, 10)
    run, _ = brought("trl", folder)
    plain, _ = brought("trl", shutil.copytree(folder, tmp_path / "plain"))
    assert [rollout.columns for rollout in run.rollouts()] == [rollout.columns for rollout in plain.rollouts()]
    assert [rollout.rewards for rollout in run.rollouts()] == [rollout.rewards for rollout in plain.rollouts()]


def test_trl_before_messages_wrote_text(tmp_path):
    row = {"step": ["1"], "prompt": ["2+2?"], "completion": ["4"], "r": [1.0], "advantage": [0.0]}
    pd.DataFrame(row).to_parquet(tmp_path / "completions_00001.parquet")
    (rollout,) = brought("trl", tmp_path, split="eval")[0].rollouts()
    assert (rollout.prompt_is_text, rollout.completion_is_text, rollout.split) == (True, True, "eval")
    assert rollout.completion == ({"role": "assistant", "content": "4"},)


def test_verl(tmp_path):
    row = {"input": "user\n2+2?\nassistant\n", "output": "4", "gts": "4", "score": 1.0, "step": 1}
    lines(tmp_path / "10.jsonl", [{**row, "step": 10, "uid": f"7_{n}_0", "acc": True} for n in range(2)])
    lines(tmp_path / "9.jsonl", [{**row, "step": 9, "request_id": "x"}, 3, {"score": 1}], torn='{"input": "us')
    run, report = brought("verl", tmp_path)
    assert dict(report.skipped) == {
        "line that is not a JSON object": 1,
        "row without input and output": 1,
        "incomplete last line": 1,
    }
    first, second, third = run.rollouts()
    assert [r.step for r in (first, second, third)] == [9, 10, 10]
    assert (first.prompt[0]["content"], first.completion_is_text, first.reward) == (row["input"], True, 1.0)
    assert (first.columns, first.extra) == ({"gts": "4"}, {"request_id": "x"})
    assert (second.group_size, third.index, third.extra) == (2, 1, {"uid": "7_1_0", "acc": True})


def test_verifiers_results(tmp_path):
    asked = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "weather?"}]
    call = json.dumps({"id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'})
    told = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "Rain."},
    ]
    row = {
        "example_id": 3, "prompt": asked, "completion": told, "reward": 0.5, "answer": "rain", "info": {"k": 1},
        "timing": {"total": 1.5}, "is_completed": True, "is_truncated": False, "stop_condition": "no_tools",
        "metrics": {"right": 1.0, "format": 0.0}, "right": 1.0, "format": 0.0,
        "token_usage": {"input_tokens": 30.0, "output_tokens": 9.0},
    }  # fmt: skip
    failed = {**row, "completion": None, "error": {"error": "ModelError", "error_chain_str": "timeout"}, "reward": 0.0}
    lines(tmp_path / "results.jsonl", [row, failed, {"x": 1}])
    run, report = brought("verifiers", tmp_path)
    assert dict(report.skipped) == {"row that is neither an episode nor a result": 1}
    good, bad = run.rollouts()
    assert (good.split, good.rewards, good.reward, good.finish) == ("eval", {"right": 1.0, "format": 0.0}, 0.5, "stop")
    assert (good.prompt_tokens, good.completion_tokens, good.group_size) == (30, 9, 2)
    assert good.completion[0]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert [(c.name, c.result, c.reply) for c in good.tool_calls] == [("weather", "rain", 1)]
    assert good.columns == {"example_id": 3, "answer": "rain", "info": {"k": 1}}
    assert (bad.finish, bad.error, bad.completion) == ("error", "ModelError: timeout", ())


def episode(**trace: Any) -> dict[str, Any]:
    """A line of `traces.jsonl`, absent fields left out as verifiers leaves them out."""
    return {
        "id": "e1",
        "env": {"id": "gsm8k"},
        "task": {"type": "Math", "data": {"idx": 4, "prompt": "2+2?"}, "key": "k4"},
        "group": {"id": "g1"},
        "run": {
            "type": "train",
            "id": "r",
            "work": {"type": "train", "step": 12, "policy": {"start": 10, "end": 11}},
        },
        "ok": True,
        "traces": [
            {
                "version": 1,
                "id": "t1",
                "is_completed": True,
                "stop_condition": "stop",
                "rewards": {"right": {"score": 1.0, "weight": 2.0}, "unscored": None},
                **trace,
            }
        ],
    }


def node(role: str, content: str, parent: int | None = None, **more: Any) -> dict[str, Any]:
    link = {} if parent is None else {"parent": parent}
    return {**link, "message": {"role": role, "content": content}, "sampled": False, **more}


def test_verifiers_traces(tmp_path):
    nodes = [
        node("user", "2+2?", token_ids=[1, 2], mask=[False, False]),
        node("assistant", "4", 0, sampled=True, token_ids=[3, 4, 5], mask=[False, True, True], logprobs=[-0.1, -0.2], advantages=[0.5, 0.5]),
        node("user", "sure?", 1, token_ids=[6], mask=[False]),
        node("assistant", "yes", 2, sampled=True, token_ids=[7], mask=[True], logprobs=[-0.3], advantages=[0.5]),
        node("assistant", "5", 0, sampled=True),
    ]  # fmt: skip
    lines(tmp_path / "run" / "traces.jsonl", [episode(nodes=nodes), episode(), {"traces": [3]}])
    run, report = brought("verifiers", tmp_path)
    assert dict(report.skipped) == {"trace without messages": 2}
    long, short = run.rollouts(tokens=True)
    assert [m["content"] for m in long.completion] == ["4", "sure?", "yes"]
    assert [m["content"] for m in short.completion] == ["5"]
    assert (long.split, long.step, long.policy_step, long.advantage) == ("train", 12, 11, 0.5)
    assert (long.rewards, long.reward, long.finish) == ({"right": 1.0, "unscored": None}, 2.0, "stop")
    assert (long.columns["idx"], long.extra["env"], long.extra["branch"]) == (4, "gsm8k", 0)
    assert (long.tokens.prompt, long.tokens.completion, long.tokens.mask) == ([1, 2], [3, 4, 5, 6, 7], [0, 1, 1, 0, 1])
    assert long.tokens.logprobs == pytest.approx([0.0, -0.1, -0.2, 0.0, -0.3])
    assert (long.prompt_tokens, long.completion_tokens) == (2, 3)
    assert short.group == long.group


def test_verifiers_errors_and_limits(tmp_path):
    nodes = [node("user", "hi"), node("assistant", "…", 0, sampled=True)]
    failed = episode(nodes=nodes, errors=[{"type": "ToolError", "message": "no"}], rewards={"right": None})
    cut = episode(nodes=nodes, calls=[{"finish_reason": "length"}])
    lines(tmp_path / "traces.jsonl", [failed, cut])
    first, second = brought("verifiers", tmp_path)[0].rollouts()
    assert (first.finish, first.error, first.reward) == ("error", "ToolError: no", None)
    assert second.finish == "length"


def test_tinker_summaries_without_text(tmp_path):
    rows = [tinker_row(), tinker_row(traj_idx=1), {"other": 1}]
    lines(tmp_path / "iteration_000007" / "train_rollout_summaries.jsonl", rows)
    lines(tmp_path / "iteration_000007" / "eval_gsm8k_rollout_summaries.jsonl", [tinker_row(split="eval/gsm8k")])
    run, report = brought("tinker", tmp_path)
    assert dict(report.skipped) == {"row that is not a rollout summary": 1}
    first, second = run.rollouts(split="train")
    assert (first.step, first.policy_step, first.reward, first.group_size) == (7, 6, 1.2, 2)
    assert first.rewards == {"steps": pytest.approx(0.2), "final": 1.0}
    assert (first.prompt, first.prompt_tokens, first.completion_tokens, first.finish) == ((), 10, 10, "stop")
    assert first.extra["steps"][1]["metrics"] == {"format": 1.0}
    assert second.index == 1
    assert run.count(split="eval") == 1
    assert any("texts" in lack for lack in report.lacks)


def test_tinker_rollout_traces_become_one_conversation(tmp_path):
    def talk(*said: tuple[str, str]) -> dict[str, Any]:
        return {"type": "conversation", "messages": [{"role": role, "content": text} for role, text in said]}

    asked = ("user", "2+2?")
    first = {"prompt": talk(asked), "policy_response": talk(("assistant", "3"))}
    second = {
        "prompt": talk(asked, ("assistant", "3"), ("user", "wrong")),
        "policy_response": talk(("assistant", "4")),
        "reward_data": {"correct": True},
        "extra": {
            "next_messages": talk(asked, ("assistant", "3"), ("user", "wrong"), ("assistant", "4"), ("user", "right"))
        },
    }
    row = tinker_row(steps=[tinker_step(0, first), tinker_step(1, second)])
    (rollout,) = brought("tinker", lines(tmp_path / "train_rollout_summaries.jsonl", [row]))[0].rollouts()
    assert [m["content"] for m in rollout.prompt] == ["2+2?"]
    assert [(m["role"], m["content"]) for m in rollout.completion] == [
        ("assistant", "3"), ("user", "wrong"), ("assistant", "4"), ("user", "right")
    ]  # fmt: skip
    assert rollout.extra["steps"][1]["reward_data"] == {"correct": True}


def test_areal(tmp_path):
    row = {
        "task_id": 5, "sample_idx": 0, "seqlen": 9, "prompt_len": 3, "head_version": 1, "tail_version": 2,
        "version_rle": [[1, 2], [2, 2]], "reward": 1.0, "prompt": "<|im_start|>user\n2+2?", "completion": "4<|im_end|>",
    }  # fmt: skip
    segments = [
        {"role": "prompt", "len": 3, "text": "<|im_start|>user\n2+2?"},
        {"role": "gen", "len": 2, "text": "calc"},
        {"role": "context", "len": 2, "text": "= 4"},
        {"role": "gen", "len": 2, "text": "4"},
    ]
    many = {**row, "sample_idx": 1, "segments": segments, "original_reward": 3.0}
    lines(tmp_path / "rollout" / "2" / "5.jsonl", [row, many])
    lines(tmp_path / "eval-rollout" / "2" / "6.jsonl", [{**row, "task_id": 6}], torn="{")
    run, report = brought("areal", tmp_path)
    assert dict(report.skipped) == {"incomplete last line": 1}
    one, several = run.rollouts(split="train")
    assert (one.step, one.policy_step, one.prompt_tokens, one.completion_tokens) == (2, 2, 3, 4)
    assert (one.rewards, several.rewards["original"], one.group_size) == ({"reward": 1.0}, 3.0, 2)
    assert (one.completion_is_text, one.extra["version_rle"]) == (True, [[1, 2], [2, 2]])
    assert [(m["role"], m["content"]) for m in several.completion] == [
        ("assistant", "calc"), ("context", "= 4"), ("assistant", "4")
    ]  # fmt: skip
    assert run.count(split="eval") == 1


def test_openai_messages(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}], "reward": 1, "step": 4},
        {
            "prompt": "q",
            "completion": [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "Error: no"}],
            "rewards": {"a": 0.5, "b": None, "c": "text"},
            "finish_reason": "length",
            "source": "x",
            "step": 4,
        },
        {"text": "no"},
    ]  # fmt: skip
    run, report = brought("openai-jsonl", lines(tmp_path / "my rollouts!.jsonl", rows, torn="{"))
    assert dict(report.skipped) == {"row without messages": 1, "incomplete last line": 1}
    first, second = run.rollouts(step=4)
    assert (first.prompt[0]["content"], first.completion[0]["content"], first.reward) == ("hi", "hello", 1.0)
    assert (second.rewards, second.finish) == ({"a": 0.5, "b": None}, "length")
    assert second.columns == {"source": "x", "rewards": {"c": "text"}}
    assert [(c.name, c.status, c.error) for c in second.tool_calls] == [("f", "error", "Error: no")]
    assert run.dir.name == "openai-jsonl-my-rollouts"


def test_tool_calls_are_read_as_everywhere_else(tmp_path):
    rows = [{"messages": [*QUESTION, *said]} for said, _ in CASES.values()]
    run, _ = brought("openai-jsonl", lines(tmp_path / "a.jsonl", rows))
    assert [list(rollout.completion) for rollout in run.rollouts()] == [said for said, _ in CASES.values()]
    assert [outcomes(rollout) for rollout in run.rollouts()] == [outcome for _, outcome in CASES.values()]


def test_verifiers_a_score_that_is_not_a_number_is_not_counted_as_nothing(tmp_path):
    nodes = [node("user", "hi"), node("assistant", "…", 0, sampled=True)]
    rewards = {"right": {"score": 1.0, "weight": 0.5}, "odd": {"score": "high"}}
    lines(tmp_path / "traces.jsonl", [episode(nodes=nodes, rewards=rewards)])
    (rollout,) = brought("verifiers", tmp_path)[0].rollouts()
    assert (rollout.reward, rollout.rewards) == (None, {"right": 1.0, "odd": None})
    assert {"lost:reward", "lost:rewards.odd"} <= rollout.marks.keys()


def test_openai_lines_keep_what_their_fields_cannot_say(tmp_path):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    odd = {"step": "now", "split": "test", "finish_reason": "content_filter", "score": 2.0, "rewards": [1]}
    run, _ = brought(
        "openai-jsonl", lines(tmp_path / "a.jsonl", [{"messages": said, "prompt": "p", "reward": 1, **odd}])
    )
    (rollout,) = run.rollouts()
    assert (rollout.step, rollout.split, rollout.finish, rollout.reward) == (0, "eval", "unknown", 1.0)
    assert rollout.columns == {"prompt": "p", **odd}


def test_tinker_rewards_of_steps_are_those_of_the_steps(tmp_path):
    row = tinker_row(total_reward=1e17, final_reward=1e17, steps=[tinker_step(0), tinker_step(1)])
    (rollout,) = brought("tinker", lines(tmp_path / "train_rollout_summaries.jsonl", [row]))[0].rollouts()
    assert rollout.rewards == {"steps": 0.1 + 0.1, "final": 1e17}


def test_trl_an_advantage_for_each_token_is_marked(tmp_path):
    table = {"step": [1], "prompt": ["a"], "completion": ["b"], "r": [1.0], "advantage": [[0.5, 0.25]]}
    pd.DataFrame(table).to_parquet(tmp_path / "completions_00001.parquet")
    (rollout,) = brought("trl", tmp_path)[0].rollouts()
    assert (rollout.advantage, rollout.reward) == (None, 1.0)
    assert "lost:advantage" in rollout.marks
