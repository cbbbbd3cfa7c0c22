"""Detect damaged files of a run, and warn about each with an estimate of the rollouts it holds."""

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
    """The damaged files and rollouts of a run, with the reason for each. A new entry emits a DamageWarning."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __setitem__(self, name: str, why: str) -> None:
        is_new = name not in self
        super().__setitem__(name, why)
        if is_new:
            warnings.warn(f"{display_place(self._folder)}: {self.describe(name)}", DamageWarning, stacklevel=2)

    def describe(self, name: str) -> str:
        """Return one line that names a damaged file or rollout, what is lost with it, and why."""
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
    """Return the number of rollouts in a file, or 0 if unknown, and its size in bytes."""
    try:
        return pq.read_metadata(open_run_file(path)).num_rows, path.stat().st_size
    except Exception:  # the file is damaged too, or it is a journal
        return 0, path.stat().st_size


class UnreadableError(Exception):
    """Some file could not be read; the caller has to find out which."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def find_fault(path: Path, kinds: Mapping[str, pa.DataType], *, every_page: bool) -> str:
    """Return what is wrong with a Parquet file, or "" if it is fine or missing.

    Checks the footer and the column types; with `whole`, reads every page.
    """
    try:
        with pq.ParquetFile(open_run_file(path), memory_map=True) as file:
            for group in range(file.num_row_groups if every_page else 0):
                file.read_row_group(group)
            return wrong_columns(file.schema_arrow, kinds)
    except FileNotFoundError:
        return ""
    except RunError:  # the file is unreachable, which does not mean that it is damaged
        raise
    except Exception as error:
        return first_line(error)


@contextmanager
def skip_if_damaged(path: Path, damaged: dict[str, str]) -> Iterator[None]:
    """If the work in this context fails because the Parquet file is damaged, add it to `damaged` and continue."""
    try:
        yield
    except Exception:
        if not (why := find_fault(path, TYPES, every_page=True)):
            raise
        damaged[file_name(path)] = why


def wrong_columns(schema: pa.Schema, kinds: Mapping[str, pa.DataType]) -> str:
    """Return why a file with these columns is not one of ours, or "" if it is."""
    if "id" not in schema.names:
        return "it has no column id"
    for name in (name for name in kinds if name in schema.names):
        if not _is_compatible(schema.field(name).type, kinds[name]):
            return f"column {name} is {schema.field(name).type}, not {kinds[name]}"
    return ""


def _is_compatible(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return True if a column's type is acceptable. Nested types may have other fields, from a later version."""
    if pa.types.is_nested(expected):
        return bool(pa.types.is_nested(actual))
    text = {pa.string(), pa.large_string(), pa.string_view()}
    return actual == expected or (expected in text and actual in text)
