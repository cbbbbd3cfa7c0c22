"""tinker-cookbook's `*_rollout_summaries.jsonl`, with the RolloutTrace records of each step where they are written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout

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
    tool_calls,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollout_hookspecs._records import Finish

NAME = "tinker-cookbook"
LACKS = (
    "texts, unless traces were written: prompt and completion are empty then",
    "advantages, token ids and log-probabilities",
    "the wording of tool calls that did not parse",
)
_FINISH: dict[Any, Finish] = {"stop": "stop", "length": "length"}


def read(path: Path, skip: Skip) -> Iterator[Found]:
    """One rollout for each trajectory."""
    for file in find(path, "**/*rollout_summaries.jsonl", "the log_path, or one *_rollout_summaries.jsonl"):
        yield from converted(file, skip, partial(_row, skip=skip))


def _row(row: dict[str, Any], skip: Skip) -> list[Found]:
    if "group_idx" not in row or not isinstance(row.get("steps"), list):
        skip("row that is no rollout summary")
        return []
    return [found(row)]


def found(row: dict[str, Any]) -> Found:
    """The rollout of one trajectory's summary."""
    steps = [step for step in row["steps"] if isinstance(step, dict)]
    split = row.get("split")
    prompt, completion = _conversation([dict_in(step, "trace") for step in steps])
    total, final = given(row.get("total_reward")), given(row.get("final_reward"))
    rollout = Rollout(
        id="",
        split="train" if split == "train" else "eval",
        step=whole(row.get("iteration")),
        policy_step=whole(row["sampling_client_step"])
        if number(row.get("sampling_client_step")) is not None
        else None,
        prompt=prompt,
        completion=completion,
        tool_calls=tool_calls(completion),
        rewards={"steps": _of_steps(steps, total, final), "final": final},
        reward=total,
        prompt_tokens=_sum(steps[:1], "ob_len"),
        completion_tokens=_sum(steps, "ac_len"),
        **_ending(steps[-1] if steps else {}),
        columns={name: row[name] for name in ("split", "tags") if row.get(name)},
        extra={
            **({"trajectory_metrics": metrics} if (metrics := dict_in(row, "trajectory_metrics")) else {}),
            "steps": [_without_text(s) for s in steps],
        },
    )
    return Found(rollout, row["group_idx"])


def _of_steps(steps: list[dict[str, Any]], total: Any, final: Any) -> float | None:
    """What the steps themselves earned. The total less the final reward is the same, but for rounding."""
    if type(total) is not float or type(final) is not float:
        return None
    earned = [given(step.get("reward")) for step in steps]
    return sum(earned, 0.0) if all(type(one) is float for one in earned) else total - final


def _sum(steps: list[dict[str, Any]], name: str) -> int | None:
    """A number of the steps added up; None when one does not have it."""
    numbers = [number(step.get(name)) for step in steps]
    return sum(map(whole, numbers)) if numbers and None not in numbers else None


def _ending(last: dict[str, Any]) -> dict[str, Any]:
    """Why it ended. The environment's reasons weigh more than the sampler's."""
    metrics = dict_in(last, "metrics")
    if metrics.get("parse_error"):
        return {"finish": "error", "error": "the last answer did not parse"}
    if metrics.get("context_overflow"):
        return {"finish": "length"}
    return {"finish": _FINISH.get(last.get("stop_reason"), "unknown")}


def _conversation(traces: list[dict[str, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first prompt, and everything said since: each later prompt repeats what came before it."""
    prompt = _messages(traces[0], "prompt") if traces else ()
    said: list[Any] = []
    for trace in traces:
        before = _messages(trace, "prompt")
        said += before[len(prompt) + len(said) :]
        said += _messages(trace, "policy_response")
    last = dict_in(dict_in(traces[-1], "extra"), "next_messages") if traces else {}
    after, _ = messages(last.get("messages") or [], "user")
    return prompt, (*said, *after[len(prompt) + len(said) :])


def _messages(trace: dict[str, Any], name: str) -> tuple[Any, ...]:
    found, _ = messages(list_in(dict_in(trace, name), "messages"), "user")
    return found


def _without_text(step: dict[str, Any]) -> dict[str, Any]:
    """A step's numbers; of its trace, what is no conversation."""
    trace = dict_in(step, "trace")
    kept = {name: trace[name] for name in ("reward_data", "env_state") if trace.get(name) is not None}
    return {**{name: value for name, value in step.items() if name != "trace"}, **kept}
