"""The sums of a run's sealed parts, put together: opening a run costs its generations then, however many files it has.

Whoever opens a run of many files keeps them in its folder, in `.sums`. That is a copy of what the parts say, which
counts while each of them is there as it was. Nothing is lost with it, and a folder that cannot be written to has none.
"""

# ruff: noqa: S608 - SQL is put together from names of our own
from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from rollout_plugins.content.replacing import replace_file
from rollout_plugins.reading.summary import SQUARES
from rollout_plugins.store import sums

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = ".sums"
Versions: TypeAlias = "Mapping[Path, tuple[int, int]]"
"""The size of each file, and when it was changed."""
_OF = "split, attempt, step, generation"
_KEYS = {"generations": _OF, "groups": f'{_OF}, "group"', "rewards": f"{_OF}, name"}
_NOT_ADDED = {
    "most_tokens": "max(most_tokens)",
    "reward_min": "min(reward_min) filter (where scored > 0)",
    "reward_max": "max(reward_max) filter (where scored > 0)",
    "least": "min(least)",
    "most": "max(most)",
    "mean": "any_value(middle)",
    "squares": SQUARES,
}
#: From the first to the last number of whole groups without one that is left out. No two parts have the same, so each
#: begins and ends where a part's do. Looking at those ends alone is what makes it quick.
_SPANS = f"""
select {_OF}, first_group, if(ends, last_group, lead(last_group) over ends_of) as last_group
from (
  select *, coalesce(first_group > before + 1, true) as begins, coalesce(after > last_group + 1, true) as ends
  from (
    select *, lag(last_group) over numbers as before, lead(first_group) over numbers as after
    from part_generations where first_group is not null
    window numbers as (partition by {_OF} order by first_group)
  )
) where begins or ends window ends_of as (partition by {_OF} order by first_group) qualify begins"""


class Gathered(NamedTuple):
    """Sums of several parts, packed as those of one."""

    of: Versions
    packed: tuple[bytes, ...]
    """None or one."""

    def counts(self, files: Versions) -> bool:
        """Whether every part that it is of is there as it was."""
        return all(files.get(path) == version for path, version in self.of.items())


NOTHING = Gathered({}, ())


def queries() -> sums.Sums:
    """SQL for the sums of one part that has what `part_generations`, `part_groups` and `part_rewards` have."""
    generations, groups, rewards = map(_query, sums.LAYOUT)
    return sums.Sums(f"{generations} union all by name {_SPANS}", groups, rewards)


def _query(name: str) -> str:
    keys, layout = _KEYS[name], sums.LAYOUT[name]
    figures = {
        column: _NOT_ADDED.get(column, f"sum({column})")
        for column, kind in layout.items()
        if kind in {"whole", "real"}
    }
    told = ", ".join(f"{sql}::{'double' if layout[c] == 'real' else 'bigint'} as {c}" for c, sql in figures.items())
    return f"select {keys}, {told} from ({_with_middle(name, keys)}) group by {keys}"


def _with_middle(name: str, keys: str) -> str:
    """Each row with the mean of all that have its keys. A join with few rows is quicker than a window over many."""
    if "mean" not in sums.LAYOUT[name]:
        return f"from part_{name}"
    same = " and ".join(f"p.{key.strip()} is not distinct from m.{key.strip()}" for key in keys.split(","))
    middle = f"select {keys}, sum(finite * mean) / nullif(sum(finite), 0) as middle from part_{name} group by {keys}"
    return f"select p.*, m.middle from part_{name} p join ({middle}) m on {same}"


def kept(folder: Path, files: Versions) -> Gathered:
    """What the folder has for parts that are among these files; nothing when one of them is not, or it is damaged."""
    with suppress(OSError, ValueError):
        listing, _, packed = (folder / FILE).read_bytes().partition(b"\n")
        if sums.is_of(packed, crc32(listing)):
            there = {_name(folder, path): path for path in files}
            told = json.loads(listing)
            found = Gathered({there[name]: tuple(told[name]) for name in told if name in there}, (packed,))
            if len(found.of) == len(told) and found.counts(files):
                return found
    return NOTHING


def keep(folder: Path, files: Versions, found: sums.Sums) -> Gathered:
    """Write what these files say together."""
    listing = json.dumps({_name(folder, path): version for path, version in files.items()}).encode()
    packed = sums.as_one(found, crc32(listing))
    with suppress(OSError):  # opening takes longer the next time
        replace_file(folder / FILE, lambda path: path.write_bytes(listing + b"\n" + packed), sync=False)
    return Gathered(files, (packed,))


def _name(folder: Path, path: Path) -> str:
    """What a part is called in the run's folder, wherever that is; of other folders its path."""
    return str(path).removeprefix(f"{folder}{os.sep}")
