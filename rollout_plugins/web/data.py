"""Collect everything that the report shows, as plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rollout_hookspecs import Panel, Rollout, Run

from rollout_plugins import __version__
from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.text import clean, shorten
from rollout_plugins.web.choose import choose
from rollout_plugins.web.course import run_facts, step_series, step_width
from rollout_plugins.web.first import First
from rollout_plugins.web.pools import Pictures, Texts
from rollout_plugins.web.records import Records

PanelsOf = Callable[[Rollout, Run], Sequence[Panel]]
"""Returns the panels of plugins for a rollout."""
PromptsOf = Callable[[StoredRun], tuple[str, list[dict[str, Any]]]]
"""Returns a headline and a row for each prompt of a run."""
MAX_PROMPTS = 200
"""Prompts that the page lists."""
MAX_QUESTION = 400
"""Characters of a prompt in the list."""
MAX_PROMPT_ROLLOUTS = 200_000
"""Rollouts of a run up to which its prompts are listed: all of them are read for it."""
Progress = Callable[[str, int, int], object]
"""Called with the current activity, how much of it is done, and the total."""


def page_data(
    run: StoredRun,
    *,
    limit: int,
    panels: PanelsOf,
    progress: Progress,
    prompts: PromptsOf | None = None,
    **filters: Any,
) -> dict[str, Any]:
    """Return the report's data, in which each text and image occurs once and is referred to by number."""
    if limit < 0:
        raise RunError(f"limit={limit} is not a number of rollouts: give 0 or more")
    texts, pictures = Texts(), Pictures(run.dir)
    progress("steps", 0, 0)
    width = step_width(run)
    steps = run.stats(width=width)
    facts = run_facts(run, texts)
    series = step_series(steps, texts)
    first = First(run, **filters)
    chosen = choose(run, limit=limit, keep=first.rollouts, **filters)
    info = replace(run.info, chat_template=None)
    records, rollouts = Records(texts, pictures), []
    for rollout in chosen.rollouts:
        if texts.is_full:
            break
        rollouts.append(records.of(rollout, panels(rollout, info)))
        progress("rollouts", len(rollouts), chosen.expected)
    images, images_spared = pictures.all(lambda done, of: progress("images", done, of))
    written, texts_cut = texts.all()
    return {
        "version": __version__,
        "made": time.time(),
        "run": facts,
        "first": first.as_json(steps, texts),
        "prompts": _prompts(run, prompts, texts),
        "total": sum(row["rollouts"] for row in steps),
        "matched": chosen.matched,
        "filters": {name: clean(str(value)) for name, value in filters.items()},
        "damaged": {clean(name): clean(why) for name, why in run.health.damaged.items()},
        "steps": series,
        "step_width": width,
        "rollouts": rollouts,
        "images": images,
        "images_spared": images_spared,
        "texts": written,
        "texts_cut": texts_cut,
    }


def _prompts(run: StoredRun, prompts: PromptsOf | None, texts: Texts) -> dict[str, Any] | None:
    """Return the prompts as the page needs them; None if nothing lists them, or the run is too long for it."""
    if prompts is None or not 0 < len(run) <= MAX_PROMPT_ROLLOUTS:
        return None
    try:
        headline, rows = prompts(run)
    except RunError:  # nothing of the run can be listed; the rest of the page can
        return None
    names = (
        "prompt_id", "band", "pass_rate", "trend", "reward_mean", "attempts", "first_solved", "tool_calls",
        "failed_calls", "last_rollout",
    )  # fmt: skip
    listed = [
        {name: texts.scalar(row[name]) for name in names}
        | {"question": clean(shorten(row["question"], MAX_QUESTION)), "tool_calls": row["tool_calls"] or 0}
        | {"failed_calls": row["failed_calls"] or 0}
        for row in rows[:MAX_PROMPTS]
    ]
    return {"headline": clean(headline), "rows": listed, "total": len(rows)}
