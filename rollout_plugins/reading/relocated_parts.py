"""Remember parts that were removed from a run's folder because another place has them."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.system.files import replace_file
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOTE = ".moved.json"


def relocated_urls(folder: Path) -> dict[str, str]:
    """Return the URLs of parts that this folder once had, by their names."""
    with suppress(OSError, ValueError):
        urls = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if isinstance(urls, dict):
            return {str(name): str(url) for name, url in urls.items()}
    return {}


def missing_urls(folder: Path) -> dict[str, str]:
    """Return the URLs of those relocated parts that are not here again, alone or in a joined file."""
    urls = {}
    for node in nodes_of(folder):
        relocated = relocated_urls(node)
        joins = {
            name: parts
            for name, parts in read_joined_parts(node).items()
            if name in relocated or (node / name).exists()
        }
        joined_names = set(chain.from_iterable(joins.values()))
        urls.update(
            {name: url for name, url in relocated.items() if name not in joined_names and not (node / name).exists()}
        )
    return urls


def record_relocation(folder: Path, url: str, names: Iterable[str]) -> None:
    """Record that these parts are at this URL. Call it before they are removed here, so that none is ever lost."""
    urls = {**relocated_urls(folder), **dict.fromkeys(names, url)}
    replace_file(folder / _NOTE, lambda path: path.write_text(json.dumps(urls, indent=1), encoding="utf-8"))
