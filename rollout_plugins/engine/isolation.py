"""Run a plugin's code so that it can only harm itself.

An exception, or a result of the wrong type, leaves the value unchanged, is logged once for each plugin and hook, and
counted. After three in a row, the plugin is disabled for the rest of the run.
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

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.error_text import error_with_place
from rollout_plugins.engine.plugin_checks import is_required
from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")

FAILURES_ALLOWED = 3
_MAY_DROP = ("on_tool_call", "on_rollout")
_HERE = Path(__file__).parent


class Abandoned(BaseException):
    """Raised in a hook thread that hung and returned after it had been replaced."""


@dataclass(frozen=True, eq=False)
class Running:
    """A call of a plugin's hook that has not returned yet."""

    plugin_name: str
    hook: str
    started: float


class PluginCalls:
    """Calls the plugins of one pluggy manager."""

    def __init__(self, manager: pluggy.PluginManager, counters: Counters, *, strict: bool = False) -> None:
        self.manager = manager
        self.counters = counters
        self.strict = strict
        self.removed: dict[str, str] = {}
        """Plugins that were disabled, and why."""
        self.lacking = ""
        """Name of a disabled plugin that is `required`, without which nothing may be stored."""
        self.dropped_by = ""
        """The plugin that raised the last `Drop`."""
        self._running: Running | None = None
        self._turn = threading.RLock()
        self._required: dict[str, bool] = {}
        self._failures: dict[str, int] = {}
        self._once = Once()

    def begin(self) -> None:
        """Enable all plugins again at the start of a run or an attempt."""
        self.removed.clear()
        self.lacking = ""
        self._failures.clear()
        self._once = Once()

    def name_of(self, plugin: Any) -> str:
        return self.manager.get_name(plugin) or type(plugin).__name__

    def implementations(self, hook: str) -> list[Any]:
        """Return the implementations of enabled plugins in calling order.

        `required` plugins get a rollout last, so that they see the changes of all others.
        """
        in_order = reversed(getattr(self.manager.hook, hook).get_hookimpls())
        alive = [impl for impl in in_order if impl.plugin_name not in self.removed]
        # Sorting is stable: among themselves, both kinds stay in calling order.
        return sorted(alive, key=self.is_of_required) if hook == "on_rollout" else alive

    def is_of_required(self, impl: Any) -> bool:
        """Return whether the plugin is `required`. Cached, since this is called for every rollout."""
        if impl.plugin_name not in self._required:
            self._required[impl.plugin_name] = is_required(impl.plugin)
        return self._required[impl.plugin_name]

    def plugins_with(self, hook: str) -> list[Any]:
        return [impl.plugin for impl in self.implementations(hook)]

    @property
    def has_required(self) -> bool:
        """Whether any plugin is `required`, so that nothing may be stored that it has not seen."""
        return bool(self.lacking) or any(is_required(plugin) for _, plugin in self.manager.list_name_plugin())

    # --- calling ------------------------------------------------------------------------------------------------

    def call(
        self, impl: Any, hook: str, arguments: Mapping[str, Any], read: Callable[[Any], Any] = lambda result: result
    ) -> tuple[bool, Any]:
        """Run one implementation; return whether it succeeded, and its result, which `read` checks and converts."""
        running = self._running = Running(impl.plugin_name, hook, time.monotonic())
        try:
            result = read(impl.function(**accepted_arguments(impl, arguments)))
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
        """Yield each implementation with its result, unless that is None or the call failed.

        The caller may change `arguments` between two calls.
        """
        for impl in self.implementations(hook):
            if impl.plugin_name not in self.removed and (self.is_of_required(impl) or not required_only):
                has_succeeded, result = self.call(impl, hook, arguments, read)
                if has_succeeded and result is not None:
                    yield impl, result
                if not has_succeeded and hook == "on_rollout" and self.is_of_required(impl):
                    self.dropped_by = impl.plugin_name
                    raise Drop("the plugin failed, and is required")

    # --- hanging ------------------------------------------------------------------------------------------------

    def give_up_after(self, seconds: float) -> Running | None:
        """Return the call that has run for longer than `seconds`, and abandon it; None if there is none."""
        with self._turn:
            running = self._running
            if running is None or time.monotonic() - running.started <= seconds:
                return None
            self._running = None
        return running

    def _leave(self, running: Running) -> None:
        """Record that a call returned. Raise `Abandoned` if another thread has taken over its work."""
        with self._turn:
            if self._running is not running:
                raise Abandoned
            self._running = None

    # --- failing ------------------------------------------------------------------------------------------------

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        """Count and log a failure; disable the plugin if it keeps failing."""
        name = self.name_of(plugin)
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        self.counters.error(name)
        if self.strict:
            raise error
        text = "plugin %r failed in %s and was skipped: %s"
        self._once.warn(text, name, hook, error_with_place(error), about=(name, hook), error=error)
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= FAILURES_ALLOWED:
            self.remove(name, f"failed {FAILURES_ALLOWED} times in a row, last in {hook}: {error_with_place(error)}")

    def remove(self, name: str, reason: str) -> None:
        """Disable a plugin for the rest of the run. It stays registered, and the next run enables it again."""
        plugin = self.manager.get_plugin(name)
        if plugin is not None and name not in self.removed:
            self.removed[name] = reason
            logger.warning("plugin %r is disabled for the rest of the run: it %s", name, reason)
            if is_required(plugin):
                self.lacking = name
                logger.warning("nothing is recorded without plugin %r; rollouts are counted as dropped by it", name)


def _of_plugin(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames of the plugin, without ours: none if the fault is in what the plugin returned."""
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == _HERE:
        frames = frames.tb_next
    return frames


def accepted_arguments(impl: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the available arguments that an implementation takes."""
    names = (*impl.argnames, *(name for name in impl.kwargnames if name in arguments))
    return {name: arguments[name] for name in names}
