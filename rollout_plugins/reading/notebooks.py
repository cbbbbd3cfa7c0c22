"""Render Arrow tables as HTML in notebooks; without this, a notebook prints only their schema."""

from __future__ import annotations

import sys
from contextlib import suppress

import pyarrow as pa


def draw_tables() -> None:
    """Register the HTML rendering of Arrow tables with IPython, unless something else has done so."""
    ipython = sys.modules.get("IPython")
    with suppress(Exception):  # for an unexpected kind of IPython, tables stay plain text
        shell = ipython.get_ipython() if ipython else None
        if shell is not None and pa.Table not in (formatter := shell.display_formatter.formatters["text/html"]):
            formatter.for_type(pa.Table, _html)


def _html(table: pa.Table) -> str:
    from rollout_plugins.show.notebook import rows_html

    shown, more = table.slice(0, 20), ", the first 20 of them" * (table.num_rows > 20)
    return rows_html(shown.to_pylist(), names=table.column_names, head=f"{table.num_rows:,} rows{more}")
