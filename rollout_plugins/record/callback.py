"""The callback that each trainer of a recorded command gets by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollout_plugins.callback import RolloutPluginCallback
from rollout_plugins.errors import SetupError
from rollout_plugins.record.at_startup.rollouts_at_startup import RECORDED, note, warn
from rollout_plugins.session.trainer_session import TrainerSession


class RecordingCallback(RolloutPluginCallback):
    """Records a trainer that makes rollouts, unless the script added a callback of its own, whose options count.

    It is in the trainer's list before any callback of the script. One that the script adds later takes over.
    """

    gives_way = True

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        """Whatever is wrong with the options, the command continues: it does not know that it is recorded."""
        try:
            super()._safely(what, action)
        except SetupError as error:
            warn(f"not recorded: {error}")

    def records(self, trainer: Any) -> bool:
        return super().records(trainer) and not _has_own_callback(trainer)

    def _attach(self, trainer: Any) -> None:
        if _has_own_callback(trainer):
            self._leave(trainer)
        else:
            super()._attach(trainer)

    def _leave(self, trainer: Any) -> None:
        """Leave the trainer to the script's own callback; what was recorded before it came is a run that ends here."""
        note(RECORDED)
        session = self._sessions.pop(trainer, None)
        if session is not None:
            session.detach()
            session.end()

    def _session_of(self, trainer: Any) -> TrainerSession | None:
        return None if _has_own_callback(trainer) else super()._session_of(trainer)

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
        """Leave a trainer that makes no rollouts alone. It is named at the end if nothing at all was recorded."""
        session = None if trainer is None else self._sessions.get(trainer)
        if session is None or session.host is not None:
            return
        note(f"{type(trainer).__name__} is not a supported trainer")
        if session.explain_missing_host(trainer):  # it is like one that makes rollouts
            super()._warn_if_unsupported(trainer)


def _has_own_callback(trainer: Any) -> bool:
    handler = getattr(trainer, "callback_handler", None)
    ours = (each for each in getattr(handler, "callbacks", ()) if isinstance(each, RolloutPluginCallback))
    return any(not each.gives_way for each in ours)
