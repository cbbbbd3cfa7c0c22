"""What the checks share about the generation that they look at, so that forty of them compute it once."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pyarrow as pa

_current = threading.local()


class Shared:
    """Facts and columns of one generation. They live as long as its table."""

    def __init__(self) -> None:
        self.facts: dict[Any, bool] = {}
        self.columns: Any = None


def share(table: pa.Table) -> Shared:
    """Return what is shared about a table; the same object as long as this thread looks at the same table."""
    latest = getattr(_current, "latest", None)
    if latest is not None and latest[0]() is table and (shared := latest[1]()) is not None:
        return shared  # type: ignore[no-any-return]
    shared = Shared()
    # The finalizer holds it, so that a large generation is not kept in memory until the next one comes.
    weakref.finalize(table, _forget, shared).atexit = False
    _current.latest = (weakref.ref(table), weakref.ref(shared))
    return shared


def shared_now() -> Shared | None:
    """Return what is shared about the table that this thread looked at last, if that still exists."""
    latest = getattr(_current, "latest", None)
    return latest[1]() if latest is not None else None


def _forget(shared: Shared) -> None:
    shared.columns = None
