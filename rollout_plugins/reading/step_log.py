"""Read the values that the trainer logged, as a table with a row for each step and a column for each name."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import UnreadableError, first_line
from rollout_plugins.reading.sql_pieces import literal, name_of
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.step_log import SCHEMA, find_logs
from rollout_plugins.store.write import read_journal
from rollout_plugins.system.remote_runs import open_run_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PREFIX = "log/"
"""The prefix of logged names in a run's statistics."""
_OWN_COLUMNS = ("run_id", "step", "attempt", "time")


def read_log(folder: Path, damaged: dict[str, str]) -> pa.Table:
    """Return all rows of the trainer's log of a run, in the order in which they were written."""
    tables = [table for path in find_logs(folder) if (table := _read(path, damaged)) is not None]
    return pa.concat_tables([pa.Table.from_batches([], SCHEMA), *tables])  # `empty_table` would import pandas


def _read(path: Path, damaged: dict[str, str]) -> pa.Table | None:
    try:
        is_sealed = path.suffix == ".parquet"
        table = pq.read_table(open_run_file(path), partitioning=None) if is_sealed else read_journal(path)
        return table.select(SCHEMA.names).cast(SCHEMA) if table.num_rows else None
    except FileNotFoundError:
        raise UnreadableError(f"{file_name(path)} was just turned into Parquet") from None
    except RunError:  # the file is unreachable, which does not mean that it is damaged
        raise
    except Exception as error:
        damaged[file_name(path)] = first_line(error)
        return None


def number_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several runs in one table, with the columns `_run` and `_row`."""
    runs = [table.append_column("_run", pa.repeat(integers([n])[0], table.num_rows)) for n, table in enumerate(tables)]
    rows = pa.concat_tables(runs)
    return rows.append_column("_row", integers(range(rows.num_rows)))


def current_log(is_again: str) -> str:
    """Return SQL for the current log: only the first rank of each attempt, without superseded steps."""
    first = "rank = min(rank) over (partition by _run, attempt)"
    return f"select * from logged where not ({is_again}) qualify {first}"


def name_columns(names: Sequence[str]) -> dict[str, str]:
    """Return a column name for each logged name, with a number if it is taken; case is ignored."""
    columns: dict[str, str] = {}
    taken = set(_OWN_COLUMNS)
    for name in names:
        tries = (name, *(f"{name}_{number}" for number in range(1, len(names) + len(_OWN_COLUMNS) + 1)))
        columns[name] = next(column for column in tries if column.casefold() not in taken)
        taken.add(columns[name].casefold())
    return columns


def steps_table(columns: Mapping[str, str], view: str) -> str:
    """Return SQL for the table `steps`, with the last value of each name that was logged at a step."""
    values = "".join(f", {_last(name)} as {name_of(column)}" for name, column in columns.items())
    return (
        f"select any_value(run_id) as run_id, step, max(attempt) as attempt, max(time) as time{values} "
        f"from {view} group by _run, step order by _run, step"
    )


def _last(name: str) -> str:
    return f"last(value order by attempt, _row) filter (where name = {literal(name)} and value is not null)"
