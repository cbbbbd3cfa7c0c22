"""Add figures about rollouts to the trainer's log that people would not see otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from math import isfinite
from typing import Any

from rollout_hookspecs import Columns, Run, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.numbers import finite, real
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.plugins.statistics import correlation, mean, numbers, quantile, spread
from rollout_plugins.system.option_checks import check, one_of

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


class Metrics:
    """Adds figures that a person can act on to the trainer's log, under `rollouts/`. On by default.

    They describe this process's rollouts, with train and eval separate:

    - `truncated`, `duplicated`: share of the rollouts that the length limit cut off, and of those that repeat others.
    - `groups/no_spread`: share of groups in which all rewards are equal, so that they teach nothing.
    - `groups/reward_spread`: mean standard deviation of the rewards in a group.
    - `tools/failed`: share of the tool calls that failed, including calls of tools that do not exist.
    - `rewards/not_finite`: share of the rollouts with a reward that is NaN or infinite.
    - `drops/<reason>`: rollouts lost so far; from the third reason on, `drops/others` has all but the first.
    - `unsent/<sink>`: rollouts that a sink missed so far; the store has them.

    Figures that do not apply (no tools, no groups) are left out, and so is a 0, unless it follows another number.

    log: `few`, or `all` for every figure, including zeros: `empty` (share), `turns`; `groups/length_spread`;
        `correlation/length_reward` and `correlation/<reward function>` (with the total); `text/distinct_1`,
        `text/distinct_2` (share of different words and word pairs) and `text/repetition` (share of four-word sequences
        that occur earlier in the same answer); `tools/calls` (per rollout), `tools/unknown`, `tools/not_run` (shares
        of
        calls), `tools/seconds_p50`, `tools/seconds_p95`, and for each tool the same under `tools/<name>/`; what other
        plugins leave out by default; and the cost of recording. Words are split at spaces; at most 64 answers per step
        are read, and the first 1,000 words of each. No tokenizer runs, and nothing waits for a device.
        Metrics("all")
    """

    def __init__(self, log: str = "few") -> None:
        check("metrics", one_of("log", log, ("few", "all")))
        self._tools: frozenset[str] = frozenset()
        self.verbose = log == "all"
        self.headlines = HEADLINES

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        functions = [tool.get("function", tool) for tool in run.tools if isinstance(tool, Mapping)]
        names = [function.get("name") for function in functions if isinstance(function, Mapping)]
        self._tools = frozenset(name for name in names if isinstance(name, str))

    @hookimpl
    def rollout_metrics(self, columns: Columns) -> Mapping[str, float]:
        if not len(columns):
            return {}
        drafts = RolloutColumns.from_rollouts(columns)
        answers = drafts.messages("completion")
        calls = drafts.calls().columns
        figures: dict[str, float | None] = {**_shares(drafts, answers), **_group_figures(drafts)}
        figures["rewards/not_finite"] = _count_non_finite(drafts) / len(drafts)
        if self.verbose:
            figures |= {**_verbose_shares(drafts, answers), **_correlations(drafts), **_variety_figures(answers)}
        if calls["name"] or self._tools:
            figures |= _call_figures("tools", calls, range(len(calls["name"])), len(drafts), timed=self.verbose)
            for name, rows in self._rows_by_tool(calls).items() if self.verbose else ():
                figures |= _call_figures(f"tools/{name}", calls, rows, len(drafts))
        return {name: value for name, value in figures.items() if value is not None}

    def _rows_by_tool(self, calls: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
        """Return the rows of the calls of each existing tool. A tool that the model invented gets no metric."""
        rows_by_tool: dict[str, list[int]] = {}
        for row, (name, status) in enumerate(zip(calls["name"], calls["status"], strict=True)):
            if type(name) is str and name in rows_by_tool and status != "unknown":
                rows_by_tool[name].append(row)
            elif self._is_tool(name, status) and len(rows_by_tool) < _TOOLS:
                rows_by_tool[name] = [row]
        return rows_by_tool

    def _is_tool(self, name: Any, status: Any) -> bool:
        if status == "unknown" or type(name) is not str:
            return False
        return name in self._tools if self._tools else _TOOL_NAME.match(name) is not None


def _shares(drafts: RolloutColumns, answers: MessageColumns) -> dict[str, float | None]:
    return {
        "truncated": list(drafts["finish"]).count("length") / len(drafts),
        "duplicated": 1 - _distinct_answers(answers) / len(drafts),
    }


def _verbose_shares(drafts: RolloutColumns, answers: MessageColumns) -> dict[str, float | None]:
    calls = drafts.calls()
    empty = sum(
        not calls.values_of(row, "name") and not _model_text(messages).strip() and not _has_other_content(messages)
        for row, messages in enumerate(answers)
    )
    return {
        "empty": empty / len(drafts),
        "turns": mean([float(len(_model_messages(messages))) for messages in answers]),
    }


def _distinct_answers(answers: MessageColumns) -> int:
    """Count the distinct answers. Only answers of the same outline are compared in full."""
    texts = answers.column("content")
    rows_by_outline: dict[Any, list[int]] = {}
    for row, (start, end) in enumerate(pairwise(answers.starts)):
        parts = [text or "" for text in texts[start:end]]
        outline = (tuple(map(len, parts)), parts[0][:200], parts[-1][-200:]) if parts else ()
        rows_by_outline.setdefault(outline, []).append(row)
    return sum(
        len({content_hash(answers[row]) for row in rows}) if len(rows) > 1 else 1 for rows in rows_by_outline.values()
    )


def _model_messages(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the messages that the model wrote."""
    dicts = [message for message in messages if issubclass(type(message), dict)]
    return [message for message in dicts if type(message.get("role")) is str and message["role"] == "assistant"]


