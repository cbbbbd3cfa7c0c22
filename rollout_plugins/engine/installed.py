"""Find installed plugins through their entry points, without importing them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

from rollout_hookspecs import PROJECT

from rollout_plugins.engine.plugin_checks import accepted_options

logger = logging.getLogger("rollout_plugins")

DISTRIBUTION = "rollout-plugins"
DEFAULT_TRACE = "trace"
"""The name of the built-in plugin that formats traces. It has no entry point, since it always runs."""


@dataclass
class Installed:
    """An installed plugin, or one that was passed as an object, and whether it runs."""

    name: str
    entry: EntryPoint | None = None
    distribution: str = ""
    plugin: Any = None
    status: str = "available"
    reason: str = ""
    part_names: tuple[str, ...] = ()
    """Names under which the parts of the plugin are registered."""

    @property
    def version(self) -> str:
        dist = self.entry.dist if self.entry else None
        return dist.version if dist else ""

    @property
    def is_built_in(self) -> bool:
        return self.distribution == DISTRIBUTION


def discover() -> dict[str, Installed]:
    """Return all installed plugins by name. The names of built-in plugins are reserved."""
    installed: dict[str, Installed] = {}
    distribution_of = functools.cache(_distribution_name)  # reading a name parses all metadata of the distribution

    def order(entry: EntryPoint) -> tuple[bool, str, str]:
        distribution = distribution_of(entry.dist)
        return distribution != DISTRIBUTION, entry.name, distribution

    for entry in sorted(entry_points(group=PROJECT), key=order):
        distribution = distribution_of(entry.dist)
        first = installed.setdefault(entry.name, Installed(entry.name, entry, distribution))
        if distribution in {"", first.distribution}:
            continue
        if first.is_built_in:
            logger.warning("%s", _reserved(entry.name, distribution))
        else:
            logger.warning(
                "two installed plugins are named %r, one of %s and one of %s; the first one is used",
                entry.name,
                first.distribution,
                distribution,
            )
    if DEFAULT_TRACE in installed:
        reserved = installed[DEFAULT_TRACE]
        reserved.status, reserved.reason = "failed", _reserved(DEFAULT_TRACE, reserved.distribution)
        logger.warning("%s", reserved.reason)
    return dict(sorted(installed.items()))


def _reserved(name: str, distribution: str) -> str:
    return (
        f"plugin {name!r} of {distribution} was skipped: {name!r} is the name of a built-in plugin; "
        "give its entry point another name"
    )


def _distribution_name(dist: Distribution | None) -> str:
    return dist.name if dist else ""


def known_sinks() -> list[str]:
    """Return the names of built-in sinks and of third-party plugins, any of which may be a sink."""
    entries = [(plugin, plugin.entry.module) for plugin in discover().values() if plugin.entry is not None]
    return [f.name for f, module in entries if not f.is_built_in or module.startswith("rollout_plugins.sinks.")]


def options_of(name: str) -> list[str]:
    """Return the options of an installed plugin's class; none if it is not a class or does not import."""
    entry = discover()[name].entry
    return accepted_options(entry) if entry else []


def name_of(plugin: Any, installed: Mapping[str, Installed]) -> str:
    """Return the name of a plugin object or class: that of its entry point, its own `name`, or that of its class."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    address = f"{kind.__module__}:{kind.__qualname__}"
    for other in installed.values():
        if other.entry is not None and other.entry.value == address:
            return other.name
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    return str(getattr(plugin, "__name__", kind.__name__)).rpartition(".")[2].lower()


def is_made_from(plugin: Any, installed: Installed) -> bool:
    """Return whether an object may be this installed plugin, because one of its classes is in its package."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    modules = {getattr(plugin, "__name__", ""), *(base.__module__ for base in kind.__mro__)}
    packages = {str(module).partition(".")[0] for module in modules}
    return installed.entry is None or installed.entry.module.partition(".")[0] in packages
