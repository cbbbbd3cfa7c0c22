"""Threads of ours that do not get in the way of a fork."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakSet

#: How long a fork waits at most for the modules that our threads are importing.
IMPORT_SECONDS = 5.0

_ours: WeakSet[threading.Thread] = WeakSet()


def own_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """A thread of ours, to be started; it ends with the process."""
    thread = threading.Thread(target=target, args=args, name=f"rollouts-{name}", daemon=True)
    _ours.add(thread)
    return thread


def _wait_for_imports() -> None:
    """Plugins and the libraries of sinks import what they need, when they need it.

    A child that is forked meanwhile would wait for such a module for ever: the thread that locked it is not there.
    """
    until = time.monotonic() + IMPORT_SECONDS
    while _is_importing() and time.monotonic() < until:
        time.sleep(0.001)


def _is_importing() -> bool:
    here = threading.current_thread()
    ours = {thread.ident for thread in threading.enumerate() if thread in _ours and thread is not here}
    return any(_has_import(frame) for ident, frame in sys._current_frames().items() if ident in ours)  # noqa: SLF001


def _has_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports)
