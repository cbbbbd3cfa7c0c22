"""Record, filter and inspect every rollout of an RL fine-tuning run.

    trainer.add_callback(RolloutPluginCallback())

Everything that a training script, a plugin or a notebook needs is importable from here; docs/reference/python.md lists
it. Importing this package loads neither torch nor any other heavy library: most names are imported on first use.
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
    from rollout_plugins.errors import DamageWarning as DamageWarning
    from rollout_plugins.errors import MissingExtraError as MissingExtraError
    from rollout_plugins.errors import RolloutPluginsError as RolloutPluginsError
    from rollout_plugins.errors import RunError as RunError
    from rollout_plugins.errors import SetupError as SetupError
    from rollout_plugins.plugins.cap import Cap as Cap
    from rollout_plugins.plugins.dedup import Dedup as Dedup
    from rollout_plugins.plugins.images import Images as Images
    from rollout_plugins.plugins.metrics import Metrics as Metrics
    from rollout_plugins.plugins.redact import Redact as Redact
    from rollout_plugins.reading.runs import StoredRun as StoredRun
    from rollout_plugins.reading.runs import open_run as open_run
    from rollout_plugins.reading.runs import runs as runs
    from rollout_plugins.recorder import RolloutRecorder as RolloutRecorder
    from rollout_plugins.remote.mirror import Mirror as Mirror
    from rollout_plugins.remote.retain import Retain as Retain
    from rollout_plugins.report import write_report as write_report
    from rollout_plugins.sinks.console import ConsoleSink as ConsoleSink
    from rollout_plugins.sinks.jsonl import JsonlSink as JsonlSink
    from rollout_plugins.sinks.scout import ScoutSink as ScoutSink
    from rollout_plugins.sinks.trackio import TrackioSink as TrackioSink
    from rollout_plugins.sinks.wandb import WandbSink as WandbSink

__version__ = "0.1.0"

_LAZY = {
    "Cap": "rollout_plugins.plugins.cap",
    "Check": "rollout_plugins.checks.base",
    "ConsoleSink": "rollout_plugins.sinks.console",
    "DamageWarning": "rollout_plugins.errors",
    "Dedup": "rollout_plugins.plugins.dedup",
    "Images": "rollout_plugins.plugins.images",
    "JsonlSink": "rollout_plugins.sinks.jsonl",
    "Metrics": "rollout_plugins.plugins.metrics",
    "Mirror": "rollout_plugins.remote.mirror",
    "MissingExtraError": "rollout_plugins.errors",
    "Redact": "rollout_plugins.plugins.redact",
    "Retain": "rollout_plugins.remote.retain",
    "RolloutPluginCallback": "rollout_plugins.callback",
    "RolloutPluginsError": "rollout_plugins.errors",
    "RolloutRecorder": "rollout_plugins.recorder",
    "RunError": "rollout_plugins.errors",
    "ScoutSink": "rollout_plugins.sinks.scout",
    "SetupError": "rollout_plugins.errors",
    "StoredRun": "rollout_plugins.reading.runs",
    "TrackioSink": "rollout_plugins.sinks.trackio",
    "WandbSink": "rollout_plugins.sinks.wandb",
    "open_run": "rollout_plugins.reading.runs",
    "runs": "rollout_plugins.reading.runs",
    "write_report": "rollout_plugins.report",
}

__all__ = [
    "Batch",
    "Cap",
    "Check",
    "Columns",
    "ConsoleSink",
    "DamageWarning",
    "Dedup",
    "Drop",
    "Emit",
    "Finding",
    "Finish",
    "Host",
    "HostDetails",
    "Image",
    "Images",
    "JsonlSink",
    "Message",
    "Metrics",
    "Mirror",
    "MissingExtraError",
    "Outcome",
    "Panel",
    "Placeholder",
    "Plugin",
    "Redact",
    "Retain",
    "Rollout",
    "RolloutPluginCallback",
    "RolloutPluginsError",
    "RolloutRecorder",
    "Run",
    "RunError",
    "Scope",
    "ScoutSink",
    "SetupError",
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
    "TrackioSink",
    "Verdict",
    "WandbSink",
    "hookimpl",
    "open_run",
    "runs",
    "write_report",
]


def _draw_rollout(rollout: Rollout) -> str:
    return str(import_module("rollout_plugins.show.notebook").rollout_html(rollout))


_records.draw_rollout = _draw_rollout


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
