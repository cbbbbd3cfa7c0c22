"""Which plugins run: names, instances, entry points, configuration and environment, checked before training.

Environment, for operators: `ROLLOUT_PLUGINS_DISABLE=a,b` (names or distributions, blocked before they are imported),
`ROLLOUT_PLUGINS_AUTOLOAD=0` (no discovered plugins), `ROLLOUT_PLUGINS_STRICT=1` (plugin errors end the run).
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pluggy
from rollout_hookspecs import PROJECT, hooks

from rollout_plugins.engine.telling import is_required, shown
from rollout_plugins.errors import SetupError, suggest

logger = logging.getLogger("rollout_plugins")

DISTRIBUTION = "rollout-plugins"
DEFAULTS = ("images", "metrics")
HOOKS = tuple(name for name, value in vars(hooks).items() if hasattr(value, f"{PROJECT}_spec"))


def flag(name: str, *, default: bool) -> bool:
    """A yes/no environment variable."""
    value = os.environ.get(f"ROLLOUT_PLUGINS_{name}", "").strip().lower()
    return default if not value else value not in {"0", "false", "no", "off"}


def names_in(name: str) -> set[str]:
    """A comma-separated environment variable."""
    return {part.strip() for part in os.environ.get(f"ROLLOUT_PLUGINS_{name}", "").split(",") if part.strip()}


@dataclass
class Installed:
    """A plugin that could run, and what became of it."""

    name: str
    entry: EntryPoint | None = None
    plugin: Any = None
    status: str = "available"
    reason: str = ""

    @property
    def distribution(self) -> str:
        dist = self.entry.dist if self.entry else None
        return dist.name if dist else ""

    @property
    def version(self) -> str:
        dist = self.entry.dist if self.entry else None
        return dist.version if dist else ""


class _Manager(pluggy.PluginManager):
    """pluggy that leaves properties alone: before 1.7 it runs them all while it looks for hooks."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        return None if _is_property(plugin, name) else super().parse_hookimpl_opts(plugin, name)


