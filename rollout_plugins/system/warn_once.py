"""Warnings that people read once, however often their cause comes up."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("rollout_plugins")


class Once:
    """Says each thing once."""

    def __init__(self) -> None:
        self._said: set[Hashable] = set()

    def warn(
        self, text: str, *values: object, about: Hashable | None = None, error: BaseException | None = None
    ) -> None:
        """Log a warning, unless one of this text, or `about` the same thing, was logged before."""
        topic = text if about is None else about
        if topic not in self._said:
            self._said.add(topic)
            logger.warning(text, *values, exc_info=error if error is not None and error.__traceback__ else None)
