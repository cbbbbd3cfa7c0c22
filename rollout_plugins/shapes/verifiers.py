"""Read verifiers' `traces.jsonl` (episodes with message graphs) and the older `results.jsonl`, also from prime-rl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout, Tokens
from rollout_hookspecs._records import Finish

from rollout_plugins.content.foreign_values import Lost, Unplaced, convert_each
from rollout_plugins.content.numbers import real
from rollout_plugins.content.rewards import to_float
from rollout_plugins.shapes._fields import as_whole, as_whole_or_none, dict_in, list_in, message_fields, scores
from rollout_plugins.shapes._files import BROKEN, find_files, json_lines

NAME = "verifiers"
LACKS = (
    "the step of an evaluation outside training: it is 0",
    "reward weights in results.jsonl: its metrics count as the rewards per function",
    "images: their pixels are not written",
)
_COLUMNS = ("example_id", "task", "answer", "info")
_EXTRA = ("stop_condition", "timing", "tool_defs")
_READ = {"prompt", "completion", "reward", "error", "error_chain", "long_error_chain", "is_completed", "is_truncated"}
_OWN = {*_READ, *_COLUMNS, *_EXTRA, "metrics", "token_usage"}
_CUT = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"})


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield the rollouts of every results file. A trace with several branches becomes a rollout for each."""
    for file in find_files(path, "**/*s.jsonl", "a run's folder, its traces.jsonl or its results.jsonl"):
        for row in json_lines(file):
            if isinstance(row, dict) and isinstance(row.get("traces"), list):
                yield from _episode(row)
            else:
                yield from convert_each(_result_rollout, [row], BROKEN)


def _result_rollout(row: dict[str, Any]) -> Unplaced | Lost:
    if "prompt" not in row and "completion" not in row:
        return Lost("row that is neither an episode nor a result")
    rewards, other_metrics = scores(row.get("metrics"))
    usage, error = dict_in(row, "token_usage"), row.get("error")
    rollout = Rollout(
        id="",
        split="eval",
        **message_fields(row.get("prompt"), row.get("completion")),
        rewards=rewards,
        reward=to_float(row.get("reward")),
        prompt_tokens=as_whole_or_none(usage.get("input_tokens")),
        completion_tokens=as_whole_or_none(usage.get("output_tokens")),
        finish=_finish(row.get("is_truncated"), error, row.get("is_completed")),
        error=_error(error),
        columns={name: row[name] for name in _COLUMNS if row.get(name) is not None},
        extra={name: value for name, value in row.items() if name not in _OWN and name not in rewards}
        | {name: row[name] for name in _EXTRA if row.get(name) is not None}
        | ({"metrics": other_metrics} if other_metrics is not None else {}),
    )
    return Unplaced(rollout, row.get("example_id"))


def _episode(row: dict[str, Any]) -> Iterator[Unplaced | Lost]:
    task = dict_in(row, "task")
    group = dict_in(row, "group").get("id") or task.get("key") or task.get("hash")

    def convert(part: tuple[dict[str, Any], int, list[dict[str, Any]]]) -> Unplaced:
        return Unplaced(_branch_rollout(row, *part), group)

    for trace in row["traces"]:
        branches = _branches(list_in(trace, "nodes")) if isinstance(trace, dict) else []
        if not branches:
            yield Lost("trace without messages")
        yield from convert_each(convert, [(trace, branch, nodes) for branch, nodes in enumerate(branches)], BROKEN)


def _branch_rollout(row: dict[str, Any], trace: dict[str, Any], branch: int, nodes: list[dict[str, Any]]) -> Rollout:
    work = dict_in(dict_in(row, "run"), "work")
    rollout = _trace_rollout(trace, nodes, dict_in(row, "task"))
    facts = {"env": dict_in(row, "env").get("id"), "trace": trace.get("id"), "branch": branch}
    return replace(
        rollout,
        split="train" if work.get("type") == "train" else "eval",
        step=as_whole(work.get("step")),
        policy_step=as_whole_or_none(dict_in(work, "policy").get("end")),
        extra={**rollout.extra, **{name: value for name, value in facts.items() if value is not None}},
    )


