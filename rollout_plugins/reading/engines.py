"""Open a run's rollouts as a dataset of Ray, Spark or Daft, with annotations as columns.

The engine reads the Parquet files itself. Rows of journals, which only this library can read, come from memory.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.errors import RunError, need, suggest
from rollout_plugins.reading.damage import UnreadableError, first_line
from rollout_plugins.reading.query_session import readable
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.system.remote_runs import is_url, public_path, remote_reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollout_plugins.reading.runs import StoredRun

_TRIES = 4


def open_dataset(run: StoredRun, engine: str, session: Any) -> Any:
    """Open the run's rollouts with `engine`; `session` is the Spark session."""
    if engine == "spark":
        return spark_dataset(run, session)
    openers = {"ray": ray_dataset, "daft": daft_dataset}
    if engine not in openers:
        raise RunError(f"there is no engine {engine!r}; {suggest(engine, ['ray', 'spark', 'daft'])}")
    return openers[engine](run)


def _repeats(run: StoredRun) -> list[tuple[int, int]]:
    """Return (attempt, step) of each attempt that repeated steps: it supersedes earlier rollouts after that step."""
    return run.session.ask(lambda database: database.done_again())


def ray_dataset(run: StoredRun) -> Any:
    """Open the run's rollouts as a Ray dataset."""
    annotations = _all_annotations(run)
    dataset = ray_files(run, SCHEMA.names)
    return dataset.map_batches(
        partial(_without_superseded, repeats=_repeats(run), annotations=annotations),
        batch_format="pyarrow",
        zero_copy_batch=True,
    )


def ray_files(run: StoredRun, columns: Sequence[str]) -> Any:
    """Open all rows of the run's files as a Ray dataset, superseded ones included."""
    data = need("ray.data", "ray")
    files, unsealed = _readable_files(run)
    if not files:
        return data.from_arrow(unsealed.select(columns))
    filesystem, paths = remote_reader().arrow(files) if is_url(files[0]) else (None, files)
    dataset = data.read_parquet(paths, columns=list(columns), filesystem=filesystem)
    return dataset.union(data.from_arrow(unsealed.select(columns))) if unsealed.num_rows else dataset


def start_ray(address: str) -> None:
    """Start Ray or connect to the cluster at `address`, unless Ray is already running."""
    ray = need("ray", "ray")
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(
            f"no Ray cluster answers at {address!r}; give the address of a cluster, or local to start one "
            f"here ({first_line(error)})"
        ) from error


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence Ray's progress bars and tracebacks, because we report progress and errors ourselves. Warnings remain."""
    context = need("ray.data", "ray").DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    handlers = [
        handler for handler in logging.getLogger("ray.data").handlers if isinstance(handler, logging.StreamHandler)
    ]
    for handler in handlers:
        handler.addFilter(_is_warning)
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        for handler in handlers:
            handler.removeFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno == logging.WARNING and ".progress" not in record.name


def spark_dataset(run: StoredRun, session: Any) -> Any:
    """Open the run's rollouts as a Spark data frame; `s3://` URLs become `s3a://`."""
    need("pyspark", "spark")
    if session is None:
        raise RunError("dataset('spark') needs your Spark session: run.dataset('spark', session)")
    files, unsealed = _readable_files(run)
    frame = _spark_rows(session, unsealed)
    if files:
        sealed = _spark_files(session, files)
        frame = sealed.unionByName(frame) if unsealed.num_rows else sealed
    superseded = " or ".join(f"(attempt < {attempt} and step > {step})" for attempt, step in _repeats(run))
    frame = frame.where(f"not coalesce({superseded}, false)") if superseded else frame
    annotations = _all_annotations(run)
    return frame if annotations is None else frame.join(_spark_rows(session, annotations), "id", "left")


def _spark_files(session: Any, files: Sequence[str]) -> Any:
    """Read Parquet files in Spark with an explicit schema: version 1 has column names that differ only in case."""
    urls = [file.replace("s3://", "s3a://", 1) for file in files]
    try:
        return session.read.schema(_spark_schema(SCHEMA)).parquet(*urls)
    except Exception as error:
        if not re.search("FileSystem not found|No FileSystem for scheme", str(error)):
            raise
        scheme = urls[0].partition(":")[0]
        raise RunError(
            f"this Spark session cannot read {scheme}://: name Hadoop's connector in `spark.jars.packages`, such as "
            "org.apache.hadoop:hadoop-aws for s3a, of the Hadoop version that Spark has; or `rollouts pull` the run"
        ) from error


def _spark_rows(session: Any, table: pa.Table) -> Any:
    return session.createDataFrame([tuple(row.values()) for row in table.to_pylist()], _spark_schema(table.schema))


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_plain_schema(schema))


def daft_dataset(run: StoredRun) -> Any:
    """Open the run's rollouts as a Daft data frame."""
    daft = need("daft", "daft")
    files, unsealed = _readable_files(run)
    frame = daft.from_arrow(unsealed)
    if files:
        frame = daft.read_parquet(files).select(*SCHEMA.names).concat(frame)
    for attempt, step in _repeats(run):
        superseded = (daft.col("attempt") < attempt) & (daft.col("step") > step)
        frame = frame.where(~superseded.fill_null(daft.lit(False)))
    annotations = _all_annotations(run)
    return frame if annotations is None else frame.join(daft.from_arrow(annotations), on="id", how="left")


def _all_annotations(run: StoredRun) -> pa.Table | None:
    """Return all annotations by rollout id, in columns such as `judge.score`, or None if there are none."""
    names = [f"{producer}.{column}" for producer, columns in run.annotations.items() for column in columns]
    if not names:
        return None
    table = run.table(["id", *names], superseded=True)
    return table.cast(_plain_schema(table.schema))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with types that every engine supports."""
    return pa.schema([(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return pa.string() if pa.types.is_large_string(kind) else kind


def _without_superseded(
    table: pa.Table, *, repeats: Sequence[tuple[int, int]], annotations: pa.Table | None
) -> pa.Table:
    """Remove superseded rows, and add the annotation columns."""
    for attempt, step in repeats:
        superseded = pc.and_(pc.less(table["attempt"], attempt), pc.greater(table["step"], step))
        table = table.filter(pc.invert(pc.fill_null(superseded, False)))
    if annotations is None:
        return table
    positions = pc.index_in(table["id"].cast(pa.string()), value_set=annotations["id"])
    for name in annotations.column_names[1:]:
        table = table.append_column(name, annotations[name].take(positions))
    return table


def _readable_files(run: StoredRun) -> tuple[list[str], pa.Table]:
    """Return the readable Parquet files of a live or finished run, and the rollouts that are only in journals."""
    run.count(superseded=True)  # detects damaged files
    for _ in range(_TRIES):
        with suppress(UnreadableError):  # a journal may be turned into Parquet at this moment
            parts, journals = readable(run.dir, run.health.damaged)
            files = [str(public_path(part.path)) for part in parts if not part.is_journal]
            return files, pa.concat_tables([SCHEMA.empty_table(), *journals.values()])
    raise RunError(f"{run.place} changed while it was being read; run the command again")
