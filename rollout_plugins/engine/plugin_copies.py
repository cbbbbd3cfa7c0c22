"""Copy a callback's plugins with `copy`, `pickle` or cloudpickle."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import sys
from typing import Any

from rollout_hookspecs import Rollout, hookimpl

from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.installed import name_of
from rollout_plugins.engine.plugin_checks import is_required

logger = logging.getLogger("rollout_plugins")


class CopyablePlugin:
    """Wraps a plugin in the state of a callback, so that a trainer can be copied even if the plugin cannot."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyablePlugin:
        try:
            return CopyablePlugin(copy.deepcopy(self.plugin, memo))
        except Exception as error:
            name = name_of(self.plugin, {})
            logger.warning("plugin %r cannot be copied (%s); both callbacks use it", name, error_text(error))
            return CopyablePlugin(self.plugin)

    def __reduce__(self) -> Any:
        try:
            return _load, (_pickled(self.plugin),)
        except Exception as error:
            reason = f"plugin {name_of(self.plugin, {})!r} cannot be pickled ({error_text(error)})"
            logger.warning("%s; the copy of the callback goes without it", reason)
            return CopyablePlugin, (MissingPlugin(reason) if is_required(self.plugin) else None,)


class MissingPlugin:
    """Replaces a required plugin that could not be copied. It fails, so that nothing unseen is stored."""

    name = "missing"
    required = True

    def __init__(self, reason: str) -> None:
        self.reason = reason

    @hookimpl
    def on_rollout(self, rollout: Rollout) -> None:
        raise RuntimeError(f"{self.reason}; give the copied trainer a callback that has it")


def _pickled(plugin: Any) -> bytes:
    """Pickle with cloudpickle if it is loaded, since it accepts local classes; `pickle` can read its result."""
    buffer = io.BytesIO()
    pickler = getattr(sys.modules.get("cloudpickle"), "Pickler", pickle.Pickler)

    class WithoutTrainers(pickler):  # type: ignore[misc,valid-type]
        def persistent_id(self, value: Any) -> str | None:
            # A plugin that refers to its trainer would pickle the model and the data too.
            return "trainer" if hasattr(type(value), "add_callback") else None

    WithoutTrainers(buffer).dump(plugin)
    return buffer.getvalue()


def _load(pickled: bytes) -> CopyablePlugin:
    class WithoutTrainers(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> None:
            """Return None: the trainer of the original is not that of the copy."""

    return CopyablePlugin(WithoutTrainers(io.BytesIO(pickled)).load())
