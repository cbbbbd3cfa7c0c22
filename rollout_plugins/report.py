"""Write one HTML file that shows a run. It needs no server and no network, and opens from disk or an attachment.

from rollout_plugins import open_run, write_report
write_report(open_run("out"), "report.html", where="reward < 0", limit=200)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_plugins.reading.panels import Panels
from rollout_plugins.web.data import PromptsOf
from rollout_plugins.web.page import LIMIT, Written, write_page

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

__all__ = ["LIMIT", "Written", "write_report"]


def write_report(
    run: StoredRun, path: str | Path = "report.html", *, plugins: Sequence[Any] = (), **options: Any
) -> Written:
    """Write one HTML file that shows the run.

    plugins: plugins whose panels are shown, in addition to those that are installed.
    limit: rollouts to show; of more, whole groups spread over the steps. The charts are of all rollouts.
    force: also replace a file that is not a report. An earlier report is replaced in any case, as a notebook cell
        that runs again expects.
    progress: called with what is being done, how much of it is, and of how much.
    The other options are filters, as for `StoredRun.rollouts`.
    """
    return write_page(run, path, panels=Panels(plugins).of, prompts=_prompts_of(), **options)


def _prompts_of() -> PromptsOf | None:
    """Return what lists a run's prompts, unless that part is not installed."""
    try:
        from rollout_plugins.learn.prompt_list import list_prompts
    except ImportError:
        return None
    return list_prompts
