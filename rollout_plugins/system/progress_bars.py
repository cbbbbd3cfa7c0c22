"""Print warnings where a progress bar may be, each on a line of its own."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

NAME = "rollout-plugins"


def clear_bars_sequence() -> str:
    """Return the escape sequence that clears tqdm's bars from the screen, if there are any; tqdm redraws them."""
    return "\r\x1b[J" if _has_bars() else ""


def _has_bars() -> bool:
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return len(getattr(tqdm, "_instances", ())) > 0


class AboveBars(logging.Handler):
    """Prints warnings if nobody configured logging, with this library's name and above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_others(logging.getLogger(record.name)):
            with suppress(Exception):  # there may be no terminal
                # A bar in a file ends without a line break.
                before = clear_bars_sequence() if sys.stderr.isatty() else "\n" * _has_bars()
                sys.stderr.write(f"{before}{NAME}: {self.format(record)}\n")
                sys.stderr.flush()

    def _has_others(self, logger: logging.Logger | None) -> bool:
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False
