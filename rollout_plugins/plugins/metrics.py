"""Numbers about rollouts that people can't see otherwise, for the trainer's own log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from rollout_hookspecs import Rollout, Run, Step, ToolCall, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.options import check, one_of, share, whole
from rollout_plugins.plugins.alerts import Alerts
from rollout_plugins.plugins.numbers import correlation, mean, number, numbers, quantile, spread

_TEXTS = 64
_WORDS = 1000
_TOOLS = 50
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")

HEADLINES = ("truncated", "duplicated", "groups/no_spread", "groups/reward_spread", "tools/failed")

Alert = Callable[[str, str], object]


class Metrics:
    """Adds what a person acts on to the trainer's log, under `rollouts/`, and warns. On by default.

    Of this process's rollouts, train and eval apart:

    - `truncated`, `duplicated`: shares of the rollouts cut off at the length limit, and of those that repeat others.
    - `groups/no_spread`: share of groups in which all rewards are equal, which teach nothing.
    - `groups/reward_spread`: mean standard deviation of the rewards in a group.
    - `tools/failed`: share of the tool calls that failed, those of tools that do not exist among them.
    - `drops/<reason>`: rollouts lost so far; from the third reason on, `drops/others` has all but the first.

    What does not apply (no tools, no groups) is left out, and so is a 0, except the first one after another number.

    log: `few`, or `all` for every number, zeros too: `empty` (share), `turns`; `groups/length_spread`;
        `correlation/length_reward` and `correlation/<reward function>` (with the total); `text/distinct_1`,
        `text/distinct_2` (share of different words and word pairs) and `text/repetition` (share of four-word runs
        seen before in the same answer); `tools/calls` (per rollout), `tools/unknown`, `tools/not_run` (shares of
        calls), `tools/seconds_p50`, `tools/seconds_p95`, and for each tool the same under `tools/<name>/`; what other
        plugins leave out by default; and what recording costs. Words are split at spaces; at most 64 answers a step
        are read, and the first 1,000 words of each. No tokenizer runs, and nothing waits for a device.
        Metrics("all")

    Warns, once each, through the logger `rollout_plugins`, the sinks that have alerts (trackio, wandb) and `alert`:

    alert: a function, or a list of them, called with a title and a text.
        Metrics(alert=lambda title, text: post_to_chat(f"{title}: {text}"))
    collapse: share of a step's rollouts that repeat others at which the model counts as collapsed.
        Metrics(collapse=0.7)
    tool_failure: share of a tool's calls that fail at which it counts as broken.
        Metrics(tool_failure=0.3)
    patience: training steps in a row for which a rule must hold. The third rule: no group has any reward spread.
        Metrics(patience=10)
    """

    def __init__(
        self,
        log: str = "few",
        *,
        alert: Alert | Sequence[Alert] | None = None,
        collapse: float = 0.9,
        tool_failure: float = 0.5,
        patience: int = 5,
    ) -> None:
        callables = [alert] if callable(alert) else list(alert) if isinstance(alert, (list, tuple)) else alert
        usable = callables is None or (isinstance(callables, list) and all(callable(each) for each in callables))
        check(
            "metrics",
            one_of("log", log, ("few", "all")),
            None if usable else f"alert={alert!r} is neither a function nor a list of functions",
            share("collapse", collapse),
            share("tool_failure", tool_failure),
            whole("patience", patience, 1),
        )
        self._rules = Alerts(callables or [], collapse=collapse, tool_failure=tool_failure, patience=patience)
        self._tools: frozenset[str] = frozenset()
        self.alerts: list[str] = []
        self.verbose = log == "all"
        self.headlines = HEADLINES

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        functions = [tool.get("function", tool) for tool in run.tools if isinstance(tool, Mapping)]
        names = [function.get("name") for function in functions if isinstance(function, Mapping)]
        self._tools = frozenset(name for name in names if isinstance(name, str))
        self._rules.begin()
        self.alerts = []

    @hookimpl
    def rollout_metrics(self, rollouts: Sequence[Rollout], step: Step) -> Mapping[str, float]:
        if not rollouts:
            return {}
        texts = [_written(rollout) for rollout in rollouts]
        calls = [call for rollout in rollouts for call in rollout.tool_calls]
        figures: dict[str, float | None] = {**_shares(rollouts, texts), **_groups(rollouts)}
        if self.verbose:
            figures |= {**_correlations(rollouts), **_variety(texts)}
        if calls or self._tools:
            figures |= self._tool_figures(calls, len(rollouts))
        found = {name: value for name, value in figures.items() if value is not None}
        self.alerts = self._rules.look(found, self._by_tool(calls), step) if step.split == "train" else []
        return found

    def _tool_figures(self, calls: Sequence[ToolCall], rollouts: int) -> dict[str, float | None]:
        figures = _of_calls("tools", calls, rollouts)
        for name, own in self._by_tool(calls).items():
            figures |= _of_calls(f"tools/{name}", own, rollouts)
        return figures

    def _by_tool(self, calls: Sequence[ToolCall]) -> dict[str, list[ToolCall]]:
        """Calls of each tool there is. What the model made up gets no metric of its own: it could be anything."""
        found: dict[str, list[ToolCall]] = {}
        for call in calls:
            if self._is_tool(call) and (call.name in found or len(found) < _TOOLS):
                found.setdefault(call.name, []).append(call)
        return found

    def _is_tool(self, call: ToolCall) -> bool:
        if call.status == "unknown" or type(call.name) is not str:
            return False
        return call.name in self._tools if self._tools else _TOOL_NAME.match(call.name) is not None


def _shares(rollouts: Sequence[Rollout], texts: Sequence[str]) -> dict[str, float | None]:
    count = len(rollouts)
    empty = sum(not text.strip() and not _acted(rollout) for rollout, text in zip(rollouts, texts, strict=True))
    return {
        "truncated": sum(rollout.finish == "length" for rollout in rollouts) / count,
        "empty": empty / count,
        "duplicated": 1 - _distinct_answers(rollouts, texts) / count,
        "turns": mean([float(len(_turns(rollout))) for rollout in rollouts]),
    }


def _distinct_answers(rollouts: Sequence[Rollout], texts: Sequence[str]) -> int:
    """How many answers differ. Only those that look alike are read in full."""
    alike: dict[Any, list[Any]] = {}
    for rollout, text in zip(rollouts, texts, strict=True):
        look = (len(rollout.completion), len(text), text[:200], text[-200:])
        alike.setdefault(look, []).append(rollout.completion)
    return sum(len(set(map(content_hash, some))) if len(some) > 1 else 1 for some in alike.values())


def _turns(rollout: Rollout) -> list[Mapping[str, Any]]:
    """The model's own messages."""
    messages = [message for message in rollout.completion if issubclass(type(message), dict)]
    return [message for message in messages if type(message.get("role")) is str and message["role"] == "assistant"]


