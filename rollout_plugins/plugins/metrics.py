"""Numbers about rollouts that people can't see otherwise, for the trainer's own log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from math import isfinite, isnan
from typing import Any

from rollout_hookspecs import Columns, Run, Step, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.message_columns import Talk
from rollout_plugins.content.numbers import finite, real
from rollout_plugins.content.rollout_columns import Drafts
from rollout_plugins.plugins.alerts import Alerts
from rollout_plugins.plugins.statistics import correlation, mean, numbers, quantile, spread
from rollout_plugins.system.option_checks import check, one_of, share, whole

_TEXTS = 64
_WORDS = 1000
_TOOLS = 50
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")

HEADLINES = (
    "rewards/not_finite",
    "truncated",
    "duplicated",
    "groups/no_spread",
    "groups/reward_spread",
    "tools/failed",
)

Alert = Callable[[str, str], object]


class Metrics:
    """Adds numbers that a person can act on to the trainer's log, under `rollouts/`, and warns. On by default.

    They are about this process's rollouts, with train and eval separate:

    - `truncated`, `duplicated`: shares of the rollouts cut off at the length limit, and of those that repeat others.
    - `groups/no_spread`: share of groups in which all rewards are equal, which teach nothing.
    - `groups/reward_spread`: mean standard deviation of the rewards in a group.
    - `tools/failed`: share of the tool calls that failed, including calls of tools that do not exist.
    - `rewards/not_finite`: share of the rollouts with a reward that is NaN or infinite.
    - `drops/<reason>`: rollouts lost so far; from the third reason on, `drops/others` has all but the first.
    - `unsent/<sink>`: rollouts that a sink missed so far; the store has them.

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
    patience: how many training steps in a row a rule must hold. The third rule: all groups are without reward spread.
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
    def rollout_metrics(self, columns: Columns, step: Step) -> Mapping[str, float]:
        if not len(columns):
            return {}
        drafts = Drafts.of(columns)
        answers = drafts.talk("completion")
        calls = drafts.outcomes().columns
        odd = _odd_rewards(drafts)
        figures: dict[str, float | None] = {**_shares(drafts, answers), **_groups(drafts)}
        figures["rewards/not_finite"] = len(set(chain.from_iterable(odd.values()))) / len(drafts)
        if self.verbose:
            figures |= {**_more_shares(drafts, answers), **_correlations(drafts), **_variety(answers)}
        by_tool = self._by_tool(calls)
        if calls["name"] or self._tools:
            figures |= _of_calls("tools", calls, range(len(calls["name"])), len(drafts), timed=self.verbose)
            for name, own in by_tool.items() if self.verbose else ():
                figures |= _of_calls(f"tools/{name}", calls, own, len(drafts))
        found = {name: value for name, value in figures.items() if value is not None}
        states = {name: [calls["status"][at] for at in own] for name, own in by_tool.items()}
        firsts = {name: (_kind_of(drafts, name, at), str(drafts["id"][at])) for name, (at, *_) in odd.items()}
        self.alerts = self._rules.look_at_rewards(firsts, step)
        if step.split == "train":
            self.alerts += self._rules.look(found, states, step)
        return found

    def _by_tool(self, calls: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
        """Calls of each tool there is. What the model made up gets no metric of its own: it could be anything."""
        found: dict[str, list[int]] = {}
        for at, (name, status) in enumerate(zip(calls["name"], calls["status"], strict=True)):
            if type(name) is str and name in found and status != "unknown":
                found[name].append(at)
            elif self._is_tool(name, status) and len(found) < _TOOLS:
                found[name] = [at]
        return found

    def _is_tool(self, name: Any, status: Any) -> bool:
        if status == "unknown" or type(name) is not str:
            return False
        return name in self._tools if self._tools else _TOOL_NAME.match(name) is not None


def _shares(drafts: Drafts, answers: Talk) -> dict[str, float | None]:
    return {
        "truncated": list(drafts["finish"]).count("length") / len(drafts),
        "duplicated": 1 - _distinct_answers(answers) / len(drafts),
    }


def _more_shares(drafts: Drafts, answers: Talk) -> dict[str, float | None]:
    calls = drafts.outcomes()
    empty = sum(
        not calls.of(place, "name") and not _written(messages).strip() and not _acted(messages)
        for place, messages in enumerate(answers)
    )
    return {
        "empty": empty / len(drafts),
        "turns": mean([float(len(_turns(messages))) for messages in answers]),
    }


def _distinct_answers(answers: Talk) -> int:
    """How many answers differ. Only those that look alike are read in full."""
    texts = answers.column("content")
    alike: dict[Any, list[int]] = {}
    for place, (start, end) in enumerate(pairwise(answers.starts)):
        some = [text or "" for text in texts[start:end]]
        look = (tuple(map(len, some)), some[0][:200], some[-1][-200:]) if some else ()
        alike.setdefault(look, []).append(place)
    return sum(len({content_hash(answers[i]) for i in some}) if len(some) > 1 else 1 for some in alike.values())


def _turns(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The model's own messages."""
    dicts = [message for message in messages if issubclass(type(message), dict)]
    return [message for message in dicts if type(message.get("role")) is str and message["role"] == "assistant"]


def _written(messages: Sequence[Any]) -> str:
    """Text the model wrote. Other content is not spelled out: that would cost more than it tells."""
    return "\n".join(text for message in _turns(messages) for text in _texts(message.get("content")))


def _texts(content: Any) -> list[str]:
    blocks = content if issubclass(type(content), (list, tuple)) else [content]
    texts = [block.get("text") if issubclass(type(block), dict) else block for block in blocks]
    return [text for text in texts if type(text) is str]


def _acted(messages: Sequence[Any]) -> bool:
    """Whether there is anything besides text in what the model said, such as an image."""
    contents: list[Any] = [message.get("content") for message in _turns(messages)]
    return any(len(c) > len(_texts(c)) for c in contents if type(c) in {list, tuple})


def _odd_rewards(drafts: Drafts) -> dict[str, list[int]]:
    """Places of the rewards that are NaN or infinite, by function; under "" of those that no function explains."""
    odd: dict[str, list[int]] = {}
    for place, (total, rewards) in enumerate(zip(drafts["reward"], drafts["rewards"], strict=True)):
        values = rewards if isinstance(rewards, Mapping) else {}
        names = [name for name, value in values.items() if _is_odd(value)]
        for name in names or ([""] if _is_odd(total) else []):
            odd.setdefault(str(name), []).append(place)
    return odd


def _is_odd(value: Any) -> bool:
    known = real(value)
    return known is not None and not isfinite(known)


def _kind_of(drafts: Drafts, name: str, place: int) -> str:
    value = real(drafts["rewards"][place].get(name) if name else drafts["reward"][place])
    return "NaN" if value is None or isnan(value) else "infinite"


def _groups(drafts: Drafts) -> dict[str, float | None]:
    rewards = _spreads(drafts["group"], drafts["reward"])
    return {
        "groups/no_spread": mean([float(value < 1e-12) for value in rewards]),
        "groups/reward_spread": mean(rewards),
        "groups/length_spread": mean(_spreads(drafts["group"], drafts["completion_tokens"])),
    }


def _spreads(groups: Sequence[int], values: Sequence[Any]) -> list[float]:
    """How far the values of each group are apart, where it has several."""
    members: dict[int, list[Any]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    return [found for some in members.values() if (found := spread(numbers(some))) is not None]


def _correlations(drafts: Drafts) -> dict[str, float | None]:
    totals = [finite(value) for value in drafts["reward"]]
    names = list(dict.fromkeys(chain.from_iterable(drafts["rewards"])))
    found = {"correlation/length_reward": _related([finite(n) for n in drafts["completion_tokens"]], totals)}
    if len(names) > 1:
        for name in names:
            found[f"correlation/{name}"] = _related([finite(each.get(name)) for each in drafts["rewards"]], totals)
    return found


def _related(left: Sequence[float | None], right: Sequence[float | None]) -> float | None:
    return correlation([(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None])


def _variety(answers: Talk) -> dict[str, float | None]:
    stride = -(-len(answers) // _TEXTS) or 1
    texts = [_written(answers[place]) for place in range(0, len(answers), stride)]
    split = [text.split(maxsplit=_WORDS)[:_WORDS] for text in texts]
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


def _of_calls(
    name: str, calls: Mapping[str, Sequence[Any]], own: Sequence[int], rollouts: int, *, timed: bool = True
) -> dict[str, float | None]:
    states: Counter[Any] = Counter(calls["status"][at] for at in own)
    figures: dict[str, float | None] = {f"{name}/calls": len(own) / rollouts}
    if own:
        states["failed"] = states["error"] + states["unknown"]
        figures |= {f"{name}/{state}": states[state] / len(own) for state in ("failed", "unknown", "not_run")}
    times = numbers(calls["seconds"][at] for at in own) if timed else []
    return figures | {f"{name}/seconds_p50": quantile(times, 0.5), f"{name}/seconds_p95": quantile(times, 0.95)}