class Plugins:
    """The plugins of one callback, loaded and registered in calling order."""

    def __init__(
        self,
        wanted: Sequence[Any] = (),
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
        self._switched_off = names_in("DISABLE")
        self._order: list[Installed] = []
        chosen = self._choose(wanted)
        self._check_names(self._disabled, "disable")
        self._check_names(self._config, "config")
        discovered = self._discovered(chosen) if autoload and flag("AUTOLOAD", default=True) else []
        self._register_all([*chosen, *discovered])

    def _check_names(self, names: Iterable[str], what: str) -> None:
        known = {f.name for f in self.found.values()} | {f.distribution for f in self.found.values()}
        for name in sorted(map(str, names)):
            if name not in known:
                raise SetupError(f"{what} names {name!r}, which is no plugin; {suggest(name, known - {''})}")

    def _is_blocked(self, found: Installed) -> bool:
        """Whether somebody said that it must not run; notes who."""
        names = {found.name, found.distribution}
        by = "ROLLOUT_PLUGINS_DISABLE" if names & self._switched_off else "disable="
        if names & (self._switched_off | self._disabled):
            found.status, found.reason = "disabled", f"by {by}"
        return found.status == "disabled"

    def _choose(self, wanted: Sequence[Any]) -> list[Installed]:
        """What the user asked for, in the user's order."""
        if isinstance(wanted, str) or not isinstance(wanted, Sequence):
            raise SetupError(f"plugins takes a list of names and instances, found {wanted!r}")
        chosen: list[Installed] = []
        for item in wanted:
            found = self._named(item) if isinstance(item, str) else self._object(item, chosen)
            if any(found.name == other.name for other in chosen):
                raise SetupError(f"plugins holds two plugins named {found.name!r}; keep one of them")
            if not self._is_blocked(found):
                found.plugin = self._make(found)
                chosen.append(found)
        return chosen

    def _named(self, name: str) -> Installed:
        if name not in self.found:
            raise SetupError(f"no plugin named {name!r} is installed; {suggest(name, self.found)}")
        return self.found[name]

    def _object(self, item: Any, chosen: Sequence[Installed]) -> Installed:
        """A plugin given as an object, or as a class that is instantiated. Several of one kind are numbered."""
        base = name_of(item, self.found)
        if not isinstance(item, type) and base in self._config:
            raise SetupError(
                f"config has options for plugin {base!r}, which was given as an instance; give them to the instance"
            )
        same = sum(other.name == base or other.name.startswith(f"{base}-") for other in chosen)
        found = Installed(base if not same else f"{base}-{same + 1}", plugin=item)
        if base in self.found and not same:
            found.entry = self.found[base].entry
        self.found[found.name] = found
        return found

    def _discovered(self, chosen: Sequence[Installed]) -> list[Installed]:
        """Installed plugins that run unasked: other people's, and our own defaults."""
        others, ours = [], []
        taken = {found.name for found in chosen}
        for found in sorted(self.found.values(), key=lambda f: f.name):
            if found.name in taken or found.entry is None:
                continue
            if self._is_blocked(found):
                continue
            if found.distribution != DISTRIBUTION:
                others.append(found)
            elif found.name in DEFAULTS:
                ours.append(found)
        return [found for found in [*others, *ours] if self._load_discovered(found)]

    def _load_discovered(self, found: Installed) -> bool:
        try:
            found.plugin = self._make(found)
            check(found.name, found.plugin)
        except (Exception, SystemExit) as error:
            if found.name in self._config:
                raise  # whoever configures a plugin counts on it
            found.status, found.reason = "failed", f"{type(error).__name__}: {error}"
            logger.warning("plugin %r (%s) was skipped: %s", found.name, found.distribution, self._shown(error))
            return False
        return True

    def _shown(self, error: BaseException) -> str:
        return shown(error, discreetly=any(is_required(found.plugin) for found in self.found.values()))

    def _make(self, found: Installed) -> Any:
        """The plugin itself: what was given or its entry point names, instantiated when that is a class."""
        loaded = _imported(found.entry) if found.entry and found.plugin is None else found.plugin
        options = self._config.get(found.name, {})
        if isinstance(loaded, type):
            return _instantiate(loaded, found.name, options)
        if options:
            raise SetupError(f"config has options for plugin {found.name!r}, which is no class and takes none")
        return loaded

    def add(self, name: str) -> bool:
        """Load one more of our own plugins by name, after all others, unless it is there or was disabled."""
        found = self.found.get(name)
        if found is None or found.status != "available" or self._is_blocked(found) or not self._load_discovered(found):
            return False
        alive = [other for other in self._order if self.manager.has_plugin(other.name)]
        for other in alive:
            self.manager.unregister(name=other.name)
        self._register_all([*alive, found])
        return True

    def peek(self, found: Installed) -> None:
        """Load a plugin that would not run, to say what it has."""
        try:
            found.plugin = self._make(found)
            check(found.name, found.plugin)
            found.reason = "runs when asked for by name"
        except (Exception, SystemExit) as error:
            found.status, found.reason = "unavailable", str(error)

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
    for name, options in config.items():
        if not isinstance(options, Mapping):
            raise SetupError(f"config of plugin {name!r} is {options!r}; give a dict of its options")
    return {name: dict(options) for name, options in config.items()}


def _imported(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        where = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        raise SetupError(
            f"plugin {entry.name!r} of {where} does not import: {type(error).__name__}: {error}"
        ) from error


def discover() -> dict[str, Installed]:
    """Everything installed under the entry-point group, by name; nothing is imported."""
    found: dict[str, Installed] = {}
    for entry in sorted(entry_points(group=PROJECT), key=lambda e: (e.name, e.dist.name if e.dist else "")):
        other = found.get(entry.name)
        if other is None:
            found[entry.name] = Installed(entry.name, entry)
        elif entry.dist and entry.dist.name != other.distribution:
            logger.warning(
                "two installed plugins are named %r, of %s and of %s; the first one is used",
                entry.name,
                other.distribution,
                entry.dist.name,
            )
    return found


def known_sinks() -> list[str]:
    """Names one may export to: our sinks, and whatever others have installed. Nothing is imported to find out more."""
    found = discover().values()
    ours = "rollout_plugins.sinks."
    return [f.name for f in found if f.distribution != DISTRIBUTION or (f.entry and f.entry.value.startswith(ours))]


def options_of(name: str) -> list[str]:
    """What the class of an installed plugin takes; nothing, where it is not a class or does not import."""
    entry = discover()[name].entry
    with suppress(SetupError):
        loaded = _imported(entry) if entry else None
        return [parameter.name for parameter in _parameters(loaded)] if isinstance(loaded, type) else []
    return []


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


def _instantiate(kind: type, name: str, options: Mapping[str, Any]) -> Any:
    """Call a plugin class with its configuration; say what is wrong with either."""
    parameters = _parameters(kind)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = [p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
    for key in options:
        if key not in accepted and not open_ended:
            raise SetupError(f"config of plugin {name!r} has no option {key!r}; {suggest(key, accepted)}")
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD} and p.name not in options
    ]
    if missing:
        raise SetupError(
            f"plugin {name!r} is the class {kind.__name__}, which needs {', '.join(missing)}: pass an instance, "
            f"{kind.__name__}({', '.join(f'{m}=…' for m in missing)}), or config={{{name!r}: {{…}}}}"
        )
    try:
        return kind(**options)
    except SetupError:
        raise
    except (Exception, SystemExit) as error:
        raise SetupError(
            f"plugin {name!r} could not be made: {kind.__name__} raised {type(error).__name__}: {error}"
        ) from error


def _parameters(kind: type) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kind).parameters.values())
    except ValueError:  # some classes written in C have none to show
        return []


