"""Call hooks so that each plugin can only hurt itself.

The order is pluggy's own. An exception, or a result of the wrong type, leaves the value as it was, is logged once
for each plugin and hook, and counted; after three in a row the plugin is taken out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pluggy
from rollout_hookspecs import Drop, Rollout, Step, ToolCall, Trace

from rollout_plugins.counters import Counters

logger = logging.getLogger("rollout_plugins")

FAILURES_ALLOWED = 3


class Abandoned(BaseException):  # noqa: N818 - ends a thread that was given up on
    """Raised in a hook thread that hung and came back after it had been replaced."""


class Dispatcher:
    """Typed calls to every hook, isolating each plugin."""

    def __init__(self, manager: pluggy.PluginManager, counters: Counters, *, strict: bool = False) -> None:
        self.manager = manager
        self.counters = counters
        self.strict = strict
        self.removed: dict[str, str] = {}
        self.current: tuple[Any, str, float] | None = None
        self.thread: threading.Thread | None = None
        self._dropped_by = ""
        self._failures: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def name_of(self, plugin: Any) -> str:
        return self.manager.get_name(plugin) or type(plugin).__name__

    def implementations(self, hook: str) -> list[Any]:
        """Implementations in calling order."""
        return list(reversed(getattr(self.manager.hook, hook).get_hookimpls()))

    def plugins_with(self, hook: str) -> list[Any]:
        return [impl.plugin for impl in self.implementations(hook)]

    def _results(self, hook: str, arguments: Callable[[], dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
        """Each plugin with what it returned; failures are dealt with and left out."""
        for impl in self.implementations(hook):
            if self.manager.is_registered(impl.plugin):
                worked, result = self.call(impl, hook, arguments())
                if worked:
                    yield impl.plugin, result

    def call(self, impl: Any, hook: str, arguments: Mapping[str, Any]) -> tuple[bool, Any]:
        """Call one implementation with the arguments it asks for."""
        names = (*impl.argnames, *(name for name in impl.kwargnames if name in arguments))
        self.current = (impl.plugin, hook, time.monotonic())
        try:
            result = impl.function(**{name: arguments[name] for name in names})
        except Drop:
            self._passed(impl.plugin)
            self._dropped_by = self.name_of(impl.plugin)
            raise
        except (Exception, SystemExit) as error:
            self._check_abandoned()
            self.failed(impl.plugin, hook, error)
            return False, None
        finally:
            self._check_abandoned()
            self.current = None
        return True, result

    def _check_abandoned(self) -> None:
        if self.thread is not None and threading.current_thread() is not self.thread:
            raise Abandoned

    def _passed(self, plugin: Any) -> None:
        self._failures.pop(self.name_of(plugin), None)

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        """Count and tell of a failure; take the plugin out when it keeps failing."""
        name = self.name_of(plugin)
        self.counters.error(name)
        if self.strict:
            raise error
        if (name, hook) not in self._told:
            self._told.add((name, hook))
            logger.warning("plugin %r failed in %s and was skipped: %r", name, hook, error, exc_info=error)
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= FAILURES_ALLOWED:
            self.remove(plugin, f"failed {FAILURES_ALLOWED} times in a row, last in {hook}: {error!r}")

    def remove(self, plugin: Any, why: str) -> None:
        """Take a plugin out for the rest of the run."""
        name = self.name_of(plugin)
        if self.manager.is_registered(plugin):
            self.removed[name] = why
            self.manager.unregister(plugin)
            logger.warning("plugin %r is off for the rest of the run: it %s", name, why)

    def notify(self, hook: str, **arguments: Any) -> None:
        for plugin, _ in self._results(hook, lambda: arguments):
            self._passed(plugin)

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        """Fold `on_tool_call`, then `on_rollout`; None when a plugin dropped it."""
        return self._fold_rollout(self._fold_tool_calls(rollout, step), step)

    def _fold_tool_calls(self, rollout: Rollout, step: Step) -> Rollout:
        if not rollout.tool_calls or not self.implementations("on_tool_call"):
            return rollout
        calls = [self._fold_tool_call(call, rollout, step) for call in rollout.tool_calls]
        return replace(rollout, tool_calls=tuple(call for call in calls if call is not None))

    def _fold_tool_call(self, call: ToolCall, rollout: Rollout, step: Step) -> ToolCall | None:
        try:
            for plugin, result in self._results(
                "on_tool_call", lambda: {"tool_call": call, "rollout": rollout, "step": step}
            ):
                if self._accept(plugin, "on_tool_call", result, ToolCall) and result is not None:
                    call = result
        except Drop as drop:
            self._count_drop("tool_calls_dropped_by", drop)
            return None
        return call

    def _fold_rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        try:
            for plugin, result in self._results("on_rollout", lambda: {"rollout": rollout, "step": step}):
                if not self._accept(plugin, "on_rollout", result, Rollout) or result is None:
                    continue
                if result.id != rollout.id:
                    self.failed(plugin, "on_rollout", ValueError(f"changed the id to {result.id!r}"))
                else:
                    rollout = result
        except Drop as drop:
            self._count_drop("dropped_by", drop)
            return None
        return rollout

    def _accept(self, plugin: Any, hook: str, result: Any, kind: type) -> bool:
        """Whether a result is None or of the right type; a wrong one counts as a failure."""
        if result is None or isinstance(result, kind):
            self._passed(plugin)
            return True
        self.failed(plugin, hook, TypeError(f"returned {type(result).__name__}, expected {kind.__name__} or None"))
        return False

    def _count_drop(self, what: str, drop: Drop) -> None:
        self.counters.drop(f"{what}:{self._dropped_by}")
        logger.debug("dropped by %s: %s", self._dropped_by, drop.reason)

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        """Fold `select_rollouts`. Also who left each of the others out, and why."""
        chosen = list(rollouts)
        skipped: dict[str, str] = {}
        for plugin, result in self._results("select_rollouts", lambda: {"rollouts": tuple(chosen), "step": step}):
            if result is None:
                self._passed(plugin)
                continue
            known = {r.id for r in chosen}
            kept = list(result) if isinstance(result, Sequence) else [result]
            if not all(isinstance(r, Rollout) and r.id in known for r in kept):
                self.failed(plugin, "select_rollouts", TypeError("returned something else than some of its rollouts"))
                continue
            self._passed(plugin)
            kept = list({r.id: r for r in kept}.values())
            ids = {r.id for r in kept}
            name, reasons = self.name_of(plugin), getattr(plugin, "skip_reasons", None) or {}
            for rollout in chosen:
                if rollout.id not in ids:
                    skipped[rollout.id] = f"skipped by {name}: {reasons.get(rollout.id, 'not selected')}"
                    self.counters.drop(f"skipped_by:{name}")
            chosen = kept
        return chosen, skipped

    def trace(self, rollout: Rollout) -> Trace | None:
        """The first `Trace` that a plugin makes of it."""
        for plugin, result in self._results("format_trace", lambda: {"rollout": rollout}):
            if self._accept(plugin, "format_trace", result, Trace) and result is not None:
                return result  # type: ignore[no-any-return]
        return None

    def metrics(self, rollouts: Sequence[Rollout], step: Step) -> dict[str, float]:
        """Numbers of all plugins; what is no number is left out, as that plugin's failure."""
        numbers: dict[str, float] = {}
        for plugin, result in self._results("rollout_metrics", lambda: {"rollouts": tuple(rollouts), "step": step}):
            if not self._accept(plugin, "rollout_metrics", result, Mapping):
                continue
            for name, value in (result or {}).items():
                try:
                    numbers[str(name)] = float(value)
                except (TypeError, ValueError, OverflowError) as error:
                    self.failed(plugin, "rollout_metrics", error)
        return numbers
