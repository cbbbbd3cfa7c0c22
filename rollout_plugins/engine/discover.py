"""Decide which plugins run and in which order, and check all of them before training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pluggy
from rollout_hookspecs import PROJECT, hooks

from rollout_plugins.engine import env_vars as environment
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.installed import DEFAULT_TRACE, Installed, discover, is_made_from, name_of
from rollout_plugins.engine.plugin_checks import (
    NeedsOptionsError,
    check,
    check_options,
    is_property,
    is_required,
    load,
    plugin_class,
)
from rollout_plugins.errors import SetupError, suggest

logger = logging.getLogger("rollout_plugins")

DEFAULTS = ("images", "metrics", "checks")
TRAINERS = "trainers"
CAP = "cap"
ON_DEMAND = (TRAINERS, CAP)
"""Built-in plugins that the callback adds when needed: hosts for the trainer, and the limit for dashboards."""


class _Manager(pluggy.PluginManager):
    """A plugin manager that tolerates plugins with unusual behaviour."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the options of a hook. For other attributes return None, without running or raising anything."""
        if not is_property(plugin, name):  # pluggy before 1.7 runs every property
            with suppress(Exception):
                return super().parse_hookimpl_opts(plugin, name)
        return None

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        """Unregister a plugin, even one whose truth value is False, such as an empty container."""
        removed = super().unregister(plugin, name)
        self._name2plugin.pop(name or "", None)
        return removed


