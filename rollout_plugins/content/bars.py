"""The trainer's progress bars, and text of ours on the screen that they are on."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress


def cleared() -> str:
    """What takes tqdm's bars off the screen, if there are any; they draw themselves again."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return "\r\x1b[J" if len(getattr(tqdm, "_instances", ())) else ""


class AboveBars(logging.Handler):
    """Prints warnings as Python does where nobody set up logging, and not into the line of a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_others(logging.getLogger(record.name)):
            with suppress(Exception):  # nobody has to have a terminal
                sys.stderr.write(f"{cleared() if sys.stderr.isatty() else ''}{self.format(record)}\n")
                sys.stderr.flush()

    def _has_others(self, logger: logging.Logger | None) -> bool:
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False
