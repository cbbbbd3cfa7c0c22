"""Quote values, names and paths for DuckDB's SQL."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.system.remote_runs import duckdb_path, is_remote_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FACTS = 'id, run_id, split, step, "group", rank, reward'


def literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, str):
        pieces = ["'" + piece.replace("'", "''") + "'" for piece in replace_surrogates(value).split("\0")]
        return "(" + " || chr(0) || ".join(pieces) + ")" if len(pieces) > 1 else pieces[0]
    return str(value)


def name_of(column: str) -> str:
    """Return the name of a column, table or field, quoted."""
    return '"' + column.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Return column names, quoted and separated by commas."""
    return ", ".join(map(name_of, names))


def parquet(paths: Iterable[Path], *, uneven: bool = False) -> str:
    """Return the SQL of a table of Parquet files. Folders named `key=value` do not become columns."""
    names = ", ".join(literal(duckdb_path(path) if is_remote_file(path) else pattern(path)) for path in paths)
    options = "filename = true, file_row_number = true, hive_partitioning = false"
    return f"read_parquet([{names}], {options}, union_by_name = {'true' if uneven else 'false'})"


def pattern(path: Path) -> str:
    """Return a path, escaped for DuckDB's file patterns."""
    return re.sub(r"[\[*?]", r"[\g<0>]", str(path))


def messages(rollouts: str) -> str:
    """Return SQL with a row for each message of the rollouts in a view."""
    return f"""
select {_FACTS}, part, position, m.role as role, m.content as content, m.name as name, m.reasoning as reasoning,
  m.tool_calls as tool_calls
from (
  select {_FACTS}, 'prompt' as part, generate_subscripts(prompt, 1) - 1 as position, unnest(prompt) as m
  from {rollouts}
  union all
  select {_FACTS}, 'completion' as part, generate_subscripts(completion, 1) - 1 as position, unnest(completion) as m
  from {rollouts}
)"""


def tool_calls(rollouts: str) -> str:
    """Return SQL with a row for each tool call of the rollouts in a view."""
    return f"""
select {_FACTS}, c.turn as turn, c.position as position, c.name as name, c.arguments as arguments,
  coalesce(c.result, completion[c.reply + 1].content) as result, c.error as error, c.status as status,
  c.seconds as seconds
from (select {_FACTS}, completion, unnest(tool_calls) as c from {rollouts})"""