def _written(rollout: Rollout) -> str:
    """Text the model wrote. Other content is not spelled out: that would cost more than it tells."""
    return "\n".join(text for message in _turns(rollout) for text in _texts(message.get("content")))


def _texts(content: Any) -> list[str]:
    blocks = content if issubclass(type(content), (list, tuple)) else [content]
    texts = [block.get("text") if issubclass(type(block), dict) else block for block in blocks]
    return [text for text in texts if type(text) is str]


def _acted(rollout: Rollout) -> bool:
    """Whether there is anything besides text: a call, an image."""
    contents: list[Any] = [message.get("content") for message in _turns(rollout)]
    return bool(rollout.tool_calls) or any(len(c) > len(_texts(c)) for c in contents if type(c) in {list, tuple})


def _groups(rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    members: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        members.setdefault(rollout.group, []).append(rollout)
    rewards = [s for group in members.values() if (s := spread(numbers(r.reward for r in group))) is not None]
    lengths = [
        s for group in members.values() if (s := spread(numbers(r.completion_tokens for r in group))) is not None
    ]
    return {
        "groups/no_spread": mean([float(value < 1e-12) for value in rewards]),
        "groups/reward_spread": mean(rewards),
        "groups/length_spread": mean(lengths),
    }


def _correlations(rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    totals = [number(rollout.reward) for rollout in rollouts]
    names = list(dict.fromkeys(chain.from_iterable(rollout.rewards for rollout in rollouts)))
    found = {"correlation/length_reward": _related([number(r.completion_tokens) for r in rollouts], totals)}
    if len(names) > 1:
        for name in names:
            found[f"correlation/{name}"] = _related([number(r.rewards.get(name)) for r in rollouts], totals)
    return found


def _related(left: Sequence[float | None], right: Sequence[float | None]) -> float | None:
    return correlation([(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None])


def _variety(texts: Sequence[str]) -> dict[str, float | None]:
    stride = -(-len(texts) // _TEXTS) or 1
    split = [text.split(maxsplit=_WORDS)[:_WORDS] for text in texts[::stride]]
    repeated = [_repeated(words) for words in split if len(words) >= 8]
    return {
        "text/distinct_1": _distinct(split),
        "text/distinct_2": _distinct([list(pairwise(words)) for words in split]),
        "text/repetition": mean(repeated),
    }


def _distinct(rows: Sequence[Sequence[object]]) -> float | None:
    total = sum(map(len, rows))
    return len(set(chain.from_iterable(rows))) / total if total else None


def _repeated(words: Sequence[str]) -> float:
    runs = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(runs)) / len(runs)


def _of_calls(name: str, calls: Sequence[ToolCall], rollouts: int) -> dict[str, float | None]:
    states: Counter[str] = Counter(call.status for call in calls)
    seconds = numbers(call.seconds for call in calls)
    figures: dict[str, float | None] = {f"{name}/calls": len(calls) / rollouts}
    if calls:
        states["failed"] = states["error"] + states["unknown"]
        figures |= {f"{name}/{state}": states[state] / len(calls) for state in ("failed", "unknown", "not_run")}
    return figures | {f"{name}/seconds_p50": quantile(seconds, 0.5), f"{name}/seconds_p95": quantile(seconds, 0.95)}
