"""Write rollouts in the Hub's session-traces format, which it displays as conversations: a JSONL file for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout, Run

from rollout_plugins.content.json_safe import json_text
from rollout_plugins.content.messages import Call, calls_of, field_of, reasoning_of, role_of, text_of

FOLDER = "sessions"
_FACTS = ("split", "step", "group", "reward", "rewards", "finish", "error")
#: The roles of the format; every other role is treated as a tool.
_ROLES = {**dict(zip(*[("system", "user", "assistant", "tool")] * 2, strict=True)), "developer": "system"}


def write_sessions(run: Run, rollouts: Iterable[Rollout], folder: Path) -> int:
    """Write a file for each rollout into a folder for each step, and return the number of files."""
    count = 0
    for rollout in rollouts:
        target = folder / FOLDER / rollout.split / f"{rollout.step or 0:06d}" / f"{rollout.id}.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(map(json_text, lines_of(rollout, run))) + "\n", encoding="utf-8")
        count += 1
    return count


def lines_of(rollout: Rollout, run: Run) -> Iterator[dict[str, Any]]:
    """Yield the session line, then a line for each message."""
    yield {
        "type": "session",
        "harness": "rollout-plugins",
        "id": rollout.id,
        "name": f"step {rollout.step}, reward {'none' if rollout.reward is None else f'{rollout.reward:.3f}'}",
        "run": run.id,
        "model": run.model,
        **{name: getattr(rollout, name) for name in _FACTS},
    }
    open_calls: list[tuple[str, str | None]] = []
    for message in (*rollout.prompt, *rollout.completion):
        yield {"type": "message", "message": _message(message, open_calls, run.model)}


def _message(message: Any, open_calls: list[tuple[str, str | None]], model: str) -> dict[str, Any]:
    """Return a message in the format. `asked`: the calls without an answer so far, by id and name."""
    role = _ROLES.get(role_of(message), "tool")
    line: dict[str, Any] = {"role": role, "content": text_of(field_of(message, "content"))}
    if reasoning := reasoning_of(message):
        line["reasoningContent"] = reasoning
    if calls := calls_of(message):
        named = [(call.id or f"call-{len(open_calls) + number}", call) for number, call in enumerate(calls)]
        open_calls += [(ident, call.name) for ident, call in named]
        line["toolCalls"] = [_call(ident, call) for ident, call in named]
    if role == "tool" and open_calls:
        line["toolCallId"] = _answered(message, open_calls)
    return {**line, "model": model} if role == "assistant" and model else line


def _call(ident: str, call: Call) -> Mapping[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else json_text(call.arguments)
    return {"id": ident, "function": {"name": call.name or "", "arguments": arguments}}


def _answered(message: Any, open_calls: list[tuple[str, str | None]]) -> str:
    """Return the id of the call that a message answers: the one it names, else the first with its name, else the
    first.
    """
    ident, name = field_of(message, "tool_call_id"), field_of(message, "name")
    fits: Sequence[int] = [at for at, (one, called) in enumerate(open_calls) if ident == one]
    fits = fits or [at for at, (_, called) in enumerate(open_calls) if name == called] or [0]
    return open_calls.pop(fits[0])[0]
