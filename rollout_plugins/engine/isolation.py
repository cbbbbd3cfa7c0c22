"""Running a plugin's code so that it can only hurt itself.

An exception, or a result of the wrong kind, leaves the value as it was, is logged once for each plugin and hook, and
counted; after three in a row the plugin is taken out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pluggy
from rollout_hookspecs import Drop

from rollout_plugins.content.once import Once
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.telling import is_required, shown

logger = logging.getLogger("rollout_plugins")

FAILURES_ALLOWED = 3
_MAY_DROP = ("on_tool_call", "on_rollout")
_HERE = Path(__file__).parent


class Abandoned(BaseException):
    """Raised in a hook thread that hung and came back after it had been replaced."""


@dataclass(frozen=True, eq=False)
class Running:
    """A plugin's code that is running now."""

    plugin_name: str
    hook: str
    started: float


class PluginCalls:
    """Calls to the plugins of one manager."""

    def __init__(self, manager: pluggy.PluginManager, counters: Counters, *, strict: bool = False) -> None:
        self.manager = manager
        self.counters = counters
        self.strict = strict
        self.removed: dict[str, str] = {}
        """Plugins that were taken out, and why."""
        self.lacking = ""
        """A `required` plugin among them."""
        self.dropped_by = ""
        """The plugin that raised the last `Drop`."""
        self._now: Running | None = None
        self._turn = threading.RLock()
        self._required: dict[str, bool] = {}
        self._failures: dict[str, int] = {}
        self._once = Once()

    def begin(self) -> None:
        """Before a run or an attempt: plugins that were taken out of the one before get another chance."""
        self.removed.clear()
        self.lacking = ""
        self._failures.clear()
        self._once = Once()

    def name_of(self, plugin: Any) -> str:
        return self.manager.get_name(plugin) or type(plugin).__name__

    def implementations(self, hook: str) -> list[Any]:
        """Implementations in calling order, without those of plugins that were taken out.

        Of a rollout, `required` plugins see what all others made.
        """
        found = reversed(getattr(self.manager.hook, hook).get_hookimpls())
        alive = [impl for impl in found if impl.plugin_name not in self.removed]
        # Sorting is stable: among themselves, both kinds stay in calling order.
        return sorted(alive, key=self.is_of_required) if hook == "on_rollout" else alive

    def is_of_required(self, impl: Any) -> bool:
        """Asked for every rollout, so the answer is kept."""
        known = self._required.get(impl.plugin_name)
        if known is None:
            known = self._required[impl.plugin_name] = is_required(impl.plugin)
        return known

    def plugins_with(self, hook: str) -> list[Any]:
        return [impl.plugin for impl in self.implementations(hook)]

    @property
    def has_required(self) -> bool:
        """Whether a rollout that plugins have not seen must not be stored."""
        return bool(self.lacking) or any(is_required(plugin) for _, plugin in self.manager.list_name_plugin())

    # --- calling ------------------------------------------------------------------------------------------------

    def call(
        self, impl: Any, hook: str, arguments: Mapping[str, Any], read: Callable[[Any], Any] = lambda result: result
    ) -> tuple[bool, Any]:
        """Run one implementation; whether it worked, and its result. `read` checks and converts what it returned."""
        running = self._now = Running(impl.plugin_name, hook, time.monotonic())
        try:
            result = read(impl.function(**asked_for(impl, arguments)))
        except BaseException as error:  # plugins, and what they depend on, raise more than Exception
            self._leave(running)
            if not isinstance(error, Drop) or hook not in _MAY_DROP:
                error.__traceback__ = _of_plugin(error.__traceback__)
                self.failed(impl.plugin, hook, error)
                return False, None
            self._failures.pop(impl.plugin_name, None)
            self.dropped_by = impl.plugin_name
            raise
        self._leave(running)
        self._failures.pop(impl.plugin_name, None)  # only failures in a row count
        return True, result

    def results(
        self, hook: str, arguments: Mapping[str, Any], read: Callable[[Any], Any], *, required_only: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Each implementation with what it returned, unless that was None or it failed.

        The caller may change `arguments` between two of them.
        """
        for impl in self.implementations(hook):
            if impl.plugin_name not in self.removed and (self.is_of_required(impl) or not required_only):
                worked, result = self.call(impl, hook, arguments, read)
                if worked and result is not None:
                    yield impl, result
                if not worked and hook == "on_rollout" and self.is_of_required(impl):
                    self.dropped_by = impl.plugin_name
                    raise Drop("the plugin failed, and is required")

    # --- hanging ------------------------------------------------------------------------------------------------

    def give_up_after(self, seconds: float) -> Running | None:
        """The call that has been running for longer than that. It is not waited for any more, and can't go on."""
        with self._turn:
            running = self._now
            if running is None or time.monotonic() - running.started <= seconds:
                return None
            self._now = None
        return running

    def _leave(self, running: Running) -> None:
        """Back from a plugin's code. A thread that was given up on ends here: another one does its work."""
        with self._turn:
            if self._now is not running:
                raise Abandoned
            self._now = None

    # --- failing ------------------------------------------------------------------------------------------------

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        """Count and tell of a failure; take the plugin out when it keeps failing."""
        name = self.name_of(plugin)
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        self.counters.error(name)
        if self.strict:
            raise error
        failed = "plugin %r failed in %s and was skipped: %s"
        self._once.warn(failed, name, hook, shown(error), about=(name, hook), error=error)
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= FAILURES_ALLOWED:
            self.remove(name, f"failed {FAILURES_ALLOWED} times in a row, last in {hook}: {shown(error)}")

    def remove(self, name: str, why: str) -> None:
        """Take a plugin out for the rest of the run. It stays registered: the next run begins with all of them."""
        plugin = self.manager.get_plugin(name)
        if plugin is not None and name not in self.removed:
            self.removed[name] = why
            logger.warning("plugin %r is off for the rest of the run: it %s", name, why)
            if is_required(plugin):
                self.lacking = name
                logger.warning("nothing is recorded without plugin %r; rollouts are counted as dropped by it", name)


def _of_plugin(frames: TracebackType | None) -> TracebackType | None:
    """What the plugin's author can do something about: nothing, when we object to what the plugin returned."""
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == _HERE:
        frames = frames.tb_next
    return frames


def asked_for(impl: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that an implementation takes, of those there are."""
    names = (*impl.argnames, *(name for name in impl.kwargnames if name in arguments))
    return {name: arguments[name] for name in names}