def _branches(nodes: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """Return the paths from the root to each leaf of the message graph."""
    all_nodes = [node if isinstance(node, dict) else {} for node in nodes]
    parents = [parent if isinstance(parent := node.get("parent"), int) else -1 for node in all_nodes]
    paths = []
    for leaf in sorted(set(range(len(all_nodes))) - set(parents)):
        path: list[dict[str, Any]] = []
        index = leaf
        while 0 <= index < len(all_nodes) and len(path) < len(all_nodes):
            path.append(all_nodes[index])
            index = parents[index]
        paths.append(path[::-1])
    return paths


def _trace_rollout(trace: dict[str, Any], nodes: list[dict[str, Any]], task: dict[str, Any]) -> Rollout:
    first = next((index for index, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    messages = [node.get("message") for node in nodes]
    reward_entries = dict_in(trace, "rewards")
    rewards = {
        name: to_float(entry.get("score") if isinstance(entry, dict) else entry)
        for name, entry in reward_entries.items()
    }
    errors = [error for error in list_in(trace, "errors") if isinstance(error, dict)]
    calls = [call for call in list_in(trace, "calls") if isinstance(call, dict)]
    cut = trace.get("stop_condition") in _CUT or (calls and calls[-1].get("finish_reason") == "length")
    return Rollout(
        id="",
        **message_fields(messages[:first], messages[first:]),
        rewards=rewards,
        reward=_total(reward_entries, rewards),
        advantage=_advantage(nodes),
        prompt_tokens=sum(len(list_in(node, "token_ids")) for node in nodes[:first]) or None,
        completion_tokens=sum(map(bool, (m for node in nodes for m in list_in(node, "mask")))) or None,
        finish=_finish(cut, errors, trace.get("is_completed")),
        error=_error(errors[-1]) if errors else None,
        columns=dict_in(task, "data"),
        extra={name: trace[name] for name in ("metrics", "info", "stop_condition") if trace.get(name)},
        tokens=_tokens(nodes, first),
    )


def _total(entries: Mapping[str, Any], rewards: Mapping[str, Any]) -> Any:
    """Return the weighted sum, in which None counts as 0; a score or weight that is not a number is returned as is."""
    total = 0.0
    for name, score in rewards.items():
        weight = to_float(entries[name].get("weight")) if isinstance(entries[name], dict) else None
        for value in (score, weight):
            if value is not None and type(value) is not float:
                return value
        total += (score or 0.0) * (1.0 if weight is None else weight)
    return total if any(entry is not None for entry in entries.values()) else None


def _advantage(nodes: Sequence[dict[str, Any]]) -> float | None:
    """Return the advantage that all sampled tokens share; None if they differ, or if there is none."""
    advantages = {value for node in nodes for value in list_in(node, "advantages")}
    return real(advantages.pop()) if len(advantages) == 1 else None


def _tokens(nodes: Sequence[dict[str, Any]], first: int) -> Tokens | None:
    if not any(list_in(node, "token_ids") for node in nodes):
        return None
    ids = [[token for node in part for token in list_in(node, "token_ids")] for part in (nodes[:first], nodes[first:])]
    mask = [int(bool(flag)) for node in nodes[first:] for flag in list_in(node, "mask")]
    sampled = [value for node in nodes[first:] for value in list_in(node, "logprobs")]
    is_aligned = len(mask) == len(ids[1])
    remaining = iter(sampled)
    logprobs = [next(remaining) if flag else 0.0 for flag in mask] if len(sampled) == sum(mask) > 0 else None
    return Tokens(
        prompt=ids[0], completion=ids[1], mask=mask if is_aligned else None, logprobs=logprobs if is_aligned else None
    )


def _finish(cut: Any, error: Any, completed: Any) -> Finish:
    if error:
        return "error"
    return "length" if cut else "stop" if completed else "unknown"


def _error(error: Any) -> str | None:
    if isinstance(error, dict):
        kind, message = error.get("type") or error.get("error"), error.get("message") or error.get("error_chain_str")
        return ": ".join(str(part) for part in (kind, message) if part) or "unknown error"
    return str(error) if error else None
