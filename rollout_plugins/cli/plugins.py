"""Implement `rollouts plugins`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rollout_plugins.cli.common import add_json, note, print_json, print_table
from rollout_plugins.engine.discover import TRAINERS, Plugins
from rollout_plugins.engine.plugin_checks import HOOKS, implements

SPARE = ("order", "hooks", "version")


def configure(parser: ArgumentParser) -> None:
    add_json(parser)


def run(options: Namespace) -> None:
    rows = listing()
    if options.json:
        print_json(rows)
        return
    shown = [{name: ", ".join(value) if name == "hooks" else value for name, value in row.items()} for row in rows]
    if shown:
        print_table(shown, spare=SPARE)
    else:
        note("no plugins are installed, not even our own: pip install rollout-plugins")


def listing() -> list[dict[str, Any]]:
    """Return every installed plugin with whether it would run. The format is stable."""
    plugins = Plugins()
    plugins.add(TRAINERS)
    order = [name for name, _ in reversed(plugins.manager.list_name_plugin())]
    for found in plugins.installed.values():
        if found.plugin is None and found.status == "available":
            plugins.peek(found)
    return [
        {
            "name": found.name,
            "version": found.version,
            "source": found.distribution,
            "hooks": [hook for hook in HOOKS if found.plugin is not None and implements(found.plugin, hook)],
            "order": order.index(found.name) + 1 if found.name in order else None,
            "status": found.status,
            "reason": found.reason,
        }
        for found in plugins.installed.values()
    ]
