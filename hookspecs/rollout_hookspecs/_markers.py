"""The decorator that marks the hooks of a plugin, and the exception that leaves a rollout out."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "rollout_plugins"

hookspec: Final = pluggy.HookspecMarker(PROJECT)

#: Put `@hookimpl` on each method (or module function) of a plugin that implements a hook.
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


class Drop(BaseException):
    """Raise `Drop("reason")` in `on_rollout` or `on_tool_call` to leave the rollout or the call out of the record.

    The reason is counted and shown to people. `Drop` derives from BaseException so that a plugin's own
    `except Exception` does not swallow it by accident.
    """

    def __init__(self, reason: str = "no reason given") -> None:
        super().__init__(reason)
        self.reason = reason
