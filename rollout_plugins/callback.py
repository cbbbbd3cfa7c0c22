"""The callback for a Trainer: `trainer.add_callback(RolloutPluginCallback())`. It passes events to a session."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_plugins.engine.discover import TRAINERS
from rollout_plugins.engine.env_vars import flag
from rollout_plugins.engine.plugin_copies import CopyablePlugin
from rollout_plugins.engine.run_setup import checked_dir, end_with, load_plugins
from rollout_plugins.errors import SetupError, need
from rollout_plugins.hosts.kit.find_trainer import has_callback, trainer_adding, trainer_of
from rollout_plugins.hosts.kit.trainer_facts import check_trl
from rollout_plugins.session.shared import ON_FAULT, Options, SharedPlugins
from rollout_plugins.session.trainer_session import TrainerSession

need("transformers", "trl")
from transformers import TrainerCallback  # noqa: E402 - after the check, so that a missing extra is one clear line


class RolloutPluginCallback(TrainerCallback):  # type: ignore[misc]
    """Records every rollout of the trainer it is added to, and passes them to plugins.

    Args:
        plugins: instances or names of plugins, run in this order, for example `["redact", Cap(8), "console"]`.
            A sink for a dashboard, such as trackio or wandb, is on by default if `args.report_to` names it.
        dir: the folder of runs; default `<output_dir>-rollouts`, outside the folder that is uploaded with the model.
        disable: names of plugins that must not run.
        config: options of plugins that are given by name, for example `{"cap": {"max_per_step": 8}}`.
        mirror: a URL, such as `s3://bucket/runs`, that the run is copied to while it is recorded; see `Mirror`.
        autoload: whether installed plugins run without being named; `trainers` always does.
        strict: let errors of plugins end the run; for tests.
        sync: do all work on the training thread; for debugging.
        tokens: also record token ids, masks and log-probabilities. "on-fault" keeps those of the last generations in
            memory, and stores them when the loss or the gradient norm is NaN, infinite or far from what it was.
        rendered: also record the exact prompt text after the chat template.
        on_full: "drop" the newest batch when recording falls behind, or "block" training until it catches up.
        end_seconds: how long the end of training may wait for the store and the sinks together; whatever is not
            finished by then is counted. Default 30, or the value of `ROLLOUT_PLUGINS_END_SECONDS`.
        trainer: the trainer, in the rare case that the callback cannot find it.
    """

    is_default = False
    """Whether `rollouts record` added this callback, which then leaves the trainer to a callback of the script."""

    def __init__(
        self,
        plugins: Sequence[Any] | None = (),
        *,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the name people expect
        disable: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        mirror: str | None = None,
        autoload: bool = True,
        strict: bool = False,
        sync: bool = False,
        tokens: bool | str = False,
        rendered: bool = False,
        on_full: str = "drop",
        end_seconds: float | None = None,
        trainer: Any = None,
    ) -> None:
        check_trl()
        if tokens not in {False, True, ON_FAULT}:
            raise SetupError(f"tokens is {tokens!r}; accepted: True, False, {ON_FAULT!r}")
        subclass_attributes = set(vars(self))
        disable = disable if isinstance(disable, str) else tuple(disable)
        self._plugins = load_plugins(plugins, config, disable=disable, mirror=mirror, autoload=autoload)
        self._plugins.add(TRAINERS)  # even without autoload, because it neither changes nor sends rollouts
        self._options: dict[str, Any] = {
            "plugins": list(plugins or ()), "dir": checked_dir(dir), "disable": disable, "config": config,
            "mirror": mirror, "autoload": autoload, "strict": strict, "sync": sync, "tokens": tokens,
            "rendered": rendered, "on_full": on_full, "end_seconds": end_seconds,
        }  # fmt: skip
        options = Options(
            dir=self._options["dir"], tokens=tokens, rendered=rendered, sync=sync, on_full=on_full,
            strict=strict or flag("STRICT", default=False), end_seconds=end_seconds,
        )  # fmt: skip
        self._shared = SharedPlugins(self._plugins, options)
        # Weak, since a callback that outlives its trainer must not keep the model in memory.
        self._sessions: weakref.WeakKeyDictionary[Any, TrainerSession] = weakref.WeakKeyDictionary()
        self._own_attributes = vars(self).keys() - subclass_attributes
        if trainer is None:
            trainer = trainer_adding(type(self))
        if trainer is not None:
            self._attach(trainer)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options, from which a copy is created as a new callback for the copied trainer."""
        plugins = [item if isinstance(item, str) else CopyablePlugin(item) for item in self._options["plugins"]]
        subclass_values = {name: value for name, value in vars(self).items() if name not in self._own_attributes}
        return {**subclass_values, "_options": {**self._options, "plugins": plugins}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["_options"]
        items = [item.plugin if isinstance(item, CopyablePlugin) else item for item in options["plugins"]]
        self.__dict__.update({name: value for name, value in state.items() if name != "_options"})
        plugins = [item for item in items if item is not None]
        # Not `self.__init__`, because a subclass may have other arguments.
        RolloutPluginCallback.__init__(self, **{**options, "plugins": plugins})

    # --- events -------------------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach(self._find_trainer(state, control)))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach(self._find_trainer(state, control)))
        with self._shared.lock:
            self._safely("begin a run", lambda: self._begin_training(self._find_trainer(state, control)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._find_trainer(state, control)))

    # A callback that is added in the middle of a step attaches at the next event, whichever that is.
    on_substep_end = on_step_end = on_step_begin

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        evaluating = trainer_of(self)  # a shallow copy that has not trained shares the original's state
        self._safely("attach", lambda: self._attach_in_evaluation(evaluating or self._find_trainer(state, control)))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._find_trainer(state, control)))
        if logs:
            self._in_session(
                "store the log", state, control, lambda session: session.pipeline.log(state.global_step, logs)
            )
        if logs and "train_runtime" in logs:  # the trainer's reporters are still open
            self._in_session("flush", state, control, TrainerSession.drain_at_end)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._find_trainer(state, control)
        self._in_session("flush", state, control, lambda session: session.end_evaluation(trainer))

    on_predict = on_evaluate

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._find_trainer(state, control)))
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._in_session("mark the checkpoint", state, control, lambda session: session.mark_checkpoint(checkpoint))
        self._in_session("flush", state, control, lambda session: session.pipeline.request_sync())

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._in_session("flush", state, control, lambda session: session.pipeline.request_sync())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self._shared.lock:
            self._in_session("close the run", state, control, TrainerSession.end_training)

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        self._shared.safely(what, action)

    def _in_session(self, what: str, state: Any, control: Any, action: Callable[[TrainerSession], object]) -> None:
        """Call `action` with the session of the trainer that sent the event, if that trainer is recorded."""

        def act() -> None:
            session = self._session_of(self._find_trainer(state, control))
            if session is not None:
                action(session)

        self._safely(what, act)

    # --- trainers and their sessions ----------------------------------------------------------------------------

    def _find_trainer(self, state: Any, control: Any) -> Any | None:
        """Return the trainer that sent the event; one callback may serve several trainers.

        A shallow copy of a trainer shares the original's control, and has a state of its own once it trains.
        """
        by_control = [trainer for trainer in self._sessions if control is not None and trainer.control is control]
        by_state = [trainer for trainer in by_control if trainer.state is state]
        candidates = by_state if len(by_state) == 1 else [trainer_of(self), *by_control]
        # Compare with None, because a trainer may have a length of 0.
        trainer = next((trainer for trainer in candidates if trainer is not None), None)
        if trainer is None:
            self._shared.once.warn("RolloutPluginCallback found no trainer, so nothing is recorded; pass trainer=…")
        return trainer

    def _session_of(self, trainer: Any) -> TrainerSession | None:
        """Return the session of a trainer that generates rollouts and that this callback records; None otherwise."""
        session = None if trainer is None else self._sessions.get(trainer)
        return None if session is None or session.host is None or not self._is_responsible_for(trainer) else session

    def records(self, trainer: Any) -> bool:
        """Return whether the trainer has this callback, and no other one that records instead."""
        return has_callback(trainer, self) and self._is_responsible_for(trainer)

    def _is_responsible_for(self, trainer: Any) -> bool:
        """Return whether no other callback of the trainer records instead of this one."""
        handler = getattr(trainer, "callback_handler", None)
        return not any(self._yields_to(callback, trainer) for callback in getattr(handler, "callbacks", ()))

    def _yields_to(self, other: Any, trainer: Any) -> bool:
        """Return whether `other` records instead: the script's own callback, or the first one with the same folder."""
        if other is self or not isinstance(other, RolloutPluginCallback):
            return False
        if other.is_default or self.is_default:
            return self.is_default and not other.is_default
        session = other._sessions.get(trainer)  # noqa: SLF001 - of the same class
        return session is not None and session.is_attached and other._options["dir"] == self._options["dir"]  # noqa: SLF001

    def _attach(self, trainer: Any) -> None:
        """Attach to the trainer now, because no event precedes the first batch of an evaluation."""
        if trainer is None:
            return
        if not self._is_responsible_for(trainer):
            kind = type(trainer).__name__
            self._shared.once.warn(
                f"{kind} has RolloutPluginCallback twice; the first one records, this one does nothing: remove one of "
                "them, or give it another dir"
            )
            return
        if trainer not in self._sessions:
            session = self._sessions[trainer] = TrainerSession(trainer, self._shared)
            end_with(self, session.end)
        self._sessions[trainer].attach(trainer, self)

    def _attach_late(self, trainer: Any) -> None:
        """Attach if the callback was added during training, or removed and added again."""
        self._attach_unless_settled(trainer)
        session = self._session_of(trainer)
        if session is not None and trainer.is_in_train and session.join_training():
            self._shared.once.warn(
                f"RolloutPluginCallback was added in the middle of training, at step {trainer.state.global_step}: "
                "rollouts are recorded from here on"
            )

    def _attach_unless_settled(self, trainer: Any) -> bool:
        """Attach if that is still possible; return whether the trainer is attached now and was not before."""
        session = None if trainer is None else self._sessions.get(trainer)
        if trainer is None or (session is not None and session.is_settled):
            return False
        self._attach(trainer)
        return self._session_of(trainer) is not None

    def _attach_in_evaluation(self, trainer: Any) -> None:
        """Attach during `evaluate()`, if it follows `add_callback(instance)`: no event precedes its first batch."""
        is_new, session = self._attach_unless_settled(trainer), self._session_of(trainer)
        self._warn_if_unsupported(trainer)
        if is_new and session is not None:
            session.join_evaluation(trainer)

    def _begin_training(self, trainer: Any) -> None:
        session = self._session_of(trainer)
        self._warn_if_unsupported(trainer)
        if session is not None:
            session.begin_training(trainer, int(trainer.state.global_step))

    def _warn_if_unsupported(self, trainer: Any) -> None:
        session = None if trainer is None else self._sessions.get(trainer)
        if session is None or session.host is not None:
            return
        text = f"{type(trainer).__name__} is not a supported trainer, so the callback does nothing"
        trainers = self._plugins.installed.get(TRAINERS)
        if trainers is not None and trainers.status != "active":
            state = f"{trainers.status} {trainers.reason}"
            reason = f"plugin {TRAINERS!r}, which supports more trainers, does not run ({state})"
        else:
            reason = session.explain_missing_host(trainer)
        self._shared.once.warn(f"{text}: {reason}" if reason else text)

    # --- for users ----------------------------------------------------------------------------------------------

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until the store and the sinks have all rollouts so far, at most `seconds`; return whether they do."""
        session = self._shared.current
        return session is None or session.pipeline.drain(seconds)

    def detach(self) -> None:
        """Remove all wrappers from the trainers, until they train again."""
        for session in list(self._sessions.values()):
            session.detach()
