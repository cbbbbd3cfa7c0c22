"""Parts that were removed from a run's folder because they are safe at another place."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from rollout_plugins.store.joined_parts import joined
from rollout_plugins.system.files import replace_file
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOTE = ".moved.json"


def moved(folder: Path) -> dict[str, str]:
    """Where parts are that this folder had, by their names in the run."""
    with suppress(OSError, ValueError):
        noted = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if isinstance(noted, dict):
            return {str(name): str(url) for name, url in noted.items()}
    return {}


def gone(folder: Path) -> dict[str, str]:
    """Where those of them are that are not here again, nor in a part that holds them."""
    found = {}
    for node in nodes_of(folder):
        noted = moved(node)
        joins = {name: parts for name, parts in joined(node).items() if name in noted or (node / name).exists()}
        held = set(chain.from_iterable(joins.values()))
        found.update({name: url for name, url in noted.items() if name not in held and not (node / name).exists()})
    return found


def note_moved(folder: Path, url: str, names: Iterable[str]) -> None:
    """Note that these parts are in the run's folder at this URL. Before they are removed here, never after."""
    noted = {**moved(folder), **dict.fromkeys(names, url)}
    replace_file(folder / _NOTE, lambda path: path.write_text(json.dumps(noted, indent=1), encoding="utf-8"))
