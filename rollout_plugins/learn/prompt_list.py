"""List a run's prompts for the terminal viewer and the report, which know nothing of how they are summarised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_plugins.learn.prompts import column_of_passes, prompts_of
from rollout_plugins.learn.train_rows import question
from rollout_plugins.show.chart import sparkline

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

_LEFT_OUT = {"prompt", "columns", "prompt_is_text", "trend"}


def list_prompts(run: StoredRun) -> tuple[str, list[dict[str, Any]]]:
    """Return a headline and one row for each prompt of the run, the least solved first."""
    found = prompts_of(run, column_of_passes(run))
    bands = " · ".join(f"{band} {number:,}" for band, number in found.bands.items())
    rows = []
    for row in found.table.to_pylist():
        known = [rate for rate in row["trend"] or () if rate is not None]
        kept = {name: value for name, value in row.items() if name not in _LEFT_OUT}
        rows.append({**kept, "trend": sparkline(known) if len(known) > 1 else "", "question": question(row["prompt"])})
    return f"{found.criterion}{f': {bands}' if bands else ''}", rows
