"""Daemon threads of this library, told apart from the host's by their names."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PREFIX = "rollouts-"


def own_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Return a daemon thread, not started yet."""
    return threading.Thread(target=target, args=args, name=f"{PREFIX}{name}", daemon=True)


def run_off_own_threads(function: Callable[[], object]) -> bool:
    """Run the function on a new thread if this is one of ours, and return whether it is.

    A finalizer runs on whichever thread the garbage collector happens to use. On a thread of ours, the end of a run
    would wait for itself.
    """
    if not threading.current_thread().name.startswith(PREFIX):
        return False
    threading.Thread(target=function, name="closing-rollouts").start()
    return True
