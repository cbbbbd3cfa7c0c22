"""The contract between rollout-plugins and its plugins: markers, hooks and records.

Plugins import these names from `rollout_plugins`. They are defined in a package of their own so that the contract
depends on pluggy alone.
"""

from rollout_hookspecs._markers import PROJECT, Drop, hookimpl, hookspec
from rollout_hookspecs._records import (
    Batch,
    Columns,
    Emit,
    Finish,
    Host,
    HostDetails,
    Image,
    Message,
    Panel,
    Placeholder,
    Plugin,
    Rollout,
    Run,
    Scope,
    Sink,
    Split,
    Step,
    Support,
    Tokens,
    ToolCall,
    ToolStatus,
    Trace,
)

__all__ = [
    "PROJECT",
    "Batch",
    "Columns",
    "Drop",
    "Emit",
    "Finish",
    "Host",
    "HostDetails",
    "Image",
    "Message",
    "Panel",
    "Placeholder",
    "Plugin",
    "Rollout",
    "Run",
    "Scope",
    "Sink",
    "Split",
    "Step",
    "Support",
    "Tokens",
    "ToolCall",
    "ToolStatus",
    "Trace",
    "hookimpl",
    "hookspec",
]
