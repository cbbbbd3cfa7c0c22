"""Whether a plugin's hooks can work: pluggy itself would ignore most mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollout_hookspecs import PROJECT, hooks

from rollout_plugins.errors import SetupError, suggest

HOOKS = tuple(name for name, value in vars(hooks).items() if hasattr(value, f"{PROJECT}_spec"))


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
            faults.append(f"{_place(value)} implements {hook!r}, which is not a hook; {suggest(hook, HOOKS)}")
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
            with suppress(Exception):  # what can't be read is not a hook
                if not is_property(plugin, name):
                    found.append((name, getattr(plugin, name)))
    return found


def is_property(plugin: Any, name: str) -> bool:
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


def implements(plugin: Any, hook: str) -> bool:
    return hasattr(getattr(plugin, hook, None), f"{PROJECT}_impl")
