"""Find a callback's trainer on the call stack, because transformers passes it to no event."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def _frames_in(trainer_class: type, *names: str) -> Iterator[FrameType]:
    """Yield the frames of a class's own methods on the call stack, innermost first.

    Up to Python 3.12, reading a frame's locals makes a copy of them that lives as long as the frame. So the frames of
    the user's functions are left alone: a trainer deleted there would never be freed.
    """
    codes = set(_codes(trainer_class, names))
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to walk the stack
    while frame is not None:
        if frame.f_code in codes:
            yield frame
        frame = frame.f_back


def _codes(trainer_class: type, names: tuple[str, ...]) -> Iterator[CodeType]:
    """Yield the code of a class's methods, including inherited ones, beneath any wrappers."""
    for owner in trainer_class.__mro__:
        for name in names or vars(owner):
            method = vars(owner).get(name)
            if inspect.isfunction(method):
                yield inspect.unwrap(method).__code__


def _base() -> type:
    """Return transformers' `Trainer`; `object` if its module is not imported, so that no trainer can exist."""
    return getattr(sys.modules.get("transformers.trainer"), "Trainer", object)


def trainer_of(callback: Any) -> Any | None:
    """Return the innermost trainer on the call stack that has this callback."""
    for frame in _frames_in(_base()):
        owner = frame.f_locals.get("self")
        if has_callback(owner, callback):
            return owner
    return None


def has_callback(trainer: Any, callback: Any) -> bool:
    """Return whether a trainer has this callback."""
    handler = getattr(trainer, "callback_handler", None)
    return any(registered is callback for registered in getattr(handler, "callbacks", ()))


def trainer_adding(callback_class: type) -> Any | None:
    """Return the trainer whose `add_callback` is currently instantiating the class `kind`."""
    for frame in _frames_in(_base(), "add_callback"):
        if frame.f_locals.get("callback") is callback_class:
            return frame.f_locals.get("self")
    return None


def checkpoint_being_resumed(trainer: Any) -> Path | None:
    """Return the checkpoint that the trainer's `train` on the call stack resumes from."""
    for frame in _frames_in(type(trainer), "train", "_inner_training_loop"):
        owner: Any = frame.f_locals.get("self")
        if owner is not trainer:
            continue
        kwargs = frame.f_locals.get("kwargs") or {}
        value = frame.f_locals.get("resume_from_checkpoint", kwargs.get("resume_from_checkpoint"))
        if value is True:
            from transformers.trainer_utils import get_last_checkpoint

            value = get_last_checkpoint(trainer.args.output_dir)
        if isinstance(value, (str, os.PathLike)):
            return Path(value)
    return None


def step_being_resumed(trainer: Any) -> int:
    """Return the step of the checkpoint that training resumes from; 0 without one."""
    checkpoint = checkpoint_being_resumed(trainer)
    if checkpoint is None:
        return 0
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def evaluation_under_way(trainer: Any) -> tuple[int, str]:
    """Return the row count of this rank's evaluation batch, 0 if unknown, and the prefix of its metrics."""
    for frame in _frames_in(type(trainer), "evaluation_loop"):
        rows, prefix = frame.f_locals.get("inputs"), frame.f_locals.get("metric_key_prefix", "eval")
        return (len(rows) if isinstance(rows, list) else 0), str(prefix)
    return 0, "eval"
