"""Parts that were joined into larger ones: which they are, so that nobody reads a rollout twice.

`compacted.json` names for each joined part all that it holds. It is written before the joined part appears, which is
the moment from which the others do not count. They are removed then, here; a copy of the run may still have them.
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


def joined(folder: Path) -> dict[str, list[str]]:
    """For each joined part the parts that it holds, by their names in the run."""
    with suppress(OSError, ValueError):
        noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if isinstance(noted, dict):
            return {name: [*map(str, parts)] for name, parts in noted.items() if isinstance(parts, list)}
    return {}


def note_joined(folder: Path, new: Mapping[str, Collection[str]]) -> None:
    """Note what a part that is about to appear holds; of parts that were joined before, also what they held."""
    known = joined(folder)
    whole = {name: [*parts, *(old for part in parts for old in known.get(part, ()))] for name, parts in new.items()}
    text = json.dumps({**known, **whole}, indent=1)
    replace_file(folder / NOTE, lambda path: path.write_text(text, encoding="utf-8"))


def without_joined(folder: Path, names: Collection[str]) -> set[str]:
    """Those of the parts that no other one holds."""
    there = set(names)
    return there.difference(*(parts for name, parts in joined(folder).items() if name in there))
