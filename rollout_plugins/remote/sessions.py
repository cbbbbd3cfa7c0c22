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
    asked: list[tuple[str, str | None]] = []
    for message in (*rollout.prompt, *rollout.completion):
        yield {"type": "message", "message": _message(message, asked, run.model)}


def _message(message: Any, asked: list[tuple[str, str | None]], model: str) -> dict[str, Any]:
    """Return a message in the format. `asked`: the calls without an answer so far, by id and name."""
    role = _ROLES.get(role_of(message), "tool")
    said: dict[str, Any] = {"role": role, "content": text_of(field_of(message, "content"))}
    if reasoning := reasoning_of(message):
        said["reasoningContent"] = reasoning
    if calls := calls_of(message):
        named = [(call.id or f"call-{len(asked) + number}", call) for number, call in enumerate(calls)]
        asked += [(ident, call.name) for ident, call in named]
        said["toolCalls"] = [_call(ident, call) for ident, call in named]
    if role == "tool" and asked:
        said["toolCallId"] = _answered(message, asked)
    return {**said, "model": model} if role == "assistant" and model else said


def _call(ident: str, call: Call) -> Mapping[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else json_text(call.arguments)
    return {"id": ident, "function": {"name": call.name or "", "arguments": arguments}}


def _answered(message: Any, asked: list[tuple[str, str | None]]) -> str:
    """Return the id of the call that a message answers: the one it names, else the first with its name, else the
    first.
    """
    ident, name = field_of(message, "tool_call_id"), field_of(message, "name")
    fits: Sequence[int] = [at for at, (one, called) in enumerate(asked) if ident == one]
    fits = fits or [at for at, (_, called) in enumerate(asked) if name == called] or [0]
    return asked.pop(fits[0])[0]
