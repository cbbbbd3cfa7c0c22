"""Which plugins are installed, which of them run, and in which order; all checked before training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

import pluggy
from rollout_hookspecs import PROJECT, hooks

from rollout_plugins.engine import environment
from rollout_plugins.engine.check import (
    NeedsOptionsError,
    accepted_options,
    check,
    is_property,
    load,
)
from rollout_plugins.engine.telling import is_required, shown
from rollout_plugins.errors import SetupError, suggest

logger = logging.getLogger("rollout_plugins")

DISTRIBUTION = "rollout-plugins"
DEFAULTS = ("images", "metrics")
TRAINERS = "trainers"
ON_DEMAND = (TRAINERS, "trackio", "wandb", "cap")
"""Those of ours that a callback adds: what knows its trainer, where that reports to, and what goes with it."""


@dataclass
class Installed:
    """A plugin that could run, and what became of it."""

    name: str
    entry: EntryPoint | None = None
    distribution: str = ""
    plugin: Any = None
    status: str = "available"
    reason: str = ""

    @property
    def version(self) -> str:
        dist = self.entry.dist if self.entry else None
        return dist.version if dist else ""


def discover() -> dict[str, Installed]:
    """Everything installed under the entry-point group, by name; nothing is imported."""
    found: dict[str, Installed] = {}
    name_of = functools.cache(_name_of)  # a distribution parses all it says of itself each time it is asked its name
    for entry in sorted(entry_points(group=PROJECT), key=lambda e: (e.name, name_of(e.dist))):
        distribution = name_of(entry.dist)
        other = found.setdefault(entry.name, Installed(entry.name, entry, distribution))
        if distribution not in {"", other.distribution}:
            logger.warning(
                "two installed plugins are named %r, of %s and of %s; the first one is used",
                entry.name,
                other.distribution,
                distribution,
            )
    return found


def _name_of(dist: Distribution | None) -> str:
    return dist.name if dist else ""


def known_sinks() -> list[str]:
    """Names one may export to: our sinks, and whatever others have installed. Nothing is imported to find out more."""
    entries = [(found, found.entry.module) for found in discover().values() if found.entry is not None]
    return [f.name for f, at in entries if f.distribution != DISTRIBUTION or at.startswith("rollout_plugins.sinks.")]


def options_of(name: str) -> list[str]:
    """What the class of an installed plugin takes; nothing if it is not a class or does not import."""
    entry = discover()[name].entry
    return accepted_options(entry) if entry else []


class _Manager(pluggy.PluginManager):
    """pluggy that leaves properties alone: before 1.7 it runs them all while it looks for hooks."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        return None if is_property(plugin, name) else super().parse_hookimpl_opts(plugin, name)


