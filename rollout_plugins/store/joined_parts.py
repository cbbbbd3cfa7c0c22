"""Keep the list of parts that were joined into larger ones, so that no rollout is read twice.

`compacted.json` lists for each joined part the parts that it holds. The list is written before the joined part
appears. From then on, the old parts no longer count and are removed here; a copy of the run may still have them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from rollout_plugins.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

NOTE = "compacted.json"


def read_joined_parts(folder: Path) -> dict[str, list[str]]:
    """Return the names of the parts that each joined part holds, by the joined part's name."""
    with suppress(OSError, ValueError):
        listing = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if isinstance(listing, dict):
            return {name: [*map(str, parts)] for name, parts in listing.items() if isinstance(parts, list)}
    return {}


def record_joined_parts(folder: Path, new: Mapping[str, Collection[str]]) -> None:
    """Record which parts a joined part holds before it appears, including the parts joined into those before."""
    recorded = read_joined_parts(folder)
    expanded = {
        name: [*parts, *(earlier for part in parts for earlier in recorded.get(part, ()))]
        for name, parts in new.items()
    }
    text = json.dumps({**recorded, **expanded}, indent=1)
    replace_file(folder / NOTE, lambda path: path.write_text(text, encoding="utf-8"))


def remove_contained_parts(folder: Path, names: Collection[str]) -> set[str]:
    """Return the parts that no other part holds."""
    present = set(names)
    return present.difference(*(parts for name, parts in read_joined_parts(folder).items() if name in present))
