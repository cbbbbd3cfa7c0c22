"""Collect this library's warnings while a run is open, so that they are stored with it."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import rollout_plugins.engine.error_text  # noqa: F401 - its filter removes the texts of exceptions first

MAX_WARNINGS = 100
MAX_CHARS = 1000
#: Attribute of a log record that reports a finding, which is stored as such and not as a warning too.
IS_FINDING = "is_finding"
_PACKAGE = Path(__file__).parents[1]
#: Folders with code that reads runs, whose warnings do not concern the recorded run.
_READERS = {"cli", "reading", "view", "web"}

_open: WeakSet[RunWarnings] = WeakSet()
_before_a_run: deque[str] = deque(maxlen=MAX_WARNINGS)
"""Warnings that were logged while no run was open, such as those of loading plugins. The next run gets them."""


class RunWarnings:
    """The warnings of one run that are not stored yet. May be used from any thread."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=MAX_WARNINGS)

    def open(self) -> None:
        """Collect warnings from now on, and those since the last run."""
        while _before_a_run:
            with suppress(IndexError):  # another run that starts now
                self._texts.append(_before_a_run.popleft())
        _open.add(self)

    def close(self) -> None:
        _open.discard(self)

    def add(self, text: str) -> None:
        self._texts.append(text)

    def take(self) -> list[str]:
        """Return the warnings since the last call."""
        texts = []
        with suppress(IndexError):
            while True:
                texts.append(self._texts.popleft())
        return texts


def _collect(record: logging.LogRecord) -> bool:
    """Add a warning to the runs that are open, as a logging filter that lets everything pass."""
    if record.levelno >= logging.WARNING and not (_is_of_reader(record) or hasattr(record, IS_FINDING)):
        with suppress(Exception):  # a message whose arguments do not fit
            text = record.getMessage()[:MAX_CHARS]
            runs = list(_open)
            for run in runs:
                run.add(text)
            if not runs:
                _before_a_run.append(text)
    return True


def _is_of_reader(record: logging.LogRecord) -> bool:
    with suppress(ValueError):
        return Path(record.pathname).relative_to(_PACKAGE).parts[0] in _READERS
    return False


logging.getLogger("rollout_plugins").addFilter(_collect)
