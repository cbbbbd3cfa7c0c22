"""Apply a function to every rollout of a run in batches, and store its results as annotations.

The function takes an Arrow table of some columns and returns a column, or several by name, with a value for each row.
It runs on all cores of this machine, or with Ray Data on many machines that can read the same files.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError, suggest
from rollout_plugins.reading.damage import UnreadableError, first_line
from rollout_plugins.reading.engines import quiet_ray, ray_files, start_ray
from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.join_parts import locate
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.store.write import read_journal
from rollout_plugins.system.remote_runs import is_remote_file, open_run_file

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: The number of rollouts in a batch.
BATCH = 1024
Function = Callable[[pa.Table], Any]
Progress = Callable[[int, int], object]
#: How Ray reports an error of ours that was raised in one of its workers.
_RAISED_IN_RAY = re.compile(rf"{re.escape(RunError.__module__)}\.RunError: (.+)")
_NO_ROWS = pa.table({"id": pa.array([], pa.large_string())})


def annotate_by(
    run: StoredRun,
    producer: str,
    function: Function,
    *,
    columns: Sequence[str],
    ray: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Annotate every rollout with the result of a function, and return the number of annotated rollouts.

    `columns`: the columns that the function receives. `ray`: the address of a Ray cluster, or `local` to start one
    here.
    """
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise RunError(f"a batch has no column {unknown[0]!r}; {suggest(unknown[0], TYPES)}")
    applied = partial(apply, function, columns=tuple(columns))
    damaged: dict[str, str] = {}
    if ray:
        tables = _with_ray(run, partial(_on_ray, run, applied, columns, progress), ray, damaged)
    else:
        tables = _on_all_cores(run, applied, progress, damaged)
    rows = pa.concat_tables([_NO_ROWS, *tables], promote_options="permissive")
    written = run.annotate(producer, rows.to_pylist()) if rows.num_rows else 0
    # Annotating refreshes the run, which clears its damaged files.
    for name, why in damaged.items():
        run.health.damaged[name] = why
    return written


def apply(function: Function, table: pa.Table, *, columns: Sequence[str]) -> pa.Table:
    """Return the function's results for a batch as a table, with the ids of the rollouts."""
    result = _call(function, with_columns(table, columns))
    values = result if isinstance(result, Mapping) else {"value": result}
    if isinstance(result, pa.Table):
        values = dict(zip(result.column_names, result.columns, strict=True))
    wrong_lengths = [name for name, column in values.items() if len(column) != table.num_rows]
    if wrong_lengths:
        name = wrong_lengths[0]
        raise RunError(
            f"the function returned {len(values[name])} values of {name!r} for {table.num_rows} rollouts; "
            "return one value for each rollout"
        )
    return pa.table({"id": table["id"], **values})


def _call(function: Function, table: pa.Table) -> Any:
    try:
        return function(table)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise RunError(f"the function raised {error!r} at {where}") from error


def _on_all_cores(
    run: StoredRun, applied: Function, progress: Progress | None, damaged: dict[str, str]
) -> list[pa.Table]:
    """Apply the function to each file in a process of its own, because Python code holds the interpreter lock."""
    files = [part.path for part in find_parts(run.dir)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(files) or 1), mp_context=context) as pool:
        path_by_future = {pool.submit(_apply_to_file, path, applied): path for path in files}
        results: dict[Path, pa.Table] = {}
        for future in as_completed(path_by_future):
            path = path_by_future[future]
            try:
                results[path] = future.result()
            except UnreadableError as error:
                damaged[file_name(path)], results[path] = str(error), _NO_ROWS
            if progress:
                progress(len(results), len(files))
    return [results[path] for path in files]


def _apply_to_file(path: Path, applied: Function) -> pa.Table:
    """Return the function's results for the rollouts of one file."""
    return pa.concat_tables([*map(applied, _readable(path))] or [_NO_ROWS])


def _readable(path: Path) -> Iterator[pa.Table]:
    """Yield the batches of a file, or raise UnreadableError if the file is damaged."""
    try:
        yield from _batches(path)
    except RunError:
        raise
    except Exception as error:
        raise UnreadableError(first_line(error)) from error


def _batches(path: Path) -> Iterator[pa.Table]:
    if path.suffix == ".arrows" and path.exists():
        batches: Iterable[pa.RecordBatch] = read_journal(path).to_batches(max_chunksize=BATCH)
        yield from (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        return
    with _parquet_of(path) as (file, start, rows):
        offset = -start
        for batch in file.iter_batches(BATCH):
            first, end = max(-offset, 0), min(rows - offset, batch.num_rows)
            if first < end:
                yield pa.Table.from_batches([batch.slice(first, end - first)])
            offset += batch.num_rows


@contextmanager
def _parquet_of(path: Path) -> Iterator[tuple[pq.ParquetFile, int, int]]:
    """Open the Parquet file that holds the rows of a part; yield it with the index of the first row and their number.

    After the parts were listed, another process may have sealed a journal or joined a part into a larger one.
    """
    path = path.with_suffix(".parquet")
    while not is_remote_file(path) and not path.exists() and (location := locate(path)) is not None:
        with suppress(FileNotFoundError), pq.ParquetFile(location.path) as file:  # may be joined again
            yield file, location.start, location.rows
            return
    with pq.ParquetFile(open_run_file(path)) as file:
        yield file, 0, file.metadata.num_rows


def _with_ray(
    run: StoredRun, work: Callable[[], list[pa.Table]], address: str, damaged: dict[str, str]
) -> list[pa.Table]:
    """Run `work` on a Ray cluster; if it fails because of damaged files, run it again without them."""
    start_ray(address)
    with quiet_ray():
        try:
            return work()
        except Exception as error:
            if raised := _RAISED_IN_RAY.search(str(error)):
                raise RunError(raised[1]) from None
            damaged_before = set(run.health.damaged)
            run.health.verify()
            damaged.update(run.health.damaged)
            if not run.health.damaged.keys() - damaged_before:
                raise RunError(f"Ray: {str(error).strip().rpartition(chr(10))[2]}") from error
            return work()


def _on_ray(run: StoredRun, applied: Function, columns: Sequence[str], progress: Progress | None) -> list[pa.Table]:
    names = list(dict.fromkeys(["id", *columns]))
    results = ray_files(run, names).map_batches(applied, batch_format="pyarrow", batch_size=BATCH)
    rows, tables = run.count(superseded=True), []
    for table in results.iter_batches(batch_format="pyarrow", batch_size=None):
        tables.append(table)
        if progress:
            progress(sum(part.num_rows for part in tables), rows)
    return tables
