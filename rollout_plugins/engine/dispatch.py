"""Call every hook, and pass the result of each plugin to the next one in pluggy's order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from rollout_hookspecs import Drop, Host, Rollout, Step, ToolCall, Trace

from rollout_plugins.content.number_fields import replace_non_numbers
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine import hook_results
from rollout_plugins.engine.isolation import PluginCalls
from rollout_plugins.engine.outbound_filter import filter_trace

logger = logging.getLogger("rollout_plugins")


class Dispatcher(PluginCalls):
    """Calls hooks with typed arguments and results."""

    def indices_to_process(self, rollouts: RolloutColumns) -> Sequence[int]:
        """Return the indices of the rollouts that must pass through plugins.

        These are all rollouts, unless every plugin skips those with only text.
        """
        implementations = [*self.implementations("on_rollout"), *self.implementations("on_tool_call")]
        if self.lacking or any(not getattr(impl.plugin, "skips_text", False) for impl in implementations):
            return range(len(rollouts))
        if not implementations:
            return ()
        return rollouts.beyond_text()

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        """Run `on_tool_call`, then `on_rollout`; return None if the rollout is dropped or a required plugin is
        disabled.
        """
        if self.lacking:
            self.counters.drop(f"dropped_by:{self.lacking}")
            return None
        arguments = {"rollout": self._fold_tool_calls(rollout, step), "step": step}
        result: Rollout | None = self._fold(
            "on_rollout", arguments, hook_results.replacement(rollout.id), "dropped_by"
        )
        return result if result is rollout or result is None else self._with_numbers(result)

    def _with_numbers(self, rollout: Rollout) -> Rollout:
        """Remove and count values other than numbers that plugins put into number fields, as the store would."""
        fitting = replace_non_numbers(rollout)
        self.counters.drop("unserialisable_field", len(fitting.marks) - len(rollout.marks))
        return fitting

    def _fold_tool_calls(self, rollout: Rollout, step: Step) -> Rollout:
        if not rollout.tool_calls or not self.implementations("on_tool_call"):
            return rollout
        context = {"rollout": rollout, "step": step}
        read = hook_results.one(ToolCall)
        calls = [
            self._fold("on_tool_call", {"tool_call": call, **context}, read, "tool_calls_dropped_by")
            for call in rollout.tool_calls
        ]
        return replace(rollout, tool_calls=tuple(call for call in calls if call is not None))

    def _fold(self, hook: str, arguments: dict[str, Any], read: Callable[[Any], Any], counter: str) -> Any:
        """Replace the first argument by each plugin's result in turn; return None if a plugin drops it."""
        first = next(iter(arguments))
        try:
            for _, result in self.results(hook, arguments, read):
                arguments[first] = result
        except Drop as drop:
            self.counters.drop(f"{counter}:{self.dropped_by}")
            logger.debug("dropped by %s: %s", self.dropped_by, drop)
            return None
        return arguments[first]

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        """Run `select_rollouts`. Return the selected rollouts, and by id why each other rollout was not selected."""
        selected = list(rollouts)
        skipped: dict[str, tuple[str, str]] = {}
        arguments: dict[str, Any] = {"rollouts": tuple(selected), "step": step}

        known_rollouts = set(map(id, rollouts))

        def read(result: Any) -> list[Rollout] | None:
            selected = hook_results.selection(result, arguments["rollouts"])
            return selected and [r if id(r) in known_rollouts else replace_non_numbers(r) for r in selected]

        for impl, remaining in self.results("select_rollouts", arguments, read):
            ids = {r.id for r in remaining}
            gone = [r.id for r in selected if r.id not in ids]
            reasons = hook_results.skip_reasons(impl.plugin) if gone else {}
            skipped.update((ident, (impl.plugin_name, reasons.get(ident, "not selected"))) for ident in gone)
            arguments["rollouts"], selected = tuple(remaining), remaining
        for name, _ in skipped.values():
            self.counters.skip(name)
        return selected, {ident: f"skipped by {name}: {why}" for ident, (name, why) in skipped.items()}

    def metrics(self, rollouts: Sequence[Rollout], step: Step) -> dict[str, float]:
        """Return the metrics of all plugins. A value that is not a number counts as a failure of its plugin."""
        numbers: dict[str, float] = {}
        is_verbose = self.is_verbose
        argument_names = {
            name for impl in self.implementations("rollout_metrics") for name in (*impl.argnames, *impl.kwargnames)
        }
        arguments: dict[str, Any] = {"columns": RolloutColumns.from_rollouts(rollouts), "step": step}
        if "rollouts" in argument_names:  # creating records costs more than most metrics
            arguments["rollouts"] = tuple(rollouts)
        for impl, (values, invalid_names) in self.results("rollout_metrics", arguments, hook_results.numbers):
            headlines = None if is_verbose else hook_results.headlines(impl.plugin)
            numbers |= values if headlines is None else _select_names(values, headlines)
            if invalid_names:
                self.failed(impl.plugin, "rollout_metrics", TypeError(f"not numbers: {', '.join(invalid_names)}"))
        return numbers

    @property
    def is_verbose(self) -> bool:
        """Whether a plugin wants every metric in the log."""
        return any(getattr(plugin, "verbose", False) is True for plugin in self.plugins_with("rollout_metrics"))

    @property
    def headlines(self) -> set[str]:
        """Metrics that are logged only if they are not 0."""
        if self.is_verbose:
            return set()
        return set[str]().union(
            *(hook_results.headlines(plugin) or () for plugin in self.plugins_with("rollout_metrics"))
        )

    def trace(self, rollout: Rollout) -> Trace | None:
        """Return the first `Trace` that a plugin returns, filtered by the required plugins."""
        for impl, trace in self.results("format_trace", {"rollout": rollout}, hook_results.one(Trace)):
            return trace if type(impl.plugin) is DefaultTrace else filter_trace(self, trace, impl.plugin_name)
        return None

    def hosts(self) -> list[Host]:
        """Return the hosts of all plugins."""
        return [host for _, hosts in self.results("register_hosts", {}, hook_results.hosts) for host in hosts]


def _select_names(numbers: dict[str, float], names: Collection[str]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if name in names}
