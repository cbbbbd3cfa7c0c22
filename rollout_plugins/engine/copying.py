"""What becomes of a callback's plugins when it is copied with `copy`, `pickle` or cloudpickle."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import sys
from typing import Any

from rollout_hookspecs import Rollout, hookimpl

from rollout_plugins.engine.discover import name_of
from rollout_plugins.engine.telling import is_required, shown

logger = logging.getLogger("rollout_plugins")


class Given:
    """A plugin on its way into a copy. If it cannot be copied, its trainer still can."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin

    def __deepcopy__(self, memo: dict[int, Any]) -> Given:
        try:
            return Given(copy.deepcopy(self.plugin, memo))
        except Exception as error:
            name = name_of(self.plugin, {})
            logger.warning("plugin %r cannot be copied (%s); both callbacks use it", name, shown(error))
            return Given(self.plugin)

    def __reduce__(self) -> Any:
        try:
            return _load, (_pickled(self.plugin),)
        except Exception as error:
            why = f"plugin {name_of(self.plugin, {})!r} cannot be pickled ({shown(error)})"
            logger.warning("%s; the copy of the callback goes without it", why)
            return Given, (Missing(why) if is_required(self.plugin) else None,)


class Missing:
    """Stands for a required plugin that a copy lacks, so that nothing is kept which it has not seen."""

    name = "missing"
    required = True

    def __init__(self, why: str) -> None:
        self.why = why

    @hookimpl
    def on_rollout(self, rollout: Rollout) -> None:
        raise RuntimeError(f"{self.why}; give the copied trainer a callback that has it")


def _pickled(plugin: Any) -> bytes:
    """With cloudpickle where that is in use: it takes local classes and lambdas, and any pickle can read it."""
    out = io.BytesIO()
    kind = getattr(sys.modules.get("cloudpickle"), "Pickler", pickle.Pickler)

    class WithoutTrainers(kind):  # type: ignore[misc,valid-type]
        def persistent_id(self, value: Any) -> str | None:
            # A plugin that knows its trainer would take the model and the data along.
            return "trainer" if hasattr(type(value), "add_callback") else None

    WithoutTrainers(out).dump(plugin)
    return out.getvalue()


def _load(pickled: bytes) -> Given:
    class WithoutTrainers(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> None:
            """None: the trainer that a plugin knew is not the copy's."""

    return Given(WithoutTrainers(io.BytesIO(pickled)).load())
