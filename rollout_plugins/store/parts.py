"""The files of a run: which there are, and what is wrong with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.content.elsewhere import opened
from rollout_plugins.content.nodes import nodes_of
from rollout_plugins.errors import RunError
from rollout_plugins.store.compacted import without_joined
from rollout_plugins.store.schema import FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TYPES: dict[str, pa.DataType] = dict(FIELDS)


class UnreadableError(Exception):
    """The files could not be read; the caller finds out which one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rollouts."""

    folder: Path
    """The run's."""
    path: Path

    @property
    def name(self) -> str:
        return file_name(self.path)

    @property
    def is_journal(self) -> bool:
        return self.path.suffix == ".arrows"

    @property
    def journal(self) -> Part:
        """The journal this Parquet file was made of; usually removed."""
        return Part(self.folder, self.path.with_suffix(".arrows"))


def find_parts(folder: Path) -> list[Part]:
    """The parts of a run, in writing order; of a journal and the Parquet file made of it, the Parquet file."""
    return [Part(folder, path) for node in nodes_of(folder) for path in _paths(node)]


def _paths(node: Path) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in sorted((node / "data").glob("*/*.*"), key=lambda path: path.parts):
        numbers = path.stem.split("-")
        is_part = path.suffix in {".arrows", ".parquet"} and len(numbers) == 3
        if is_part and all(number.isascii() and number.isdigit() for number in numbers):
            found[path.with_suffix("")] = path  # sorted: .parquet comes after .arrows and wins
    kept = without_joined(node, set(map(file_name, found.values())))
    return [path for path in found.values() if file_name(path) in kept]


def file_name(path: Path) -> str:
    """What a file is called in its run: other splits and producers have files of the same name."""
    return "/".join(path.parts[-3:])


def gist(error: Exception) -> str:
    """What an error says, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def fault(path: Path, kinds: Mapping[str, pa.DataType], *, whole: bool) -> str:
    """What is wrong with a Parquet file: its footer and columns, or all of it. Empty if nothing is, or it is gone."""
    try:
        with pq.ParquetFile(opened(path), memory_map=True) as file:
            for group in range(file.num_row_groups if whole else 0):
                file.read_row_group(group)
            return wrong_columns(file.schema_arrow, kinds)
    except FileNotFoundError:
        return ""
    except RunError:  # it cannot be reached, which says nothing of the file
        raise
    except Exception as error:
        return gist(error)


def wrong_columns(found: pa.Schema, kinds: Mapping[str, pa.DataType]) -> str:
    """What keeps a file with these columns from being one of ours; empty when nothing does."""
    if "id" not in found.names:
        return "it has no column id"
    for name in (name for name in kinds if name in found.names):
        if not _alike(found.field(name).type, kinds[name]):
            return f"column {name} is {found.field(name).type}, not {kinds[name]}"
    return ""


def _alike(found: pa.DataType, kind: pa.DataType) -> bool:
    """Nested types are compared by kind alone: a later version may add to their fields."""
    if pa.types.is_nested(kind):
        return bool(pa.types.is_nested(found))
    text = {pa.string(), pa.large_string(), pa.string_view()}
    return found == kind or (kind in text and found in text)
