"""The callback that each trainer of a recorded command gets by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollout_plugins.callback import RolloutPluginCallback
from rollout_plugins.errors import SetupError
from rollout_plugins.record.at_startup.rollouts_at_startup import RECORDED, note, warn


class RecordingCallback(RolloutPluginCallback):
    """Records a trainer that generates rollouts, unless the script added a callback of its own, with its own options.

    It is in the trainer's list before any callback of the script. One that the script adds later takes over.
    """

    is_default = True

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        """Warn of wrong options instead of raising: the command does not know that it is recorded."""
        try:
            super()._safely(what, action)
        except SetupError as error:
            warn(f"not recorded: {error}")

    def _attach(self, trainer: Any) -> None:
        if self._is_responsible_for(trainer):
            super()._attach(trainer)
        else:
            self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        """Leave the trainer to the script's own callback, and end the run that was recorded before it was added."""
        note(RECORDED)
        session = self._sessions.pop(trainer, None)
        if session is not None:
            session.detach()
            session.end()

    def _begin_training(self, trainer: Any) -> None:
        super()._begin_training(trainer)
        self._note_run(trainer)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, **kwargs)
        self._note_run(self._find_trainer(state, control))

    def _note_run(self, trainer: Any) -> None:
        session = self._session_of(trainer)
        if session is not None and session.run is not None:
            note(RECORDED)

    def _warn_if_unsupported(self, trainer: Any) -> None:
        """Warn only of a trainer like a supported one. Others are named at the end if nothing was recorded."""
        session = None if trainer is None else self._sessions.get(trainer)
        if session is None or session.host is not None:
            return
        note(f"{type(trainer).__name__} is not a supported trainer")
        if session.explain_missing_host(trainer):
            super()._warn_if_unsupported(trainer)
