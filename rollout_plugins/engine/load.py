"""From an entry point, a class or an object to a plugin that can be registered; errors say what to give instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from rollout_plugins.errors import SetupError, suggest


def load(name: str, given: Any, entry: EntryPoint | None, options: Mapping[str, Any]) -> Any:
    """The plugin itself: what was given or its entry point names, instantiated if that is a class."""
    loaded = _imported(entry) if entry is not None and given is None else given
    if isinstance(loaded, type):
        return _instantiate(loaded, name, options)
    if options:
        raise SetupError(f"config has options for plugin {name!r}, which is not a class and takes none")
    return loaded


def options_of(entry: EntryPoint | None) -> list[str]:
    """What an installed plugin takes, if it is a class."""
    loaded = None if entry is None else _imported(entry)
    return [parameter.name for parameter in _parameters(loaded)] if isinstance(loaded, type) else []


def _imported(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        where = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        raise SetupError(
            f"plugin {entry.name!r} of {where} does not import: {type(error).__name__}: {error}"
        ) from error


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
