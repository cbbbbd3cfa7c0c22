"""Add our callback to the default callbacks of `transformers.Trainer`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rollout_plugins.record.at_startup.rollouts_at_startup import warn

DEFAULTS = "DEFAULT_CALLBACKS"


def add_to_defaults(trainer_module: Any, options: str) -> None:
    """Add our callback to the list that each new trainer starts with, even if a library replaces that list."""
    ours = _callback_class(trainer_module.TrainerCallback, options)

    class WatchedModule(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            # ms-swift assigns a list of its own when it is imported.
            super().__setattr__(name, [*value, ours] if name == DEFAULTS and ours not in value else value)

        def __reduce__(self) -> tuple[Any, ...]:  # cloudpickle only supports plain modules
            return __import__, (self.__name__, None, None, ("*",))

    trainer_module.__class__ = WatchedModule
    setattr(trainer_module, DEFAULTS, getattr(trainer_module, DEFAULTS))


def _callback_class(base: type, options: str) -> type:
    """Return a class whose instantiation gives each trainer its own callback, imported for the first trainer."""

    def make(_: type) -> Any:
        try:
            from rollout_plugins.record.callback import RecordingCallback
            from rollout_plugins.record.options import callback_options, from_text

            return RecordingCallback(**callback_options(from_text(options)))
        except Exception as error:
            warn(f"not recorded: {error}")
            return base()

    return type("RolloutRecording", (base,), {"__new__": make, "__module__": __name__})