class Plugins:
    """The plugins of one callback, loaded and registered in calling order."""

    def __init__(
        self,
        plugins: Sequence[Any] | None = (),
        *,
        disable: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        autoload: bool = True,
    ) -> None:
        self.manager = _Manager(PROJECT)
        self.manager.add_hookspecs(hooks)
        self.installed = discover()
        self._config = _checked_config(config or {})
        self.chosen: list[Installed] = []
        """Plugins that the user named or passed, in this order. A fault in one of them raises."""
        self._disabled = {disable} if isinstance(disable, str) else set(disable)
        self._switched_off = environment.names("DISABLE")
        self._order: list[Installed] = []
        chosen = self._choose(() if plugins is None else plugins)
        self._check_names(self._disabled, "disable")
        self._check_names(self._config, "config")
        self._check_configured(chosen)
        self._warn_of_unknown()
        discovered = self._discovered(chosen) if autoload and environment.flag("AUTOLOAD", default=True) else []
        self._register_all([*chosen, *discovered])

    def _check_names(self, names: Iterable[str], what: str) -> None:
        for fault in self._unknown(names, what):
            raise SetupError(fault)

    def _check_configured(self, chosen: Sequence[Installed]) -> None:
        """Raise if options are set for a built-in plugin that cannot run, or if an option's name is wrong."""
        may_run = {*DEFAULTS, *ON_DEMAND, *(candidate.name for candidate in chosen)}
        for name, options in self._config.items():
            candidate = self.installed.get(name)
            if (
                candidate is None
                or not candidate.is_built_in
                or name in may_run - set(ON_DEMAND)
                or self._is_blocked(candidate)
            ):
                continue
            kind = plugin_class(candidate.entry)
            if name not in may_run and not getattr(kind, "report_to", ""):
                raise SetupError(f"config has options for {name!r}, which runs only if asked for: plugins=[{name!r}]")
            if kind is not None:
                check_options(kind, name, options)

    def check_all_options_are_used(self) -> None:
        """Raise if options are set for a plugin that does not run, once every plugin that may run has been added."""
        for name, options in self._config.items():
            candidate = self.installed.get(name)
            if options and candidate is not None and candidate.status == "available":
                raise SetupError(
                    f"config has options for {name!r}, which does not run here: add it with plugins=[{name!r}], "
                    "or remove its options"
                )

    def _warn_of_unknown(self) -> None:
        """Warn of unknown names in the environment: one list may serve machines with different plugins."""
        for fault in self._unknown(self._switched_off, "ROLLOUT_PLUGINS_DISABLE"):
            logger.warning("%s", fault)

    def _unknown(self, names: Iterable[str], what: str) -> Iterator[str]:
        known_names = {f.name for f in self.installed.values()} | {f.distribution for f in self.installed.values()}
        for name in sorted(map(str, names)):
            if name not in known_names:
                yield f"{what} names {name!r}, which is not a plugin; {suggest(name, known_names - {''})}"

    def _is_blocked(self, candidate: Installed) -> bool:
        """Return whether the plugin is disabled, and record what disabled it."""
        names = {candidate.name, candidate.distribution}
        by = "ROLLOUT_PLUGINS_DISABLE" if names & self._switched_off else "disable="
        if names & (self._switched_off | self._disabled):
            candidate.status, candidate.reason = "disabled", f"by {by}"
        return candidate.status == "disabled"

    # --- plugins that were named or given ---------------------------------------------------------------------------

    def _choose(self, plugins: Sequence[Any]) -> list[Installed]:
        """Load the plugins of the list, in its order."""
        if isinstance(plugins, str) or not isinstance(plugins, Sequence):
            raise SetupError(f"plugins takes a list of names and instances, found {plugins!r}")
        chosen: list[Installed] = []
        for item in plugins:
            candidate = self._named(item) if isinstance(item, str) else self._object(item, chosen)
            if any(candidate.name == other.name for other in chosen):
                raise SetupError(f"plugins has two plugins named {candidate.name!r}; keep one of them")
            if not self._is_blocked(candidate):
                candidate.plugin = self._load(candidate)
                chosen.append(candidate)
        self.chosen = chosen
        return chosen

    def _named(self, name: str) -> Installed:
        if name not in self.installed:
            raise SetupError(f"no plugin named {name!r} is installed; {suggest(name, self.installed)}")
        if self.installed[name].status == "failed":
            raise SetupError(self.installed[name].reason)
        return self.installed[name]

    def _object(self, item: Any, chosen: Sequence[Installed]) -> Installed:
        """Return a plugin that was passed as an object or a class. Plugins with the same name are numbered."""
        base = _name_of_given(item, self.installed)
        installed = self.installed.get(base)
        taken = {other.name for other in chosen}
        if base == DEFAULT_TRACE or (installed is not None and not is_made_from(item, installed)):
            taken.add(base)  # the names are the same by coincidence
        same = sum(name == base or name.startswith(f"{base}-") for name in taken)
        candidate = Installed(base if not same else f"{base}-{same + 1}", plugin=item)
        if not isinstance(item, type) and candidate.name in self._config:
            raise SetupError(
                f"config has options for plugin {base!r}, which was given as an instance; give them to the instance"
            )
        if installed is not None and not same:
            candidate.entry, candidate.distribution = installed.entry, installed.distribution
        self.installed[candidate.name] = candidate
        return candidate

    # --- plugins that run without being named -----------------------------------------------------------------------

    def _discovered(self, chosen: Sequence[Installed]) -> list[Installed]:
        """Load installed third-party plugins, then the built-in defaults."""
        chosen_names = {candidate.name for candidate in chosen}
        candidates = [
            candidate
            for candidate in sorted(self.installed.values(), key=lambda candidate: candidate.name)
            if candidate.name not in chosen_names and candidate.entry and candidate.status == "available"
            if not self._is_blocked(candidate)
        ]
        others = [candidate for candidate in candidates if not candidate.is_built_in]
        defaults = [candidate for candidate in candidates if candidate.is_built_in and candidate.name in DEFAULTS]
        loaded = [candidate for candidate in [*others, *defaults] if self._load_or_skip(candidate)]
        return [candidate for candidate in loaded if not self._waits_for_reporter(candidate)]

    def _waits_for_reporter(self, candidate: Installed) -> bool:
        """Return whether the plugin is a sink that runs only if the trainer's `report_to` has a certain name."""
        reporter = as_sink(candidate.plugin).report_to
        if reporter:
            candidate.reason = f"runs if report_to has {reporter!r}, or when asked for by name"
        return bool(reporter)

    def add_reporters(self, report_to: Iterable[str]) -> None:
        """Add the sinks for the trainer's own dashboards, and `cap` with them."""
        for name in report_to:
            for candidate in list(self.installed.values()):
                # Built-in sinks are not loaded before they are needed: their entry points have the names.
                may_be = (
                    candidate.name == name if candidate.plugin is None else as_sink(candidate.plugin).report_to == name
                )
                if may_be and self._can_add(candidate) and as_sink(candidate.plugin).report_to == name:
                    self._add(candidate)
        self.add_cap()

    def add_cap(self) -> None:
        """Limit what is sent to a dashboard, unless `cap` is configured or disabled."""
        if any(as_sink(plugin).report_to for _, plugin in self.manager.list_name_plugin()):
            self.add(CAP)

    def _load_or_skip(self, candidate: Installed) -> bool:
        """Load a plugin that the user did not name, or skip it with a warning so that training can start."""
        fault = self._fault_of(candidate)
        if fault is not None:
            self._skip(candidate, fault)
        return fault is None

    def _skip(self, candidate: Installed, fault: Exception) -> None:
        if candidate.name in self._config or candidate in self.chosen:
            raise fault  # a user who names or configures a plugin relies on it
        candidate.status, candidate.reason = "failed", f"{type(fault).__name__}: {fault}"
        hide_text = any(is_required(other.plugin) for other in self.installed.values())
        text = error_text(fault, hide_text=hide_text)
        logger.warning("plugin %r (%s) was skipped: %s", candidate.name, candidate.distribution, text)

    def _fault_of(self, candidate: Installed) -> Exception | None:
        """Load and check a plugin; return the error, or None."""
        try:
            candidate.plugin = self._load(candidate)
            check(candidate.name, candidate.plugin)
        except Exception as error:  # `load` and `check` convert everything except Ctrl-C to one
            return error
        return None

    def _load(self, candidate: Installed) -> Any:
        return load(candidate.name, candidate.plugin, candidate.entry, self._config.get(candidate.name, {}))

    def add(self, name: str) -> bool:
        """Load one more plugin by name, to run after all others; return False if it already runs or cannot run."""
        candidate = self.installed.get(name)
        if candidate is None or not self._can_add(candidate):
            return False
        self._add(candidate)
        return True

    def _can_add(self, candidate: Installed) -> bool:
        if candidate.status != "available" or self._is_blocked(candidate):
            return False
        return candidate.plugin is not None or self._load_or_skip(candidate)

    def _add(self, candidate: Installed) -> None:
        alive = [other for other in self._order if self.manager.has_plugin(other.name)]
        for other in alive:
            for name in (other.name, *other.part_names):
                self.manager.unregister(name=name)
        self._register_all([*alive, candidate])

    def peek(self, candidate: Installed) -> None:
        """Load a plugin that does not run, only to list its hooks."""
        fault = self._fault_of(candidate)
        if fault is None:
            if not self._waits_for_reporter(candidate):
                candidate.reason = "runs when asked for by name"
        elif isinstance(fault, NeedsOptionsError):
            candidate.reason = str(fault)
        else:
            candidate.status, candidate.reason = "unavailable", str(fault)

    # --- registering --------------------------------------------------------------------------------------------

    def _register_all(self, order: Sequence[Installed]) -> None:
        """Register plugins in reverse, since pluggy calls first what was registered last."""
        for candidate in order:
            if candidate in self.chosen:
                check(candidate.name, candidate.plugin)
        for candidate in reversed(order):
            try:
                self._register(candidate)
            except SetupError as fault:
                self._skip(candidate, fault)
        self._order = [candidate for candidate in order if candidate.status == "active"]

    def _register(self, candidate: Installed) -> None:
        try:
            self.manager.register(candidate.plugin, name=candidate.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy compares plugins with ==, and dataclasses are equal if their options are.
            twin = next((name for name, other in self.manager.list_name_plugin() if other == candidate.plugin), None)
            if twin == candidate.name:
                self.manager.unregister(name=twin)
            elif twin is not None:
                raise SetupError(
                    f"plugins {twin!r} and {candidate.name!r} are equal, so one of them is enough; "
                    "if they differ, write @dataclass(eq=False) on their class"
                ) from error
            raise SetupError(f"plugin {candidate.name!r}: {' '.join(str(error).split())}") from error
        candidate.status = "active"
        parts = {f"{candidate.name}.{name_of(part, {})}": part for part in as_sink(candidate.plugin).parts}
        candidate.part_names = tuple(parts)
        for name, part in reversed(parts.items()):
            self.manager.register(part, name=name)


def _name_of_given(plugin: Any, installed: Mapping[str, Installed]) -> str:
    try:
        return name_of(plugin, installed)
    except Exception as error:
        kind = type(plugin).__name__
        raise SetupError(f"plugin {kind} cannot be used: reading its name raised {error_text(error)}") from error


def _checked_config(config: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if not isinstance(config, Mapping):
        raise SetupError(f"config is {config!r}; give a dict of options for each plugin, by its name")
    for name, options in config.items():
        if not isinstance(options, Mapping):
            raise SetupError(f"config of plugin {name!r} is {options!r}; give a dict of its options")
    return {name: dict(options) for name, options in config.items()}
