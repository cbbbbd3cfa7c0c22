"""A run as a dataset of the engine that people already use: its rollouts, each once, with annotations beside them.

The engine reads the Parquet files. It gets the rows of journals, which only we can read, from memory.
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
from rollout_plugins.reading.damage import UnreadableError, gist
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
    """A Ray dataset."""
    said = _said(run)
    found = ray_files(run, SCHEMA.names)
    return found.map_batches(
        partial(_current, again=_repeats(run), said=said), batch_format="pyarrow", zero_copy_batch=True
    )


def ray_files(run: StoredRun, columns: Sequence[str]) -> Any:
    """The rows of the run's files, whichever attempt they are of."""
    data = need("ray.data", "ray")
    files, unsealed = _listed(run)
    if not files:
        return data.from_arrow(unsealed.select(columns))
    filesystem, paths = remote_reader().arrow(files) if is_url(files[0]) else (None, files)
    found = data.read_parquet(paths, columns=list(columns), filesystem=filesystem)
    return found.union(data.from_arrow(unsealed.select(columns))) if unsealed.num_rows else found


def started(address: str) -> None:
    """Ray, unless it runs."""
    ray = need("ray", "ray")
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(
            f"no Ray cluster answers at {address!r}; give that of one, or local for this machine ({gist(error)})"
        ) from error


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Without Ray's bars and tracebacks on the terminal: we show how far it is, and why it failed. Warnings stay."""
    context = need("ray.data", "ray").DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    said = [
        handler for handler in logging.getLogger("ray.data").handlers if isinstance(handler, logging.StreamHandler)
    ]
    for handler in said:
        handler.addFilter(_is_warning)
    try:
        yield
    finally:
        context.enable_progress_bars = before
        for handler in said:
            handler.removeFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno == logging.WARNING and ".progress" not in record.name


def spark_dataset(run: StoredRun, session: Any) -> Any:
    """A Spark data frame. `s3://` is `s3a://` there."""
    need("pyspark", "spark")
    if session is None:
        raise RunError("dataset('spark') needs your Spark session: run.dataset('spark', session)")
    files, unsealed = _listed(run)
    found = _spark_rows(session, unsealed)
    if files:
        sealed = _spark_files(session, files)
        found = sealed.unionByName(found) if unsealed.num_rows else sealed
    again = " or ".join(f"(attempt < {attempt} and step > {step})" for attempt, step in _repeats(run))
    found = found.where(f"not coalesce({again}, false)") if again else found
    said = _said(run)
    return found if said is None else found.join(_spark_rows(session, said), "id", "left")


def _spark_files(session: Any, files: Sequence[str]) -> Any:
    """Their schema is told: files of version 1 have columns of other names that Spark takes for equal."""
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
    """A Daft data frame."""
    daft = need("daft", "daft")
    files, unsealed = _listed(run)
    found = daft.from_arrow(unsealed)
    if files:
        found = daft.read_parquet(files).select(*SCHEMA.names).concat(found)
    for attempt, step in _repeats(run):
        again = (daft.col("attempt") < attempt) & (daft.col("step") > step)
        found = found.where(~again.fill_null(daft.lit(False)))
    said = _said(run)
    return found if said is None else found.join(daft.from_arrow(said), on="id", how="left")


def _said(run: StoredRun) -> pa.Table | None:
    """What producers said, by id, in columns such as `judge.score`; None when nobody said anything."""
    names = [f"{producer}.{column}" for producer, columns in run.annotations.items() for column in columns]
    if not names:
        return None
    table = run.table(["id", *names], superseded=True)
    return table.cast(_plain_schema(table.schema))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """In the types that every engine knows."""
    return pa.schema([(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if pa.types.is_large_string(kind) else kind


def _current(table: pa.Table, *, again: Sequence[tuple[int, int]], said: pa.Table | None) -> pa.Table:
    """The rows that no later attempt did again, with what was said of them."""
    for attempt, step in again:
        gone = pc.and_(pc.less(table["attempt"], attempt), pc.greater(table["step"], step))
        table = table.filter(pc.invert(pc.fill_null(gone, False)))
    if said is None:
        return table
    at = pc.index_in(table["id"].cast(pa.string()), value_set=said["id"])
    for name in said.column_names[1:]:
        table = table.append_column(name, said[name].take(at))
    return table


def _listed(run: StoredRun) -> tuple[list[str], pa.Table]:
    """The Parquet files that can be read, and the rollouts that are in none of them yet, as the run goes on."""
    run.count(superseded=True)  # finds what cannot be read
    for _ in range(_TRIES):
        with suppress(UnreadableError):  # a journal that becomes a Parquet file at this moment
            parts, journals = readable(run.dir, run.health.damaged)
            files = [str(public_path(part.path)) for part in parts if not part.is_journal]
            return files, pa.concat_tables([SCHEMA.empty_table(), *journals.values()])
    raise RunError(f"{run.place} changed while it was being read; run the command again")
