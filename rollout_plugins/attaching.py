"""Find the trainer a callback belongs to: transformers passes it to no event, but it is on the call stack."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def _frames_in(kind: type, *names: str) -> Iterator[FrameType]:
    """Calls of a class's own methods on the stack, innermost first.

    Up to Python 3.12, reading a frame's locals makes a copy of them that lives as long as the frame. So the frames of
    the user's functions are left alone: a trainer deleted there would never be freed.
    """
    codes = set(_codes(kind, names))
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to walk the stack
    while frame is not None:
        if frame.f_code in codes:
            yield frame
        frame = frame.f_back


def _codes(kind: type, names: tuple[str, ...]) -> Iterator[CodeType]:
    """The code of a class's methods, inherited ones included, without what was wrapped around them."""
    for owner in kind.__mro__:
        for name in names or vars(owner):
            method = vars(owner).get(name)
            if inspect.isfunction(method):
                yield inspect.unwrap(method).__code__


def _base() -> type:
    """The class that all trainers have in common; none exists before its module is imported."""
    return getattr(sys.modules.get("transformers.trainer"), "Trainer", object)


def trainer_of(callback: Any) -> Any | None:
    """The innermost trainer on the call stack whose callbacks hold this one."""
    for frame in _frames_in(_base()):
        owner = frame.f_locals.get("self")
        if holds(owner, callback):
            return owner
    return None


def holds(trainer: Any, callback: Any) -> bool:
    """Whether a callback is among those of a trainer."""
    handler = getattr(trainer, "callback_handler", None)
    return any(one is callback for one in getattr(handler, "callbacks", ()))


def trainer_adding(kind: type) -> Any | None:
    """The trainer whose `add_callback` was given the class and is instantiating it right now."""
    for frame in _frames_in(_base(), "add_callback"):
        if frame.f_locals.get("callback") is kind:
            return frame.f_locals.get("self")
    return None


def checkpoint_being_resumed(trainer: Any) -> Path | None:
    """The checkpoint that the trainer's `train` on the call stack resumes from, or is about to."""
    for frame in _frames_in(type(trainer), "train", "_inner_training_loop"):
        owner: Any = frame.f_locals.get("self")
        if owner is not trainer:
            continue
        more = frame.f_locals.get("kwargs") or {}
        value = frame.f_locals.get("resume_from_checkpoint", more.get("resume_from_checkpoint"))
        if value is True:
            from transformers.trainer_utils import get_last_checkpoint

            value = get_last_checkpoint(trainer.args.output_dir)
        if isinstance(value, (str, os.PathLike)):
            return Path(value)
    return None


def step_being_resumed(trainer: Any) -> int:
    """The step of that checkpoint; 0 when there is none."""
    checkpoint = checkpoint_being_resumed(trainer)
    if checkpoint is None:
        return 0
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def evaluation_under_way(trainer: Any) -> tuple[int, str]:
    """How many rows this rank's current evaluation batch has, 0 when that cannot be seen; and the metrics' prefix."""
    for frame in _frames_in(type(trainer), "evaluation_loop"):
        rows, prefix = frame.f_locals.get("inputs"), frame.f_locals.get("metric_key_prefix", "eval")
        return (len(rows) if isinstance(rows, list) else 0), str(prefix)
    return 0, "eval"
