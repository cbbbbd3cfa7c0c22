"""The contract between rollout-plugins and its plugins: markers, hooks and records.

Import these names from `rollout_plugins`, the only documented address; they live here so that the contract
depends on pluggy alone.
"""

from rollout_hookspecs._markers import PROJECT, Drop, hookimpl, hookspec
from rollout_hookspecs._records import (
    Batch,
    Emit,
    Host,
    Image,
    Message,
    Panel,
    Placeholder,
    Rollout,
    Run,
    Step,
    Tokens,
    ToolCall,
    Trace,
)

__all__ = [
    "PROJECT",
    "Batch",
    "Drop",
    "Emit",
    "Host",
    "Image",
    "Message",
    "Panel",
    "Placeholder",
    "Rollout",
    "Run",
    "Step",
    "Tokens",
    "ToolCall",
    "Trace",
    "hookimpl",
    "hookspec",
]
