"""verifiers: `traces.jsonl` (episodes with message graphs) and the older `results.jsonl`; prime-rl writes the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Tokens

from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import (
    Skip,
    converted,
    dict_in,
    find,
    given,
    list_in,
    messages,
    number,
    scores,
    tool_calls,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rollout_hookspecs._records import Finish

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


def read(path: Path, skip: Skip) -> Iterator[Found]:
    """Rollouts of every results file; a trace with several branches is a rollout for each."""
    for file in find(path, "**/*s.jsonl", "a run's folder, its traces.jsonl or its results.jsonl"):
        yield from converted(file, skip, partial(_row, skip=skip))


def _row(row: dict[str, Any], skip: Skip) -> list[Found]:
    if isinstance(row.get("traces"), list):
        return list(_episode(row, skip))
    if "prompt" in row or "completion" in row:
        return [_result(row)]
    skip("row that is neither an episode nor a result")
    return []


def _result(row: dict[str, Any]) -> Found:
    prompt, prompt_is_text = messages(row.get("prompt"), "user")
    completion, completion_is_text = messages(row.get("completion"), "assistant")
    rewards, other_metrics = scores(row.get("metrics"))
    usage, error = dict_in(row, "token_usage"), row.get("error")
    rollout = Rollout(
        id="",
        split="eval",
        prompt=prompt,
        completion=completion,
        prompt_is_text=prompt_is_text,
        completion_is_text=completion_is_text,
        tool_calls=tool_calls(completion),
        rewards=rewards,
        reward=given(row.get("reward")),
        prompt_tokens=_count(usage.get("input_tokens")),
        completion_tokens=_count(usage.get("output_tokens")),
        finish=_finish(row.get("is_truncated"), error, row.get("is_completed")),
        error=_error(error),
        columns={name: row[name] for name in _COLUMNS if row.get(name) is not None},
        extra={name: value for name, value in row.items() if name not in _OWN and name not in rewards}
        | {name: row[name] for name in _EXTRA if row.get(name) is not None}
        | ({"metrics": other_metrics} if other_metrics is not None else {}),
    )
    return Found(rollout, row.get("example_id"))


def _episode(row: dict[str, Any], skip: Skip) -> Iterator[Found]:
    work = dict_in(dict_in(row, "run"), "work")
    task = dict_in(row, "task")
    group = dict_in(row, "group").get("id") or task.get("key") or task.get("hash")
    for trace in row["traces"]:
        branches = _branches(list_in(trace, "nodes")) if isinstance(trace, dict) else []
        if not branches:
            skip("trace without messages")
        for branch, nodes in enumerate(branches):
            facts = {"env": dict_in(row, "env").get("id"), "trace": trace.get("id"), "branch": branch}
            rollout = _trace(trace, nodes, task)
            rollout = replace(
                rollout,
                split="train" if work.get("type") == "train" else "eval",
                step=whole(work.get("step")),
                policy_step=_count(dict_in(work, "policy").get("end")),
                extra={**rollout.extra, **{name: value for name, value in facts.items() if value is not None}},
            )
            yield Found(rollout, group)


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
    prompt, _ = messages([node.get("message") for node in nodes[:first]], "user")
    completion, _ = messages([node.get("message") for node in nodes[first:]], "assistant")
    rewarded = dict_in(trace, "rewards")
    scored = {
        name: given(value.get("score") if isinstance(value, dict) else value) for name, value in rewarded.items()
    }
    errors = [error for error in list_in(trace, "errors") if isinstance(error, dict)]
    calls = [call for call in list_in(trace, "calls") if isinstance(call, dict)]
    cut = trace.get("stop_condition") in _CUT or (calls and calls[-1].get("finish_reason") == "length")
    return Rollout(
        id="",
        prompt=prompt,
        completion=completion,
        tool_calls=tool_calls(completion),
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
    """The weighted sum; a score that is none counts nothing. One that cannot be counted stands for the sum."""
    total = 0.0
    for name, score in scored.items():
        weight = given(rewarded[name].get("weight")) if isinstance(rewarded[name], dict) else None
        for odd in (score, weight):
            if odd is not None and type(odd) is not float:
                return odd
        total += (score or 0.0) * (1.0 if weight is None else weight)
    return total if any(one is not None for one in rewarded.values()) else None


def _advantage(nodes: Sequence[dict[str, Any]]) -> float | None:
    """The one advantage of all sampled tokens; None where tokens were credited differently, or not at all."""
    given = {value for node in nodes for value in list_in(node, "advantages")}
    return number(given.pop()) if len(given) == 1 else None


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


def _count(value: Any) -> int | None:
    return whole(value) if number(value) is not None else None


def _finish(cut: Any, error: Any, completed: Any) -> Finish:
    if error:
        return "error"
    return "length" if cut else "stop" if completed else "unknown"


def _error(error: Any) -> str | None:
    if isinstance(error, dict):
        kind, said = error.get("type") or error.get("error"), error.get("message") or error.get("error_chain_str")
        return ": ".join(str(part) for part in (kind, said) if part) or "unknown error"
    return str(error) if error else None
