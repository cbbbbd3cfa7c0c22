"""A run as a dataset of the engine that people already use: its rollouts, each once, with annotations beside them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.content.elsewhere import is_url, reach
from rollout_plugins.errors import RunError, need
from rollout_plugins.store.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_plugins.reading.stored import Stored


def ray_dataset(run: Stored) -> Any:
    """A Ray dataset."""
    said = _said(run)
    found = ray_files(run, SCHEMA.names)
    return found.map_batches(
        partial(_current, again=run.done_again, said=said), batch_format="pyarrow", zero_copy_batch=True
    )


def ray_files(run: Stored, columns: Sequence[str]) -> Any:
    """The rows of the run's Parquet files, whichever attempt they are of."""
    data = need("ray.data", "ray")
    files = _parquet(run)
    if not is_url(files[0]):
        return data.read_parquet(files, columns=list(columns))
    filesystem, paths = reach().arrow(files)
    return data.read_parquet(paths, columns=list(columns), filesystem=filesystem)


def started(address: str) -> None:
    """Ray, unless it runs."""
    ray = need("ray", "ray")
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="warning")


def spark_dataset(run: Stored, session: Any) -> Any:
    """A Spark data frame. `s3://` is `s3a://` there."""
    need("pyspark", "spark")
    found = session.read.parquet(*(file.replace("s3://", "s3a://", 1) for file in _parquet(run)))
    again = " or ".join(f"(attempt < {attempt} and step > {step})" for attempt, step in run.done_again)
    found = found.where(f"not coalesce({again}, false)") if again else found
    said = _said(run)
    if said is None:
        return found
    return found.join(session.createDataFrame(said.to_pandas()), "id", "left")


def daft_dataset(run: Stored) -> Any:
    """A Daft data frame."""
    daft = need("daft", "daft")
    found = daft.read_parquet(_parquet(run))
    for attempt, step in run.done_again:
        again = (daft.col("attempt") < attempt) & (daft.col("step") > step)
        found = found.where(~again.fill_null(daft.lit(False)))
    said = _said(run)
    return found if said is None else found.join(daft.from_arrow(said), on="id", how="left")


def _said(run: Stored) -> pa.Table | None:
    """What producers said, by id, in columns such as `judge.score`; None when nobody said anything."""
    names = [f"{producer}.{column}" for producer, columns in run.annotations.items() for column in columns]
    if not names:
        return None
    table = run.table(["id", *names], superseded=True)
    kinds = zip(table.column_names, table.schema.types, strict=True)
    return table.cast(pa.schema([(name, _plain(kind)) for name, kind in kinds]))


def _plain(kind: pa.DataType) -> pa.DataType:
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


def _parquet(run: Stored) -> list[str]:
    """The run's Parquet files; other engines cannot read a journal."""
    journals = [path for path in run.parts if path.suffix == ".arrows"]
    if journals and not run.files:
        raise RunError(f"{run.place} has no Parquet file yet; it has when the run ends, or with mirror=")
    return list(map(str, run.files))
