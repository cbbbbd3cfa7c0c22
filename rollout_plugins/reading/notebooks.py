"""Arrow tables in a notebook, which would show their schema alone."""

from __future__ import annotations

import sys
from contextlib import suppress

import pyarrow as pa


def draw_tables() -> None:
    """Have the notebook that runs this, if one does, draw Arrow tables, unless somebody else has taught it how."""
    ipython = sys.modules.get("IPython")
    with suppress(Exception):  # an IPython of another kind: the table is there all the same
        shell = ipython.get_ipython() if ipython else None
        if shell is not None and pa.Table not in (formatter := shell.display_formatter.formatters["text/html"]):
            formatter.for_type(pa.Table, _html)


def _html(table: pa.Table) -> str:
    from rollout_plugins.show.notebook import rows_html

    shown, more = table.slice(0, 20), ", the first 20 of them" * (table.num_rows > 20)
    return rows_html(shown.to_pylist(), names=table.column_names, head=f"{table.num_rows:,} rows{more}")
