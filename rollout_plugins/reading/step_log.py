"""What the trainer logged, as a table with a row for each step and a column for each name."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import UnreadableError, gist
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
"""What stands before a logged name among the figures of a run."""
_OWN = ("run_id", "step", "attempt", "time")


def read_log(folder: Path, damaged: dict[str, str]) -> pa.Table:
    """Return every row that the trainer's log of a run has, in writing order."""
    tables = [table for path in find_logs(folder) if (table := _read(path, damaged)) is not None]
    return pa.concat_tables([pa.Table.from_batches([], SCHEMA), *tables])  # `empty_table` would import pandas


def _read(path: Path, damaged: dict[str, str]) -> pa.Table | None:
    try:
        is_sealed = path.suffix == ".parquet"
        table = pq.read_table(open_run_file(path), partitioning=None) if is_sealed else read_journal(path)
        return table.select(SCHEMA.names).cast(SCHEMA) if table.num_rows else None
    except FileNotFoundError:
        raise UnreadableError(f"{file_name(path)} was just turned into Parquet") from None
    except RunError:  # it cannot be reached, which says nothing of the file
        raise
    except Exception as error:
        damaged[file_name(path)] = gist(error)
        return None


def numbered(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several runs, with the number of the run and of the row."""
    runs = [table.append_column("_run", pa.repeat(integers([n])[0], table.num_rows)) for n, table in enumerate(tables)]
    rows = pa.concat_tables(runs)
    return rows.append_column("_row", integers(range(rows.num_rows)))


def current(is_again: str) -> str:
    """SQL for what counts: of each attempt the first rank's, without what a later attempt did again."""
    first = "rank = min(rank) over (partition by _run, attempt)"
    return f"select * from logged where not ({is_again}) qualify {first}"


def columns_of(names: Sequence[str]) -> dict[str, str]:
    """Return the column of each logged name; one that is taken, whatever its case, gets a number."""
    columns: dict[str, str] = {}
    taken = set(_OWN)
    for name in names:
        tries = (name, *(f"{name}_{number}" for number in range(1, len(names) + len(_OWN) + 1)))
        columns[name] = next(column for column in tries if column.casefold() not in taken)
        taken.add(columns[name].casefold())
    return columns


def steps(columns: Mapping[str, str], view: str) -> str:
    """SQL for the table `steps`: of what was logged several times at a step, the last counts."""
    values = "".join(f", {_last(name)} as {name_of(column)}" for name, column in columns.items())
    return (
        f"select any_value(run_id) as run_id, step, max(attempt) as attempt, max(time) as time{values} "
        f"from {view} group by _run, step order by _run, step"
    )


def _last(name: str) -> str:
    return f"last(value order by attempt, _row) filter (where name = {literal(name)} and value is not null)"
