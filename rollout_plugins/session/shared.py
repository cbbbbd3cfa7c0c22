"""The plugins and options that the sessions of one callback share, one session at a time."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.errors import SetupError
from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")


ON_FAULT = "on-fault"
"""The value of the option `tokens` that stores tokens only after a fault."""


class OpenSession(Protocol):
    """A session whose run may be open."""

    pipeline: Pipeline

    def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `RolloutPluginCallback` that a session needs."""

    dir: Path | None
    tokens: bool | str
    rendered: bool
    strict: bool
    sync: bool
    on_full: str
    end_seconds: float | None


class SharedPlugins:
    """The options and the plugins of one callback. The plugins see one run at a time."""

    def __init__(self, plugins: Plugins, options: Options) -> None:
        self.plugins = plugins
        self.options = options
        self.current: OpenSession | None = None
        """The session whose run the plugins see."""
        self.once = Once()
        # By process: a forked child cannot release a lock that a thread of its parent held.
        self._locks: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
        # Created now, so that wrong options raise in the constructor of the callback.
        self._spare: Pipeline | None = self._make_pipeline()

    @property
    def lock(self) -> threading.RLock:
        """Held while a run starts, ends or takes a batch: trainers on several threads may share a callback."""
        return self._locks[os.getpid()]

    def new_pipeline(self) -> Pipeline:
        pipeline, self._spare = self._spare, None
        return pipeline or self._make_pipeline()

    def _make_pipeline(self) -> Pipeline:
        options = self.options
        return Pipeline(
            self.plugins,
            strict=options.strict,
            sync=options.sync,
            on_full=options.on_full,
            end_seconds=options.end_seconds,
            defers_tokens=options.tokens == ON_FAULT,
        )

    def give_turn(self, session: OpenSession) -> None:
        """End the run of another session, so that plugins see one run at a time."""
        if self.current is not session:
            if self.current is not None:
                self.current.end()
            self.current = session

    def safely(self, what: str, action: Callable[[], object]) -> None:
        """Run `action` without letting errors of this library reach the trainer. Only setup errors are raised."""
        try:
            action()
        except (KeyboardInterrupt, SystemExit, SetupError):  # a signal handler may exit
            raise
        except BaseException as error:  # from a host of a third party
            self.once.warn(f"could not {what}: {error_text(error)}; training continues without it")
            logger.debug("could not %s", what, exc_info=error)
        self.raise_strict()

    def raise_strict(self) -> None:
        """With strict=True, raise the last error of a plugin since the previous call."""
        if self.current is not None:
            self.current.pipeline.raise_strict()
