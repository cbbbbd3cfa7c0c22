"""verifiers: `traces.jsonl` (episodes with message graphs) and the older `results.jsonl`; prime-rl writes the same."""

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
from rollout_plugins.shapes._fields import dict_in, list_in, scores, spoken, whole, whole_or_none
from rollout_plugins.shapes._files import BROKEN, find, json_lines

NAME = "verifiers"
LACKS = (
    "the step of an evaluation outside training: it is 0",
    "reward weights in results.jsonl; its metrics are taken for the rewards per function",
    "images: their pixels are not written",
)
_COLUMNS = ("example_id", "task", "answer", "info")
_EXTRA = ("stop_condition", "timing", "tool_defs")
_READ = {"prompt", "completion", "reward", "error", "error_chain", "long_error_chain", "is_completed", "is_truncated"}
_OWN = {*_READ, *_COLUMNS, *_EXTRA, "metrics", "token_usage"}
_CUT = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"})


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Rollouts of every results file; a trace with several branches is a rollout for each."""
    for file in find(path, "**/*s.jsonl", "a run's folder, its traces.jsonl or its results.jsonl"):
        for row in json_lines(file):
            if isinstance(row, dict) and isinstance(row.get("traces"), list):
                yield from _episode(row)
            else:
                yield from convert_each(_result, [row], BROKEN)


def _result(row: dict[str, Any]) -> Unplaced | Lost:
    if "prompt" not in row and "completion" not in row:
        return Lost("row that is neither an episode nor a result")
    rewards, other_metrics = scores(row.get("metrics"))
    usage, error = dict_in(row, "token_usage"), row.get("error")
    rollout = Rollout(
        id="",
        split="eval",
        **spoken(row.get("prompt"), row.get("completion")),
        rewards=rewards,
        reward=to_float(row.get("reward")),
        prompt_tokens=whole_or_none(usage.get("input_tokens")),
        completion_tokens=whole_or_none(usage.get("output_tokens")),
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

    def found(part: tuple[dict[str, Any], int, list[dict[str, Any]]]) -> Unplaced:
        return Unplaced(_in_episode(row, *part), group)

    for trace in row["traces"]:
        branches = _branches(list_in(trace, "nodes")) if isinstance(trace, dict) else []
        if not branches:
            yield Lost("trace without messages")
        yield from convert_each(found, [(trace, branch, nodes) for branch, nodes in enumerate(branches)], BROKEN)


def _in_episode(row: dict[str, Any], trace: dict[str, Any], branch: int, nodes: list[dict[str, Any]]) -> Rollout:
    work = dict_in(dict_in(row, "run"), "work")
    rollout = _trace(trace, nodes, dict_in(row, "task"))
    facts = {"env": dict_in(row, "env").get("id"), "trace": trace.get("id"), "branch": branch}
    return replace(
        rollout,
        split="train" if work.get("type") == "train" else "eval",
        step=whole(work.get("step")),
        policy_step=whole_or_none(dict_in(work, "policy").get("end")),
        extra={**rollout.extra, **{name: value for name, value in facts.items() if value is not None}},
    )


def _branches(nodes: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """Paths from the root to each leaf of the message graph."""
    good = [node if isinstance(node, dict) else {} for node in nodes]
    parents = [parent if isinstance(parent := node.get("parent"), int) else -1 for node in good]
    paths = []
    for leaf in sorted(set(range(len(good))) - set(parents)):
        path: list[dict[str, Any]] = []
        at = leaf
        while 0 <= at < len(good) and len(path) < len(good):
            path.append(good[at])
            at = parents[at]
        paths.append(path[::-1])
    return paths


def _trace(trace: dict[str, Any], nodes: list[dict[str, Any]], task: dict[str, Any]) -> Rollout:
    first = next((at for at, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    said = [node.get("message") for node in nodes]
    rewarded = dict_in(trace, "rewards")
    scored = {
        name: to_float(value.get("score") if isinstance(value, dict) else value) for name, value in rewarded.items()
    }
    errors = [error for error in list_in(trace, "errors") if isinstance(error, dict)]
    calls = [call for call in list_in(trace, "calls") if isinstance(call, dict)]
    cut = trace.get("stop_condition") in _CUT or (calls and calls[-1].get("finish_reason") == "length")
    return Rollout(
        id="",
        **spoken(said[:first], said[first:]),
        rewards=scored,
        reward=_total(rewarded, scored),
        advantage=_advantage(nodes),
        prompt_tokens=sum(len(list_in(node, "token_ids")) for node in nodes[:first]) or None,
        completion_tokens=sum(map(bool, (m for node in nodes for m in list_in(node, "mask")))) or None,
        finish=_finish(cut, errors, trace.get("is_completed")),
        error=_error(errors[-1]) if errors else None,
        columns=dict_in(task, "data"),
        extra={name: trace[name] for name in ("metrics", "info", "stop_condition") if trace.get(name)},
        tokens=_tokens(nodes, first),
    )


def _total(rewarded: Mapping[str, Any], scored: Mapping[str, Any]) -> Any:
    """The weighted sum; a score of None counts as nothing. One that cannot be counted stands for the sum."""
    total = 0.0
    for name, score in scored.items():
        weight = to_float(rewarded[name].get("weight")) if isinstance(rewarded[name], dict) else None
        for odd in (score, weight):
            if odd is not None and type(odd) is not float:
                return odd
        total += (score or 0.0) * (1.0 if weight is None else weight)
    return total if any(one is not None for one in rewarded.values()) else None


def _advantage(nodes: Sequence[dict[str, Any]]) -> float | None:
    """The one advantage of all sampled tokens; None where tokens were credited differently, or not at all."""
    given = {value for node in nodes for value in list_in(node, "advantages")}
    return real(given.pop()) if len(given) == 1 else None


def _tokens(nodes: Sequence[dict[str, Any]], first: int) -> Tokens | None:
    if not any(list_in(node, "token_ids") for node in nodes):
        return None
    ids = [[token for node in part for token in list_in(node, "token_ids")] for part in (nodes[:first], nodes[first:])]
    mask = [int(bool(flag)) for node in nodes[first:] for flag in list_in(node, "mask")]
    sampled = [value for node in nodes[first:] for value in list_in(node, "logprobs")]
    aligned = len(mask) == len(ids[1])
    waiting = iter(sampled)
    spread = [next(waiting) if flag else 0.0 for flag in mask] if len(sampled) == sum(mask) > 0 else None
    return Tokens(
        prompt=ids[0], completion=ids[1], mask=mask if aligned else None, logprobs=spread if aligned else None
    )


def _finish(cut: Any, error: Any, completed: Any) -> Finish:
    if error:
        return "error"
    return "length" if cut else "stop" if completed else "unknown"


def _error(error: Any) -> str | None:
    if isinstance(error, dict):
        kind, said = error.get("type") or error.get("error"), error.get("message") or error.get("error_chain_str")
        return ": ".join(str(part) for part in (kind, said) if part) or "unknown error"
    return str(error) if error else None
