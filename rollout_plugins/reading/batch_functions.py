"""One function for each batch of rollouts: the unit of every analysis that looks at content.

It takes an Arrow table of some columns and returns a column, or several by name, with a value for each row. It runs on
all cores here, or with Ray Data on many machines, on the same files, and the values become the same annotations.
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
from rollout_plugins.reading.damage import UnreadableError, gist
from rollout_plugins.reading.engines import quiet_ray, ray_files, started
from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.join_parts import locate
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.store.write import read_journal
from rollout_plugins.system.remote_runs import is_remote_file, open_run_file

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: Rollouts in a batch.
BATCH = 1024
Function = Callable[[pa.Table], Any]
Progress = Callable[[int, int], object]
#: What Ray's text about an error in a worker says of ours.
_RAISED = re.compile(rf"{re.escape(RunError.__module__)}\.RunError: (.+)")
_NOTHING = pa.table({"id": pa.array([], pa.large_string())})


def annotate_by(
    run: StoredRun,
    producer: str,
    function: Function,
    *,
    columns: Sequence[str],
    ray: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write what a function says of every rollout as annotations; returns of how many.

    `columns`: those of the files that it is given; `ray`: a Ray cluster's address, or `local` for one of this machine.
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
    rows = pa.concat_tables([_NOTHING, *tables], promote_options="permissive")
    written = run.annotate(producer, rows.to_pylist()) if rows.num_rows else 0
    for name, why in damaged.items():  # only now: annotating looks at the run anew
        run.health.damaged[name] = why
    return written


def apply(function: Function, table: pa.Table, *, columns: Sequence[str]) -> pa.Table:
    """What the function says of a batch, beside the rollouts' ids."""
    said = _called(function, with_columns(table, columns))
    values = said if isinstance(said, Mapping) else {"value": said}
    if isinstance(said, pa.Table):
        values = dict(zip(said.column_names, said.columns, strict=True))
    wrong = [name for name, column in values.items() if len(column) != table.num_rows]
    if wrong:
        raise RunError(
            f"the function gave {len(values[wrong[0]])} values of {wrong[0]!r} for {table.num_rows} rollouts; "
            "give one for each"
        )
    return pa.table({"id": table["id"], **values})


def _called(function: Function, table: pa.Table) -> Any:
    try:
        return function(table)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise RunError(f"the function raised {error!r} at {where}") from error


def _on_all_cores(
    run: StoredRun, applied: Function, progress: Progress | None, damaged: dict[str, str]
) -> list[pa.Table]:
    """In processes of their own: what a function does in Python holds the interpreter's lock."""
    files = [part.path for part in find_parts(run.dir)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(files) or 1), mp_context=context) as pool:
        waiting = {pool.submit(_file, path, applied): path for path in files}
        found: dict[Path, pa.Table] = {}
        for done in as_completed(waiting):
            path = waiting[done]
            try:
                found[path] = done.result()
            except UnreadableError as error:
                damaged[file_name(path)], found[path] = str(error), _NOTHING
            if progress:
                progress(len(found), len(files))
    return [found[path] for path in files]


def _file(path: Path, applied: Function) -> pa.Table:
    """What the function says of a file's rollouts."""
    return pa.concat_tables([*map(applied, _readable(path))] or [_NOTHING])


def _readable(path: Path) -> Iterator[pa.Table]:
    """A file's batches; one that cannot be read is left out, as everywhere."""
    try:
        yield from _batches(path)
    except RunError:
        raise
    except Exception as error:
        raise UnreadableError(gist(error)) from error


def _batches(path: Path) -> Iterator[pa.Table]:
    if path.suffix == ".arrows" and path.exists():
        batches: Iterable[pa.RecordBatch] = read_journal(path).to_batches(max_chunksize=BATCH)
        yield from (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        return
    with _parquet_of(path) as (file, start, rows):
        at = -start
        for batch in file.iter_batches(BATCH):
            first, end = max(-at, 0), min(rows - at, batch.num_rows)
            if first < end:
                yield pa.Table.from_batches([batch.slice(first, end - first)])
            at += batch.num_rows


@contextmanager
def _parquet_of(path: Path) -> Iterator[tuple[pq.ParquetFile, int, int]]:
    """Open the Parquet file that has a part's rows, with the first of them and their number.

    Since the parts were listed, another process may have sealed a journal, or joined a part into a larger one.
    """
    path = path.with_suffix(".parquet")
    while not is_remote_file(path) and not path.exists() and (location := locate(path)) is not None:
        with suppress(FileNotFoundError), pq.ParquetFile(location.path) as file:  # it may be joined again
            yield file, location.start, location.rows
            return
    with pq.ParquetFile(open_run_file(path)) as file:
        yield file, 0, file.metadata.num_rows


def _with_ray(
    run: StoredRun, work: Callable[[], list[pa.Table]], address: str, damaged: dict[str, str]
) -> list[pa.Table]:
    """The same over a Ray cluster; when it fails, once more without files that turn out to be damaged."""
    started(address)
    with quiet_ray():
        try:
            return work()
        except Exception as error:
            if said := _RAISED.search(str(error)):
                raise RunError(said[1]) from None
            known = set(run.health.damaged)
            run.health.verify()
            damaged.update(run.health.damaged)
            if not run.health.damaged.keys() - known:
                raise RunError(f"Ray: {str(error).strip().rpartition(chr(10))[2]}") from error
            return work()


def _on_ray(run: StoredRun, applied: Function, columns: Sequence[str], progress: Progress | None) -> list[pa.Table]:
    wanted = list(dict.fromkeys(["id", *columns]))
    done = ray_files(run, wanted).map_batches(applied, batch_format="pyarrow", batch_size=BATCH)
    rows, found = run.count(superseded=True), []
    for table in done.iter_batches(batch_format="pyarrow", batch_size=None):
        found.append(table)
        if progress:
            progress(sum(each.num_rows for each in found), rows)
    return found
