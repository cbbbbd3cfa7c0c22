"""What of a run cannot be read: warned of when it is found, with how many rollouts it may hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import DamageWarning, RunError
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, open_run_file


class Damaged(dict[str, str]):
    """Files of a run, or single rollouts, that cannot be read, and why. Python is warned of each."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __setitem__(self, name: str, why: str) -> None:
        is_new = name not in self
        super().__setitem__(name, why)
        if is_new:
            warnings.warn(f"{display_place(self._folder)}: {self.told(name)}", DamageWarning, stacklevel=2)

    def told(self, name: str) -> str:
        """What is left out, and why, in one line."""
        return f"{name} cannot be read and is left out{self._rows(name)}: {self[name]}"

    def _rows(self, name: str) -> str:
        path = next((path for node in nodes_of(self._folder) if (path := node / name).is_file()), None)
        if path is None or not name.startswith("data/"):
            return ""
        rows, size = _rows_and_bytes(path)
        if rows:
            return f", {count(rows, 'rollout')}"
        others = [_rows_and_bytes(other) for other in path.parent.glob("*.parquet")]
        rows, taken = sum(rows for rows, _ in others), sum(bytes_ for rows, bytes_ in others if rows)
        return f", perhaps {count(max(round(size * rows / taken), 1), 'rollout')}" if rows else f", {size:,} bytes"


def _rows_and_bytes(path: Path) -> tuple[int, int]:
    """How many rollouts a file says that it holds, in how many bytes."""
    try:
        return pq.read_metadata(open_run_file(path)).num_rows, path.stat().st_size
    except Exception:  # damaged as well, or a journal
        return 0, path.stat().st_size


class UnreadableError(Exception):
    """The files could not be read; the caller finds out which one."""


def gist(error: Exception) -> str:
    """What an error says, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def fault(path: Path, kinds: Mapping[str, pa.DataType], *, whole: bool) -> str:
    """What is wrong with a Parquet file: its footer and columns, or all of it. Empty if nothing is, or it is gone."""
    try:
        with pq.ParquetFile(open_run_file(path), memory_map=True) as file:
            for group in range(file.num_row_groups if whole else 0):
                file.read_row_group(group)
            return wrong_columns(file.schema_arrow, kinds)
    except FileNotFoundError:
        return ""
    except RunError:  # it cannot be reached, which says nothing of the file
        raise
    except Exception as error:
        return gist(error)


@contextmanager
def left_alone(path: Path, damaged: dict[str, str]) -> Iterator[None]:
    """Where the work on a Parquet file fails because it is damaged, it is noted, and the work on others goes on."""
    try:
        yield
    except Exception:
        if not (why := fault(path, TYPES, whole=True)):
            raise
        damaged[file_name(path)] = why


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
