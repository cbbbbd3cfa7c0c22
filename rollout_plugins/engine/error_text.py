"""Convert errors to text; without their messages, which may contain secrets, while a `required` plugin runs."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path

from rollout_plugins.system.confidentiality import is_confidential

#: Folders with the code that calls plugins.
_CALLERS = {Path(__file__).parents[1] / folder for folder in ("engine", "reading", "cli")}


def error_text(error: BaseException, *, hide_text: bool = False) -> str:
    """Return the exception's repr; only its type and place if its message must be hidden."""
    if hide_text or is_confidential():
        cause = error.__cause__
        return _kind_and_place(error) + (f" from {_kind_and_place(cause)}" if cause else "")
    try:
        return repr(error)
    except Exception:  # a broken __repr__
        return type(error).__name__


def error_with_place(error: BaseException) -> str:
    """Return the exception's text with the line of the plugin that raised it, or that called what raised it."""
    all_frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in all_frames if Path(frame.filename).parent not in _CALLERS]
    if is_confidential() or not frames:
        return error_text(error)
    own = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{error_text(error)} at {Path(own.filename).name}:{own.lineno}"


def _kind_and_place(error: BaseException) -> str:
    errno = error.errno if isinstance(error, OSError) else None
    why = f" ({os.strerror(errno)})" if type(errno) is int else ""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{why}{place}"


def _hide_texts(record: logging.LogRecord) -> bool:
    """Remove the messages of exceptions from every log record of this library, as a logging filter."""
    if is_confidential():
        record.exc_info = record.exc_text = None
        if isinstance(record.args, tuple):
            record.args = tuple(error_text(arg) if isinstance(arg, BaseException) else arg for arg in record.args)
    return True


logging.getLogger("rollout_plugins").addFilter(_hide_texts)