class Plugins:
    """The plugins of one callback, loaded and registered in calling order."""

    def __init__(
        self,
        wanted: Sequence[Any] | None = (),
        *,
        disable: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        autoload: bool = True,
    ) -> None:
        self.manager = _Manager(PROJECT)
        self.manager.add_hookspecs(hooks)
        self.found = discover()
        self._config = _checked_config(config or {})
        self._disabled = {disable} if isinstance(disable, str) else set(disable)
        self._switched_off = environment.names("DISABLE")
        self._order: list[Installed] = []
        chosen = self._choose(() if wanted is None else wanted)
        self._check_names(self._disabled, "disable")
        self._check_names(self._config, "config")
        self._check_counted_on(chosen)
        self._warn_of_unknown()
        discovered = self._discovered(chosen) if autoload and environment.flag("AUTOLOAD", default=True) else []
        self._register_all([*chosen, *discovered])

    def _check_names(self, names: Iterable[str], what: str) -> None:
        for fault in self._unknown(names, what):
            raise SetupError(fault)

    def _check_counted_on(self, chosen: Sequence[Installed]) -> None:
        """Options of a plugin of ours that nobody asked for would be set in vain."""
        runs = {*DEFAULTS, *ON_DEMAND, *(found.name for found in chosen)}
        for name in self._config:
            found = self.found.get(name)
            if found and found.distribution == DISTRIBUTION and name not in runs and not self._is_blocked(found):
                raise SetupError(f"config has options for {name!r}, which runs only if asked for: plugins=[{name!r}]")

    def _warn_of_unknown(self) -> None:
        """An operator's list serves many machines, and not each has all plugins: no reason not to train."""
        for fault in self._unknown(self._switched_off, "ROLLOUT_PLUGINS_DISABLE"):
            logger.warning("%s", fault)

    def _unknown(self, names: Iterable[str], what: str) -> Iterator[str]:
        known = {f.name for f in self.found.values()} | {f.distribution for f in self.found.values()}
        for name in sorted(map(str, names)):
            if name not in known:
                yield f"{what} names {name!r}, which is not a plugin; {suggest(name, known - {''})}"

    def _is_blocked(self, found: Installed) -> bool:
        """Whether somebody said that it must not run; notes who."""
        names = {found.name, found.distribution}
        by = "ROLLOUT_PLUGINS_DISABLE" if names & self._switched_off else "disable="
        if names & (self._switched_off | self._disabled):
            found.status, found.reason = "disabled", f"by {by}"
        return found.status == "disabled"

    # --- what the user asked for --------------------------------------------------------------------------------

    def _choose(self, wanted: Sequence[Any]) -> list[Installed]:
        """In the user's order."""
        if isinstance(wanted, str) or not isinstance(wanted, Sequence):
            raise SetupError(f"plugins takes a list of names and instances, found {wanted!r}")
        chosen: list[Installed] = []
        for item in wanted:
            found = self._named(item) if isinstance(item, str) else self._object(item, chosen)
            if any(found.name == other.name for other in chosen):
                raise SetupError(f"plugins holds two plugins named {found.name!r}; keep one of them")
            if not self._is_blocked(found):
                found.plugin = self._made(found)
                chosen.append(found)
        return chosen

    def _named(self, name: str) -> Installed:
        if name not in self.found:
            raise SetupError(f"no plugin named {name!r} is installed; {suggest(name, self.found)}")
        return self.found[name]

    def _object(self, item: Any, chosen: Sequence[Installed]) -> Installed:
        """A plugin given as an object, or as a class that is instantiated. Several of one name are numbered."""
        base = name_of(item, self.found)
        installed = self.found.get(base)
        taken = {other.name for other in chosen}
        if installed is not None and not _may_be(item, installed):  # the names are the same by chance
            taken.add(base)
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

    # --- what runs unasked --------------------------------------------------------------------------------------

    def _discovered(self, chosen: Sequence[Installed]) -> list[Installed]:
        """Other people's installed plugins, then our own defaults."""
        taken = {found.name for found in chosen}
        left = sorted((f for f in self.found.values() if f.name not in taken and f.entry), key=lambda f: f.name)
        free = [found for found in left if not self._is_blocked(found)]
        others = [found for found in free if found.distribution != DISTRIBUTION]
        ours = [found for found in free if found.distribution == DISTRIBUTION and found.name in DEFAULTS]
        return [found for found in [*others, *ours] if self._load_unasked(found)]

    def _load_unasked(self, found: Installed) -> bool:
        """Load a plugin, or skip it and say why; it must not keep a training from starting."""
        fault = self._fault_of(found)
        if fault is None:
            return True
        if found.name in self._config:
            raise fault  # a plugin that is configured is counted on
        found.status, found.reason = "failed", f"{type(fault).__name__}: {fault}"
        is_discreet = any(is_required(other.plugin) for other in self.found.values())
        why = shown(fault, discreetly=is_discreet)
        logger.warning("plugin %r (%s) was skipped: %s", found.name, found.distribution, why)
        return False

    def _fault_of(self, found: Installed) -> BaseException | None:
        """Load a plugin; what is wrong with it, if anything is."""
        try:
            found.plugin = self._made(found)
            check(found.name, found.plugin)
        except (Exception, SystemExit) as error:
            return error
        return None

    def _made(self, found: Installed) -> Any:
        return load(found.name, found.plugin, found.entry, self._config.get(found.name, {}))

    def add(self, name: str) -> bool:
        """Load one more of our own plugins by name, after all others, unless it is there or was disabled."""
        found = self.found.get(name)
        if found is None or found.status != "available" or self._is_blocked(found) or not self._load_unasked(found):
            return False
        alive = [other for other in self._order if self.manager.has_plugin(other.name)]
        for other in alive:
            self.manager.unregister(name=other.name)
        self._register_all([*alive, found])
        return True

    def peek(self, found: Installed) -> None:
        """Load a plugin that would not run, to say what it has."""
        fault = self._fault_of(found)
        if fault is None:
            found.reason = "runs when asked for by name"
        elif isinstance(fault, NeedsOptionsError):
            found.reason = str(fault)
        else:
            found.status, found.reason = "unavailable", str(fault)

    # --- registering --------------------------------------------------------------------------------------------

    def _register_all(self, order: Sequence[Installed]) -> None:
        """In reverse, since pluggy calls first what was registered last."""
        for found in order:
            check(found.name, found.plugin)
        for found in reversed(order):
            self._register(found)
        self._order = list(order)

    def _register(self, found: Installed) -> None:
        try:
            self.manager.register(found.plugin, name=found.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy compares plugins with ==, and dataclasses are equal where their options are.
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


def _checked_config(config: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if not isinstance(config, Mapping):
        raise SetupError(f"config is {config!r}; give a dict of options for each plugin, by its name")
    for name, options in config.items():
        if not isinstance(options, Mapping):
            raise SetupError(f"config of plugin {name!r} is {options!r}; give a dict of its options")
    return {name: dict(options) for name, options in config.items()}


def name_of(plugin: Any, known: Mapping[str, Installed]) -> str:
    """A plugin object's or class's name: its entry point's, its own `name`, or its class's."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    address = f"{kind.__module__}:{kind.__qualname__}"
    for found in known.values():
        if found.entry is not None and found.entry.value == address:
            return found.name
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    return str(getattr(plugin, "__name__", kind.__name__)).rpartition(".")[2].lower()


def _may_be(plugin: Any, installed: Installed) -> bool:
    """Whether an object may be an installed plugin, or made from it: some of its classes are of the same package."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    modules = {getattr(plugin, "__name__", ""), *(one.__module__ for one in kind.__mro__)}
    packages = {str(module).partition(".")[0] for module in modules}
    return installed.entry is None or installed.entry.module.partition(".")[0] in packages
