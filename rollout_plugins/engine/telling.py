"""How errors are shown. Where a `required` plugin runs, without their text: it may hold what must not leave."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from pathlib import Path
from typing import Any

from rollout_plugins.content.discretion import is_discreet


def is_required(plugin: Any) -> bool:
    """Whether a plugin says that nothing may be stored which it has not seen (`required = True`)."""
    return inspect.getattr_static(plugin, "required", False) is True


def shown(error: BaseException, *, discreetly: bool = False) -> str:
    """An exception in one piece, even when it objects to being shown; only its type and place where that is safer."""
    if discreetly or is_discreet():
        cause = error.__cause__
        return _kind_and_place(error) + (f" from {_kind_and_place(cause)}" if cause else "")
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def _kind_and_place(error: BaseException) -> str:
    errno = error.errno if isinstance(error, OSError) else None
    why = f" ({os.strerror(errno)})" if type(errno) is int else ""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{why}{place}"


def _without_texts(record: logging.LogRecord) -> bool:
    """A filter: exceptions in any log line of ours are shown like all others."""
    if is_discreet():
        record.exc_info = record.exc_text = None
        if isinstance(record.args, tuple):
            record.args = tuple(shown(arg) if isinstance(arg, BaseException) else arg for arg in record.args)
    return True


logging.getLogger("rollout_plugins").addFilter(_without_texts)