def check(name: str, plugin: Any) -> None:
    """Refuse a plugin whose hooks could not work, in one sentence that names the place and the fix."""
    faults = []
    marked = 0
    for attribute, value in _attributes(plugin):
        options = getattr(value, f"{PROJECT}_impl", None)
        if options is None:
            if attribute in HOOKS and inspect.isroutine(value):
                faults.append(f"{_place(value)} has a hook's name but no @hookimpl: put @hookimpl on it")
            continue
        marked += 1
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            faults.append(f"{_place(value)} implements {hook!r}, which is no hook; {suggest(hook, HOOKS)}")
        else:
            faults += _faults_of(value, hook, options)
    if not marked and not faults:
        faults.append(f"it has no method marked @hookimpl; the hooks are {', '.join(HOOKS)}")
    if faults:
        raise SetupError(f"plugin {name!r} cannot be used: {'; '.join(faults)}")


def _attributes(plugin: Any) -> list[tuple[str, Any]]:
    """Public attributes, without running properties."""
    found = []
    for name in dir(plugin):
        if not name.startswith("_"):
            with suppress(Exception):  # what can't be read is no hook
                if not _is_property(plugin, name):
                    found.append((name, getattr(plugin, name)))
    return found


def _is_property(plugin: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(plugin, name, None), property)


def _faults_of(function: Any, hook: str, options: Mapping[str, Any]) -> list[str]:
    place = _place(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return [f"{place} is async; hooks are plain functions: write def {hook}(…)"]
    if inspect.isgeneratorfunction(function) and not (options.get("wrapper") or options.get("hookwrapper")):
        return [f"{place} is a generator; return a value instead of yielding"]
    if options.get("wrapper") or options.get("hookwrapper"):
        return [f"{place} is a wrapper; return a value or raise Drop instead"]
    faults = []
    accepted = list(inspect.signature(getattr(hooks, hook)).parameters)
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            faults.append(f"{place} takes {p.name!r} as keyword-only: remove the * before it")
        elif p.kind is p.POSITIONAL_ONLY:
            faults.append(f"{place} takes {p.name!r} as positional-only: remove the / after it")
        elif p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            faults.append(f"{place} takes {p}; name the arguments it needs from ({', '.join(accepted)})")
        elif p.name not in accepted and p.default is p.empty:
            faults.append(f"{place} asks for {p.name!r}, but {hook} offers ({', '.join(accepted)})")
    return faults


def _place(function: Any) -> str:
    """Where a hook implementation is written."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    name = getattr(inner, "__qualname__", repr(inner))
    code = getattr(inner, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else name


def listing() -> list[dict[str, Any]]:
    """Every installed plugin and whether it would run, for `rollouts plugins`. The format is stable."""
    plugins = Plugins()
    rows = []
    order = [name for name, _ in reversed(plugins.manager.list_name_plugin())]
    for found in plugins.found.values():
        if found.plugin is None and found.status == "available":
            plugins.peek(found)
        implemented = [hook for hook in HOOKS if found.plugin is not None and _implements(found.plugin, hook)]
        rows.append(
            {
                "name": found.name,
                "version": found.version,
                "source": found.distribution,
                "hooks": implemented,
                "order": order.index(found.name) + 1 if found.name in order else None,
                "status": found.status,
                "reason": found.reason,
            }
        )
    return rows


def _implements(plugin: Any, hook: str) -> bool:
    return hasattr(getattr(plugin, hook, None), f"{PROJECT}_impl")
