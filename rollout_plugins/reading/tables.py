"""Provide the files of runs as read-only DuckDB tables, each created when it is needed."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa

from rollout_plugins.reading import merged_sums as together
from rollout_plugins.reading import sql_pieces as sql
from rollout_plugins.reading.damage import UnreadableError
from rollout_plugins.reading.part_sums import PartSums, apart
from rollout_plugins.reading.small_files import MANY, SmallFiles
from rollout_plugins.reading.sql_pieces import listed, literal
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.parts import Part
from rollout_plugins.store.schema import LIGHT, SCHEMA
from rollout_plugins.store.sums import LAYOUT, Sums
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import SCHEME, duckdb_path, is_remote, is_remote_file, remote_reader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# Each thread has buffers of its own, and a run should be readable beside a training that needs the memory.
MAX_THREADS = 4
_JOINS_ARROW = int(duckdb.__version__.partition(".")[0]) >= 2
_FILE = "enum_code(filename::file_)::int"


class Memory(NamedTuple):
    """Caches of one run's sealed files, which survive a `refresh()`."""

    small: SmallFiles
    sums: PartSums


@dataclass(frozen=True, slots=True)
class Source:
    """One run's files, and the attempts that superseded some of its rollouts."""

    folder: Path
    parts: Sequence[Part]
    tables: Mapping[Path, pa.Table]
    """The rows of the journals."""
    memory: Memory
    restarts: Sequence[tuple[int, int]]
    """(attempt, step it resumed from)."""
    reward_names: Sequence[str]
    damaged: dict[str, str]

    @property
    def parquet_files(self) -> list[Path]:
        return [part.path for part in self.parts if not part.is_journal]


