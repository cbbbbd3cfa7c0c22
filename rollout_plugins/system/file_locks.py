"""Lock files between processes. The operating system releases a lock when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

from rollout_plugins.system.warn_once import Once

# Not `import fcntl`, whose functions mypy would miss on Windows.
fcntl: Any
try:
    fcntl = import_module("fcntl")
except ImportError:  # Windows
    fcntl = None

_once = Once()


def lock(file: IO[Any], *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file; return False if another process holds the lock and `wait` is False.

    Where the system has no locks, return True.
    """
    if fcntl is None:
        return True
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn_unlockable(file, error)
    return True


def unlock(file: IO[Any]) -> None:
    """Release the lock and close the file.

    Closing alone would not release it: a child that was forked meanwhile would still hold it.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        _warn_unlockable(file, error)
    finally:
        file.close()


@contextmanager
def hold_lock(file: IO[Any]) -> Iterator[None]:
    """Wait for the file's lock, and close the file at the end."""
    try:
        lock(file)
        yield
    finally:
        unlock(file)


def _warn_unlockable(file: IO[Any], error: OSError) -> None:
    _once.warn("%s cannot be locked (%s): let one process at a time write there", file.name, error)
