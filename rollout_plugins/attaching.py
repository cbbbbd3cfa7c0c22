"""Find the trainer a callback belongs to: transformers passes it to no event, but it is on the call stack."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to walk the stack
    while frame is not None:
        yield frame
        frame = frame.f_back


def trainer_of(callback: Any) -> Any | None:
    """The trainer on the call stack whose callbacks hold this one."""
    for frame in _frames():
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return owner
    return None


def trainer_adding(kind: type) -> Any | None:
    """The trainer whose `add_callback` was given the class and is instantiating it right now."""
    for frame in _frames():
        owner = frame.f_locals.get("self")
        given = frame.f_locals.get("callback")
        if frame.f_code.co_name == "add_callback" and given is kind and hasattr(owner, "callback_handler"):
            return owner
    return None


def checkpoint_being_resumed() -> Path | None:
    """The checkpoint that a trainer's `train` on the call stack resumes from, or is about to."""
    for frame in _frames():
        owner: Any = frame.f_locals.get("self")
        if frame.f_code.co_name not in {"train", "_inner_training_loop"} or not hasattr(owner, "callback_handler"):
            continue  # people's own functions are called train, too
        more = frame.f_locals.get("kwargs") or {}
        value = frame.f_locals.get("resume_from_checkpoint", more.get("resume_from_checkpoint"))
        if value is True:
            from transformers.trainer_utils import get_last_checkpoint

            value = get_last_checkpoint(owner.args.output_dir)
        if isinstance(value, (str, os.PathLike)):
            return Path(value)
    return None


def step_being_resumed() -> int:
    """The step of that checkpoint; 0 when there is none."""
    checkpoint = checkpoint_being_resumed()
    if checkpoint is None:
        return 0
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def batch_being_evaluated() -> int:
    """How many rows this rank's current evaluation batch has; 0 when that cannot be seen."""
    for frame in _frames():
        if frame.f_code.co_name == "evaluation_loop":
            rows = frame.f_locals.get("inputs")
            return len(rows) if isinstance(rows, list) else 0
    return 0
