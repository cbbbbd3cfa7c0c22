"""Save a rollout as a file, or convert it to text for the clipboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rollout_hookspecs import Rollout, ToolCall

from rollout_plugins.content.exact_json import rollout_json
from rollout_plugins.show.conversation import Turn, conversation
from rollout_plugins.show.layout import content_text, outcome_of
from rollout_plugins.show.text import clean, duration, number, one_line, readable, signed


def as_markdown(rollout: Rollout) -> str:
    """Return the conversation as Markdown, with its reward above it."""
    view = conversation(rollout)
    facts = [f"step {number(view.step)}", f"group {number(view.group)}", f"reward {number(view.reward)}"]
    facts += [f"advantage {signed(view.advantage)}"]
    facts += [f"{one_line(name, 60)} {number(value)}" for name, value in view.rewards.items()]
    parts = [f"# Rollout `{one_line(view.id, 120)}`", " · ".join(facts), *map(_turn, view.turns)]
    return "\n\n".join(parts) + "\n"


def _turn(turn: Turn) -> str:
    parts = [f"## {one_line(turn.role, 40)}"]
    if turn.reasoning:
        parts.append("\n".join(f"> {line}" for line in clean(turn.reasoning).splitlines()))
    text = clean(content_text(turn.content))
    parts += [text] if text else []
    parts += [part for call in turn.calls for part in _call(call)]
    return "\n\n".join(parts)


def _call(call: ToolCall) -> Iterator[str]:
    took = duration(call.seconds)
    yield f"**{one_line(call.name, 80)}**" + (f" ({took})" if took else "")
    yield _fenced(clean(readable(call.arguments)))
    outcome, _ = outcome_of(call)
    if outcome:
        yield _fenced(clean(outcome))


def _fenced(text: str) -> str:
    """Return a code block whose fence is longer than any sequence of backticks in it."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


def save(rollout: Rollout, folder: Path, *, markdown: bool) -> Path:
    """Write a rollout into a new file of the folder, and return its path."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", rollout.id).strip(".")[:100] or "rollout"
    suffix, text = ("md", as_markdown(rollout)) if markdown else ("json", rollout_json(rollout))
    for number_ in range(1, 10_000):
        path = folder / (f"{stem}.{suffix}" if number_ == 1 else f"{stem}-{number_}.{suffix}")
        try:
            with path.open("x", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder} has too many files named {stem}: remove some of them")
