"""A plugin for axolotl, which is enabled under `plugins:` in axolotl's YAML. Only axolotl imports this module."""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from rollout_plugins.callback import RolloutPluginCallback


class RolloutArgs(BaseModel):  # type: ignore[misc]
    """The key that axolotl's config accepts in addition."""

    rollouts: dict[str, Any] | None = None
    """The arguments of `RolloutPluginCallback`."""


class RolloutPlugins(BasePlugin):  # type: ignore[misc]
    """Adds the callback to the trainer that axolotl creates."""

    def get_input_args(self) -> str:
        return f"{RolloutArgs.__module__}.{RolloutArgs.__qualname__}"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[RolloutPluginCallback]:
        options = cfg.rollouts or {}
        return [RolloutPluginCallback(**(options.to_dict() if hasattr(options, "to_dict") else options))]
