"""Collect and check the panels that plugins show beside a rollout (hook `show_rollout`), for all viewers.

Nothing here raises an error into a viewer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from rollout_hookspecs import Image, Panel, Rollout, Run

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.isolation import PluginCalls
from rollout_plugins.errors import SetupError

#: Limits for the panels of one rollout; what exceeds them is cut off.
PANELS, ROWS, CELLS, CHARACTERS = 200, 1000, 50, 1_000_000


class Panels:
    """The plugins that implement `show_rollout`."""

    def __init__(self, plugins: Sequence[Any] = (), *, autoload: bool = True, strict: bool = False) -> None:
        """Load plugins by name, as `module:attribute` or as objects, in addition to the installed ones."""
        loaded = Plugins([_load(one) for one in plugins], autoload=autoload)
        self._calls = PluginCalls(loaded.manager, Counters(), strict=strict)
        self._turn = threading.Lock()  # viewers use several threads, but plugins expect one

    def of(self, rollout: Rollout, run: Run) -> tuple[Panel, ...]:
        """Return all panels of a rollout in plugin order. A plugin that fails gets a panel with its error."""
        found: list[Panel] = []
        arguments = {"rollout": rollout, "run": run}
        with self._turn:
            for impl in self._calls.implementations("show_rollout"):
                worked, panels = self._calls.call(impl, "show_rollout", arguments, _checked)
                if not worked:
                    panels = [Panel(title=impl.plugin_name, text="could not show this rollout; the log says why")]
                found += panels
        return tuple(_place(panel, len(rollout.completion)) for panel in found[:PANELS])


def _load(wanted: Any) -> Any:
    """Return the object that `module:attribute` names."""
    if not isinstance(wanted, str) or ":" not in wanted:
        return wanted
    module, _, attribute = wanted.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SetupError(f"plugin {wanted!r} cannot be loaded: {error}; give a name or module:attribute") from error


def _checked(result: Any) -> list[Panel]:
    if result is None:
        return []
    panels = [result] if isinstance(result, Panel) else list(result)
    for panel in panels:
        if not isinstance(panel, Panel):
            raise TypeError(f"returned {type(panel).__name__}, expected a list of panels or None")
    return [_cut(panel) for panel in panels[:PANELS]]


def _cut(panel: Panel) -> Panel:
    """Return the panel with values that viewers can display, cut to the limits."""
    return Panel(
        title=str(panel.title),
        text=str(panel.text)[:CHARACTERS],
        table=tuple(tuple(row[:CELLS]) for row in map(_cells, list(panel.table)[:ROWS])),
        image=panel.image if isinstance(panel.image, (Image, bytes)) else None,
        turn=panel.turn if isinstance(panel.turn, int) else None,
        replaces=bool(panel.replaces),
    )


def _cells(row: Any) -> Sequence[Any]:
    return row if isinstance(row, (list, tuple)) else (row,)


def _place(panel: Panel, turns: int) -> Panel:
    """Return the panel, placed above the conversation if it refers to a message that does not exist."""
    if panel.turn is None or 0 <= panel.turn < turns:
        return panel
    return replace(panel, turn=None, replaces=False)
