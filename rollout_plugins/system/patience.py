"""Threads that may wait for a slow reader, because no training waits for them."""

from __future__ import annotations

import threading
from weakref import WeakSet

_patient: WeakSet[threading.Thread] = WeakSet()


def be_patient() -> None:
    """Say that the current thread sends from the store."""
    _patient.add(threading.current_thread())


def is_patient() -> bool:
    return threading.current_thread() in _patient