class Tables:
    """The tables `light_files` and `all_files` of all rows, and `generations`, `groups`, `rewards` of their sums."""

    def __init__(self, sources: Sequence[Source], files: Sequence[Path], *, uneven: bool) -> None:
        """`files`: all numbered files in order, perhaps more than the sources have now.

        `uneven`: whether files may lack columns; then all files are opened first to find out.
        """
        self.sources, self.files, self._uneven = sources, files, uneven
        self._numbers = {path: number for number, path in enumerate(files)}
        self.has_many_files = sum(len(source.parts) for source in sources) >= MANY
        self.connection = self._connect()
        names = ", ".join(literal(duckdb_path(path)) for path in self._numbers) or "''"
        self.connection.execute(f"create type file_ as enum ({names})")
        self.table("empty", pa.Table.from_batches([], SCHEMA))  # `empty_table` would import pandas
        for run, source in enumerate(sources):
            self._journal(run, source)
        self.add_sums()

    def add_light(self) -> None:
        """Create the table of numbers and names of every rollout."""
        for source in self.sources:
            if far := [path for path in source.parquet_files if is_remote_file(path)]:
                remote_reader().fetch(far, LIGHT)
        held = {run: self._small(run, source) for run, source in enumerate(self.sources) if not self._uneven}
        self.view("light_files", self._union(LIGHT, held))

    def add_whole(self) -> None:
        """Create the table of complete rollouts."""
        self.view("all_files", self._union(SCHEMA.names, {}))

    def add_sums(self, *, merge_groups: bool = True) -> None:
        """Create the tables of sums; without `whole`, each group has a row of its own."""
        self._register(
            "",
            [
                self._sums_of(source) if merge_groups else apart(source.parquet_files, source.tables)
                for source in self.sources
            ],
        )

    def _sums_of(self, source: Source) -> Sums:
        return source.memory.sums.of(source.folder, source.parquet_files, source.tables, self._merge)

    def _merge(self, sums: Sums) -> Sums | None:
        """Return the sums of many parts merged into one, or None if parts share groups."""
        spans = together.spans(sums)
        if spans is None:
            return None
        self._register("part_", [sums])
        with suppress(duckdb.OutOfRangeException):  # older versions report sums beyond the largest integer as an error
            merged = Sums(*(self.connection.sql(query).to_arrow_table() for query in together.queries()))
            generations = pa.concat_tables([merged.generations, spans], promote_options="default")
            return merged._replace(generations=generations)
        return None

    def _register(self, prefix: str, sums_by_run: Sequence[Sums]) -> None:
        """Create the tables of the sums of every run."""
        for name in LAYOUT:
            tables = [
                table.append_column("_run", pa.repeat(integers([run])[0], table.num_rows))
                for run, sums in enumerate(sums_by_run)
                for table in [getattr(sums, name)]
            ]
            self.table(prefix + name, pa.concat_tables(tables))

    def files_with(self, generations: Sequence[int]) -> list[int] | None:
        """Return the indices of files that may have rollouts of these sorted generations, or None for all files."""
        lacking = {
            path
            for source in self.sources
            for path in source.parquet_files
            if source.memory.sums.lacks(path, generations)
        }
        return [number for path, number in self._numbers.items() if path not in lacking] if lacking else None

    def kinds(self, query: str) -> dict[str, str]:
        """Return the types of a query's columns."""
        relation = self.connection.sql(query)
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def view(self, name: str, query: str) -> None:
        """Create or replace a view."""
        self.connection.execute(f"create or replace temp view {name} as {query}")

    def table(self, name: str, table: pa.Table) -> None:
        """Register Arrow data as a table, or copy it for a DuckDB version that cannot join Arrow data."""
        if _JOINS_ARROW:
            self.connection.register(name, table)
        else:
            self._copy(name, table)

    def _copy(self, name: str, table: pa.Table) -> None:
        """Copy Arrow data into a DuckDB table, which takes time but makes queries faster."""
        self.connection.register("arrow_", table.combine_chunks())  # each chunk would become a row group
        self.connection.execute(f"create or replace temp table {name} as from arrow_")
        self.connection.unregister("arrow_")

    def _journal(self, run: int, source: Source) -> None:
        """Create a table of the rows of a run's journals, with their places."""
        tables = []
        for path, table in source.tables.items():
            file = pa.repeat(pa.scalar(self._numbers[path], pa.int32()), table.num_rows)
            tables.append(table.append_column("_file", file).append_column("_row", integers(range(table.num_rows))))
        if tables:
            self.table(f"journals_{run}", pa.concat_tables(tables, promote_options="permissive"))

    def _small(self, run: int, source: Source) -> frozenset[Path]:
        """Create a table of the run's small files, and return which files it has."""

        def read(files: Sequence[Path]) -> pa.Table:
            (query,) = self._parquet(files, LIGHT, "filename, file_row_number as _row")
            return self.connection.sql(query).to_arrow_table()

        tables, paths = [], set[Path]()
        for files, table in source.memory.small.light(source.parquet_files, read):
            file = integers(map(self._numbers.__getitem__, files)).take(table["_file"]).cast(pa.int32())
            tables.append(table.set_column(table.schema.get_field_index("_file"), "_file", file))
            paths.update(files)
        if tables:
            self._copy(f"small_{run}", pa.concat_tables(tables))
        return frozenset(paths)

    def _union(self, names: Sequence[str], in_memory: Mapping[int, Collection[Path]]) -> str:
        """Return SQL that selects columns from every file."""
        no_rows = f"select {listed(names)}, null::int as _run, null::int as _file, null::bigint as _row from empty"
        # Without it, DuckDB pushes more of a query down into the files.
        pieces = [no_rows] * self._uneven
        for run, source in enumerate(self.sources):
            files_in_memory = in_memory.get(run, ())
            others = [path for path in source.parquet_files if path not in files_in_memory]
            pieces += self._parquet(others, names, f"{run} as _run, {_FILE} as _file, file_row_number as _row")
            tables = [f"small_{run}"] * bool(files_in_memory) + [f"journals_{run}"] * bool(source.tables)
            pieces += [f"select {listed(names)}, {run} as _run, _file, _row from {table}" for table in tables]
        return " union all by name ".join(pieces or [no_rows])

    def _parquet(self, files: Sequence[Path], names: Sequence[str], place: str) -> Iterator[str]:
        """Return SQL that selects columns from Parquet files, if there are any.

        `where`: SQL for the columns of a row's place.
        """
        if not files:
            return
        columns = "* exclude (filename, file_row_number)" if self._uneven else listed(names)
        query = f"select {columns}, {place} from {sql.parquet(files, uneven=self._uneven)}"
        kinds, expected = self.kinds(query), self.kinds("from empty")
        for name in names:
            kind = kinds.get(name, expected[name])
            if kind != expected[name] and not (self._uneven and kind.endswith((")", "[]"))):
                raise UnreadableError(f"column {name} is {kind}, not {expected[name]}")
        yield query

    def _connect(self) -> Any:
        connection = duckdb.connect(":memory:")
        connection.execute(f"set threads = {min(os.cpu_count() or 1, MAX_THREADS)}")
        for setting in (
            f"parquet_metadata_cache = {not self.has_many_files}",  # it takes 100 kB for each file, permanently
            "async_threads = 0",  # these are threads for remote files
            "enable_external_file_cache = false",  # it would store remote files on disk
            "enable_progress_bar = false",  # without ipywidgets, it raises an error in a notebook
        ):
            with suppress(
                duckdb.CatalogException, duckdb.InvalidInputException
            ):  # another version of DuckDB has no such setting
                connection.execute(f"set {setting}")
        connection.execute(f"set temp_directory = {literal(str(Path(tempfile.gettempdir()) / 'rollouts-duckdb'))}")
        nodes = [node for source in self.sources for node in nodes_of(source.folder)]
        folders = [name for node in nodes for name in (str(node), sql.pattern(node))]
        if remote_nodes := [node for node in nodes if is_remote(node)]:
            connection.register_filesystem(remote_reader().filesystem())
            folders += [f"{SCHEME}://{folder}" for folder in remote_nodes]
        try:
            connection.execute(f"set allowed_directories = [{', '.join(map(literal, folders))}]")
        # DuckDB 1.1 can only lock out all files, ours included.
        except duckdb.CatalogException:
            pass
        else:
            connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        return connection
