"""Load and check one plugin. Errors name what is wrong, where, and how to fix it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from rollout_hookspecs import PROJECT, Sink, hooks

from rollout_plugins.errors import SetupError, suggest

CONTRACT_ATTRIBUTES = tuple(name for name in dir(Sink) if not name.startswith("_"))
"""The optional members of a plugin besides its hooks."""
HOOKS = tuple(name for name, value in vars(hooks).items() if hasattr(value, f"{PROJECT}_spec"))


class NeedsOptionsError(SetupError):
    """A plugin cannot be created without options."""


def load(name: str, plugin: Any, entry: EntryPoint | None, options: Mapping[str, Any]) -> Any:
    """Return the plugin: the plugin object or what its entry point names, instantiated if that is a class."""
    loaded = _imported(entry) if entry is not None and plugin is None else plugin
    if isinstance(loaded, type):
        return _instantiate(loaded, name, options)
    if options:
        raise SetupError(f"config has options for plugin {name!r}, which is not a class and takes none")
    return loaded


def _imported(entry: EntryPoint) -> Any:
    where = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    with _setup_errors(f"plugin {entry.name!r} of {where} cannot be imported:"):
        return entry.load()


def _instantiate(kind: type, name: str, options: Mapping[str, Any]) -> Any:
    """Call a plugin class with its options."""
    check_options(kind, name, options)
    with _setup_errors(f"plugin {name!r} could not be created: {kind.__name__} raised"):
        return kind(**options)


@contextmanager
def _setup_errors(text: str) -> Iterator[None]:
    """Turn whatever a plugin raises into a SetupError, except Ctrl-C.

    Plugins raise more than `Exception`: SystemExit if something is missing, a panic of Rust code, `pytest.skip`.
    """
    try:
        yield
    except (KeyboardInterrupt, SetupError):
        raise
    except BaseException as error:
        raise SetupError(f"{text} {type(error).__name__}: {_safe_text(error)}") from error


def _safe_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__
        return ""


def check_options(kind: type, name: str, options: Mapping[str, Any]) -> None:
    """Raise if a plugin's class does not accept these options, or requires others."""
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
        raise NeedsOptionsError(
            f"plugin {name!r} is the class {kind.__name__}, which needs arguments: pass an instance, "
            f"{kind.__name__}({', '.join(f'{m}=…' for m in missing)}), or config={{{name!r}: {{…}}}}"
        )


def _parameters(kind: type) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kind).parameters.values())
    except ValueError:  # some classes written in C have no signature
        return []


def accepted_options(entry: EntryPoint) -> list[str]:
    """Return the options of a plugin's class; nothing if it is not a class or cannot be imported."""
    kind = plugin_class(entry)
    return [parameter.name for parameter in _parameters(kind)] if kind is not None else []


def plugin_class(entry: EntryPoint | None) -> type | None:
    """Return the class that an entry point names; None if it cannot be imported or is not a class."""
    with suppress(SetupError):
        loaded = None if entry is None else _imported(entry)
        return loaded if isinstance(loaded, type) else None
    return None


def is_required(plugin: Any) -> bool:
    """Return whether the plugin has `required = True`, so that it must see whatever is stored or sent."""
    return inspect.getattr_static(plugin, "required", False) is True


# --- hooks --------------------------------------------------------------------------------------------------------


def check(name: str, plugin: Any) -> None:
    """Raise if a plugin's hooks cannot work; the error names the place and the fix."""
    with _setup_errors(f"plugin {name!r} cannot be used: reading or comparing it raised"):
        _probe(plugin)
        _check_hooks(name, plugin)


def _probe(plugin: Any) -> None:
    """Use a plugin as the engine and pluggy will, so that a plugin that raises does so now."""
    bool(plugin == object())
    for attribute in CONTRACT_ATTRIBUTES:
        if not is_property(plugin, attribute):
            getattr(plugin, attribute, None)


def _check_hooks(name: str, plugin: Any) -> None:
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
            faults.append(f"{_place(value)} implements {hook!r}, which is not a hook; {suggest(hook, HOOKS)}")
        else:
            faults += _faults_of(value, hook, options)
    for part in _parts(plugin):
        _check_hooks(name, part)
        marked += 1
    if not marked and not faults and not hasattr(plugin, "parts"):
        faults.append(f"it has no method marked @hookimpl; the hooks are {', '.join(HOOKS)}")
    if faults:
        raise SetupError(f"plugin {name!r} cannot be used: {'; '.join(faults)}")


def _parts(plugin: Any) -> Sequence[Any]:
    """Return the plugins of which a plugin consists."""
    parts = getattr(plugin, "parts", ())
    return parts if isinstance(parts, (list, tuple)) else ()


def _attributes(plugin: Any) -> list[tuple[str, Any]]:
    """Return the public attributes without running properties."""
    attributes = []
    for name in dir(plugin):
        if not name.startswith("_"):
            with suppress(Exception):  # an attribute that cannot be read is not a hook
                if not is_property(plugin, name):
                    attributes.append((name, getattr(plugin, name)))
    return attributes


def is_property(plugin: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(plugin, name, None), (property, functools.cached_property))


def _faults_of(function: Any, hook: str, options: Mapping[str, Any]) -> list[str]:
    place = _place(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return [f"{place} is async; hooks are plain functions: write def {hook}(…)"]
    if options.get("wrapper") or options.get("hookwrapper"):
        return [f"{place} is a wrapper; return a value or raise Drop instead"]
    if inspect.isgeneratorfunction(function):
        return [f"{place} is a generator; return a value instead of yielding"]
    return _argument_faults(function, hook, place)


def _argument_faults(function: Any, hook: str, place: str) -> list[str]:
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
    """Return where a hook implementation is defined."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    name = getattr(inner, "__qualname__", repr(inner))
    code = getattr(inner, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else name


def implements(plugin: Any, hook: str) -> bool:
    return hasattr(getattr(plugin, hook, None), f"{PROJECT}_impl")