def _model_text(messages: Sequence[Any]) -> str:
    """Return the text that the model wrote. Other content is not spelled out, which would cost too much."""
    return "\n".join(text for message in _model_messages(messages) for text in _texts(message.get("content")))


def _texts(content: Any) -> list[str]:
    blocks = content if issubclass(type(content), (list, tuple)) else [content]
    texts = [block.get("text") if issubclass(type(block), dict) else block for block in blocks]
    return [text for text in texts if type(text) is str]


def _has_other_content(messages: Sequence[Any]) -> bool:
    """Check whether the model's messages contain anything besides text, such as an image."""
    contents: list[Any] = [message.get("content") for message in _model_messages(messages)]
    return any(len(c) > len(_texts(c)) for c in contents if type(c) in {list, tuple})


def _count_non_finite(drafts: RolloutColumns) -> int:
    """Return how many rollouts have a reward that is NaN or infinite, of any function or in total."""
    return sum(
        any(map(_is_not_finite, rewards.values() if isinstance(rewards, Mapping) else ())) or _is_not_finite(total)
        for total, rewards in zip(drafts["reward"], drafts["rewards"], strict=True)
    )


def _is_not_finite(value: Any) -> bool:
    number = real(value)
    return number is not None and not isfinite(number)


def _group_figures(drafts: RolloutColumns) -> dict[str, float | None]:
    rewards = _spreads(drafts["group"], drafts["reward"])
    return {
        "groups/no_spread": mean([float(value < 1e-12) for value in rewards]),
        "groups/reward_spread": mean(rewards),
        "groups/length_spread": mean(_spreads(drafts["group"], drafts["completion_tokens"])),
    }


def _spreads(groups: Sequence[int], values: Sequence[Any]) -> list[float]:
    """Return the standard deviation of the values in each group that has several."""
    members: dict[int, list[Any]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    return [deviation for group in members.values() if (deviation := spread(numbers(group))) is not None]


def _correlations(drafts: RolloutColumns) -> dict[str, float | None]:
    totals = [finite(value) for value in drafts["reward"]]
    names = list(dict.fromkeys(chain.from_iterable(drafts["rewards"])))
    lengths = [finite(count) for count in drafts["completion_tokens"]]
    figures = {"correlation/length_reward": _correlate(lengths, totals)}
    if len(names) > 1:
        for name in names:
            figures[f"correlation/{name}"] = _correlate([finite(row.get(name)) for row in drafts["rewards"]], totals)
    return figures


def _correlate(left: Sequence[float | None], right: Sequence[float | None]) -> float | None:
    return correlation([(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None])


def _variety_figures(answers: MessageColumns) -> dict[str, float | None]:
    stride = -(-len(answers) // _TEXTS) or 1
    texts = [_model_text(answers[row]) for row in range(0, len(answers), stride)]
    words_by_text = [text.split(maxsplit=_WORDS)[:_WORDS] for text in texts]
    repetition = [_repeated_share(words) for words in words_by_text if len(words) >= 8]
    return {
        "text/distinct_1": _distinct_share(words_by_text),
        "text/distinct_2": _distinct_share([list(pairwise(words)) for words in words_by_text]),
        "text/repetition": mean(repetition),
    }


def _distinct_share(rows: Sequence[Sequence[object]]) -> float | None:
    total = sum(map(len, rows))
    return len(set(chain.from_iterable(rows))) / total if total else None


def _repeated_share(words: Sequence[str]) -> float:
    sequences = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(sequences)) / len(sequences)


def _call_figures(
    name: str, calls: Mapping[str, Sequence[Any]], rows: Sequence[int], rollouts: int, *, timed: bool = True
) -> dict[str, float | None]:
    states: Counter[Any] = Counter(calls["status"][row] for row in rows)
    figures: dict[str, float | None] = {f"{name}/calls": len(rows) / rollouts}
    if rows:
        states["failed"] = states["error"] + states["unknown"]
        figures |= {f"{name}/{state}": states[state] / len(rows) for state in ("failed", "unknown", "not_run")}
    times = numbers(calls["seconds"][row] for row in rows) if timed else []
    return figures | {f"{name}/seconds_p50": quantile(times, 0.5), f"{name}/seconds_p95": quantile(times, 0.95)}
