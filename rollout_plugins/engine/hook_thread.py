"""Run plugin code on a thread that can be abandoned: a plugin that hangs is disabled, and the work resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollout_hookspecs import Run

from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine import env_vars as environment
from rollout_plugins.engine.deadline import Deadline
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.worker import ReplaceableThread

HANG_SECONDS = 60.0


class HookThread:
    """The thread that runs the hooks of one pipeline. It exists only while some plugin could hang."""

    def __init__(self, dispatcher: Dispatcher, deadline: Deadline, *, inline: bool) -> None:
        """`inline`: run hooks on the calling thread, where nothing can be abandoned."""
        self.time_limit: float | None = None
        """Seconds that the end of a run leaves for one call; None while the run lasts."""
        self._dispatcher = dispatcher
        self._deadline = deadline
        self._inline = inline
        self._hang_seconds = environment.seconds("HANG_SECONDS", HANG_SECONDS)
        self._thread: ReplaceableThread | None = None

    def run(self, function: Callable[[], None]) -> None:
        """Call the function, again after each plugin that had to be disabled because it hung."""
        if self._inline or not self._has_plugins:
            function()
            return
        self._thread = self._thread or ReplaceableThread("hooks")
        while not self._thread.run(function, self._disable_hung_plugin, min(0.5, self._hang_seconds / 4)):
            pass

    def notify(self, hook: str, run: Run, implementations: list[Any], **arguments: Any) -> None:
        """Call these implementations of a hook that takes the run and returns nothing."""

        def call_all() -> None:
            while implementations:
                self._dispatcher.call(implementations.pop(0), hook, {"run": run, **arguments})

        self.run(call_all)

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    @property
    def _has_plugins(self) -> bool:
        """Whether any plugin runs code that could hang. `register_hosts` runs on the training thread."""
        manager = self._dispatcher.manager
        plugins = (plugin for _, plugin in manager.list_name_plugin() if not isinstance(plugin, DefaultTrace))
        hooks = (caller.name for plugin in plugins for caller in manager.get_hookcallers(plugin) or ())
        return any(name != "register_hosts" for name in hooks)

    def _disable_hung_plugin(self) -> bool:
        """Disable the plugin whose hook has run for too long; return whether there was one."""
        seconds = self._hang_seconds
        if self.time_limit is not None:
            seconds = self.time_limit + 1
        elif self._deadline.has_begun:  # otherwise nothing that waits behind the plugin would be stored
            seconds = min(seconds, max(self._deadline.seconds / 3, 1.0))
        call = self._dispatcher.give_up_after(seconds)
        if call is None:
            return False
        reason = f"did not return from {call.hook} within {seconds:g} s"
        self._dispatcher.remove(call.plugin_name, f"{reason} (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)")
        return True
