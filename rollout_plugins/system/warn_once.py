"""Log a warning once, however often its cause occurs."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("rollout_plugins")


class Once:
    """Remembers which warnings it has logged."""

    def __init__(self) -> None:
        self._topics: set[Hashable] = set()

    def warn(
        self, text: str, *values: object, about: Hashable | None = None, error: BaseException | None = None
    ) -> None:
        """Log a warning, unless one of this text, or `about` the same thing, was logged before."""
        topic = text if about is None else about
        if topic not in self._topics:
            self._topics.add(topic)
            logger.warning(text, *values, exc_info=error if error is not None and error.__traceback__ else None)
