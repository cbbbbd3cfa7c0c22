"""Which plugins run, and in which order; all checked before training."""

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
"""Built-in plugins that the callback adds: what finds rollouts in its trainer, and what goes with a dashboard."""


class _Manager(pluggy.PluginManager):
    """pluggy that depends less on how a plugin behaves."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return None for an attribute that is not a hook, instead of running or raising it."""
        if not is_property(plugin, name):  # pluggy before 1.7 runs every property
            with suppress(Exception):
                return super().parse_hookimpl_opts(plugin, name)
        return None

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        """Unregister a plugin, also one that is false, such as an empty container."""
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
        self.found = discover()
        self._config = _checked_config(config or {})
        self.chosen: list[Installed] = []
        """Plugins that were named or given, in this order: a fault in one of them is raised."""
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
        """Raise if options are set for a built-in plugin that cannot run, or have a wrong name."""
        may_run = {*DEFAULTS, *ON_DEMAND, *(found.name for found in chosen)}
        for name, options in self._config.items():
            found = self.found.get(name)
            if found is None or not found.is_built_in or name in may_run - set(ON_DEMAND) or self._is_blocked(found):
                continue
            kind = plugin_class(found.entry)
            if name not in may_run and not getattr(kind, "report_to", ""):
                raise SetupError(f"config has options for {name!r}, which runs only if asked for: plugins=[{name!r}]")
            if kind is not None:
                check_options(kind, name, options)

    def check_all_options_are_used(self) -> None:
        """Raise if options are set for a plugin that does not run, once every plugin has been added that may."""
        for name, options in self._config.items():
            found = self.found.get(name)
            if options and found is not None and found.status == "available":
                raise SetupError(
                    f"config has options for {name!r}, which does not run here: add it with plugins=[{name!r}], "
                    "or remove its options"
                )

    def _warn_of_unknown(self) -> None:
        """Warn of unknown names in the environment: an operator's list serves machines with other plugins too."""
        for fault in self._unknown(self._switched_off, "ROLLOUT_PLUGINS_DISABLE"):
            logger.warning("%s", fault)

    def _unknown(self, names: Iterable[str], what: str) -> Iterator[str]:
        known = {f.name for f in self.found.values()} | {f.distribution for f in self.found.values()}
        for name in sorted(map(str, names)):
            if name not in known:
                yield f"{what} names {name!r}, which is not a plugin; {suggest(name, known - {''})}"

    def _is_blocked(self, found: Installed) -> bool:
        """Return whether the plugin is disabled, and record by what."""
        names = {found.name, found.distribution}
        by = "ROLLOUT_PLUGINS_DISABLE" if names & self._switched_off else "disable="
        if names & (self._switched_off | self._disabled):
            found.status, found.reason = "disabled", f"by {by}"
        return found.status == "disabled"

    # --- plugins that were named or given ---------------------------------------------------------------------------

    def _choose(self, plugins: Sequence[Any]) -> list[Installed]:
        """Load the plugins of the list, in its order."""
        if isinstance(plugins, str) or not isinstance(plugins, Sequence):
            raise SetupError(f"plugins takes a list of names and instances, found {plugins!r}")
        chosen: list[Installed] = []
        for item in plugins:
            found = self._named(item) if isinstance(item, str) else self._object(item, chosen)
            if any(found.name == other.name for other in chosen):
                raise SetupError(f"plugins holds two plugins named {found.name!r}; keep one of them")
            if not self._is_blocked(found):
                found.plugin = self._load(found)
                chosen.append(found)
        self.chosen = chosen
        return chosen

    def _named(self, name: str) -> Installed:
        if name not in self.found:
            raise SetupError(f"no plugin named {name!r} is installed; {suggest(name, self.found)}")
        if self.found[name].status == "failed":
            raise SetupError(self.found[name].reason)
        return self.found[name]

    def _object(self, item: Any, chosen: Sequence[Installed]) -> Installed:
        """Return a plugin given as an object, or as a class to instantiate. Several of one name are numbered."""
        base = _name_of_given(item, self.found)
        installed = self.found.get(base)
        taken = {other.name for other in chosen}
        if base == DEFAULT_TRACE or (installed is not None and not is_made_from(item, installed)):
            taken.add(base)  # the names are the same by coincidence
        same = sum(name == base or name.startswith(f"{base}-") for name in taken)
        found = Installed(base if not same else f"{base}-{same + 1}", plugin=item)
        if not isinstance(item, type) and found.name in self._config:
            raise SetupError(
                f"config has options for plugin {base!r}, which was given as an instance; give them to the instance"
            )
        if installed is not None and not same:
            found.entry, found.distribution = installed.entry, installed.distribution
        self.found[found.name] = found
        return found

    # --- plugins that run without being named -----------------------------------------------------------------------

    def _discovered(self, chosen: Sequence[Installed]) -> list[Installed]:
        """Load installed plugins of others, then the built-in defaults."""
        chosen_names = {found.name for found in chosen}
        candidates = [
            found
            for found in sorted(self.found.values(), key=lambda found: found.name)
            if found.name not in chosen_names and found.entry and found.status == "available"
            if not self._is_blocked(found)
        ]
        others = [found for found in candidates if not found.is_built_in]
        defaults = [found for found in candidates if found.is_built_in and found.name in DEFAULTS]
        loaded = [found for found in [*others, *defaults] if self._load_or_skip(found)]
        return [found for found in loaded if not self._waits_for_reporter(found)]

    def _waits_for_reporter(self, found: Installed) -> bool:
        """Return whether the plugin is a sink that runs only if the trainer's `report_to` has a certain name."""
        reporter = as_sink(found.plugin).report_to
        if reporter:
            found.reason = f"runs if report_to has {reporter!r}, or when asked for by name"
        return bool(reporter)

    def add_reporters(self, report_to: Iterable[str]) -> None:
        """Add the sinks that stand for the trainer's own dashboards, and `cap` with them."""
        for name in report_to:
            for found in list(self.found.values()):
                # Built-in sinks are not loaded before they are needed: their entry points have the names.
                may_be = found.name == name if found.plugin is None else as_sink(found.plugin).report_to == name
                if may_be and self._can_add(found) and as_sink(found.plugin).report_to == name:
                    self._add(found)
        self.add_cap()

    def add_cap(self) -> None:
        """Cap what goes to a dashboard, unless `cap` is configured or disabled."""
        if any(as_sink(plugin).report_to for _, plugin in self.manager.list_name_plugin()):
            self.add(CAP)

    def _load_or_skip(self, found: Installed) -> bool:
        """Load a plugin that nobody named, or skip it with a warning: it must not keep a training from starting."""
        fault = self._fault_of(found)
        if fault is not None:
            self._skip(found, fault)
        return fault is None

    def _skip(self, found: Installed, fault: Exception) -> None:
        if found.name in self._config or found in self.chosen:
            raise fault  # whoever names or configures a plugin relies on it
        found.status, found.reason = "failed", f"{type(fault).__name__}: {fault}"
        hide_text = any(is_required(other.plugin) for other in self.found.values())
        text = error_text(fault, hide_text=hide_text)
        logger.warning("plugin %r (%s) was skipped: %s", found.name, found.distribution, text)

    def _fault_of(self, found: Installed) -> Exception | None:
        """Load a plugin; return what is wrong with it, if anything is."""
        try:
            found.plugin = self._load(found)
            check(found.name, found.plugin)
        except Exception as error:  # `load` and `check` turn everything but Ctrl-C into one
            return error
        return None

    def _load(self, found: Installed) -> Any:
        return load(found.name, found.plugin, found.entry, self._config.get(found.name, {}))

    def add(self, name: str) -> bool:
        """Load one more plugin by name, to run after all others; return False if it runs already or cannot."""
        found = self.found.get(name)
        if found is None or not self._can_add(found):
            return False
        self._add(found)
        return True

    def _can_add(self, found: Installed) -> bool:
        if found.status != "available" or self._is_blocked(found):
            return False
        return found.plugin is not None or self._load_or_skip(found)

    def _add(self, found: Installed) -> None:
        alive = [other for other in self._order if self.manager.has_plugin(other.name)]
        for other in alive:
            for name in (other.name, *other.part_names):
                self.manager.unregister(name=name)
        self._register_all([*alive, found])

    def peek(self, found: Installed) -> None:
        """Load a plugin that would not run, to list what it has."""
        fault = self._fault_of(found)
        if fault is None:
            if not self._waits_for_reporter(found):
                found.reason = "runs when asked for by name"
        elif isinstance(fault, NeedsOptionsError):
            found.reason = str(fault)
        else:
            found.status, found.reason = "unavailable", str(fault)

    # --- registering --------------------------------------------------------------------------------------------

    def _register_all(self, order: Sequence[Installed]) -> None:
        """Register plugins in reverse, since pluggy calls first what was registered last."""
        for found in order:
            if found in self.chosen:
                check(found.name, found.plugin)
        for found in reversed(order):
            try:
                self._register(found)
            except SetupError as fault:
                self._skip(found, fault)
        self._order = [found for found in order if found.status == "active"]

    def _register(self, found: Installed) -> None:
        try:
            self.manager.register(found.plugin, name=found.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy compares plugins with ==, and dataclasses are equal if their options are.
            twin = next((name for name, other in self.manager.list_name_plugin() if other == found.plugin), None)
            if twin == found.name:
                self.manager.unregister(name=twin)
            elif twin is not None:
                raise SetupError(
                    f"plugins {twin!r} and {found.name!r} are equal, so one of them is enough; "
                    "if they differ, write @dataclass(eq=False) on their class"
                ) from error
            raise SetupError(f"plugin {found.name!r}: {' '.join(str(error).split())}") from error
        found.status = "active"
        parts = {f"{found.name}.{name_of(part, {})}": part for part in as_sink(found.plugin).parts}
        found.part_names = tuple(parts)
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
