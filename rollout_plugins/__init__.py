"""Keep, filter and look at every rollout of an RL fine-tuning run.

    trainer.add_callback(RolloutPluginCallback())

Everything public is importable from here. Importing this package loads neither torch nor any other heavy library:
the callback, the recorder and the reader are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import (
    Batch,
    Columns,
    Drop,
    Emit,
    Finding,
    Finish,
    Host,
    HostDetails,
    Image,
    Message,
    Outcome,
    Panel,
    Placeholder,
    Plugin,
    Rollout,
    Run,
    Scope,
    Severity,
    Sink,
    Split,
    Step,
    Support,
    Tokens,
    ToolCall,
    ToolStatus,
    Trace,
    Verdict,
    _records,
    hookimpl,
)

if TYPE_CHECKING:
    from rollout_plugins.callback import RolloutPluginCallback as RolloutPluginCallback
    from rollout_plugins.checks.base import Check as Check
    from rollout_plugins.reading.runs import StoredRun as StoredRun
    from rollout_plugins.reading.runs import open_run as open_run
    from rollout_plugins.reading.runs import runs as runs
    from rollout_plugins.recorder import RolloutRecorder as RolloutRecorder

__version__ = "0.1.0"

_LAZY = {
    "Check": "rollout_plugins.checks.base",
    "RolloutPluginCallback": "rollout_plugins.callback",
    "RolloutRecorder": "rollout_plugins.recorder",
    "StoredRun": "rollout_plugins.reading.runs",
    "open_run": "rollout_plugins.reading.runs",
    "runs": "rollout_plugins.reading.runs",
}

__all__ = [
    "Batch",
    "Check",
    "Columns",
    "Drop",
    "Emit",
    "Finding",
    "Finish",
    "Host",
    "HostDetails",
    "Image",
    "Message",
    "Outcome",
    "Panel",
    "Placeholder",
    "Plugin",
    "Rollout",
    "RolloutPluginCallback",
    "RolloutRecorder",
    "Run",
    "Scope",
    "Severity",
    "Sink",
    "Split",
    "Step",
    "StoredRun",
    "Support",
    "Tokens",
    "ToolCall",
    "ToolStatus",
    "Trace",
    "Verdict",
    "hookimpl",
    "open_run",
    "runs",
]


def _drawn(rollout: Rollout) -> str:
    return str(import_module("rollout_plugins.show.notebook").rollout_html(rollout))


_records.draw_rollout = _drawn


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
