"""The wrappers on one trainer, through which its host passes observed rollouts to the session."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rollout_hookspecs import Batch, Host

from rollout_plugins.hosts.kit.wrapping import Call, Wraps
from rollout_plugins.session.evaluations import Evaluations


class Receiver(Protocol):
    """The session that receives everything an attachment observes."""

    evaluations: Evaluations

    def submit(self, trainer: Any, batch: Batch) -> None: ...

    def count(self, trainer: Any, reason: str, count: int) -> None: ...

    def count_untrained(self, trainer: Any, reason: str, count: int, step: int | None) -> None: ...

    def set_pending(self, count: int) -> bool: ...

    def log(self, trainer: Any, call: Call) -> Any: ...

    def callback_removed(self) -> None: ...


class Owner(Protocol):
    """The callback to which an attachment belongs."""

    def records(self, trainer: Any) -> bool: ...


class Attachment:
    """The wrappers that a session has on a trainer.

    Only the trainer keeps an attachment alive, through its wrapped methods. It refers to the trainer and the callback
    weakly, and the session refers to it weakly, so that recording keeps no model in memory.
    """

    def __init__(self, session: Receiver, trainer: Any, callback: Owner) -> None:
        self.is_attached = False
        self._session = session
        self._trainer = weakref.ref(trainer)
        self._callback = weakref.ref(callback)
        self._was_held = callback.records(trainer)
        self._is_emitting_pending = False
        self._wraps = Wraps()
        self._detach_host: Callable[[], None] = lambda: None
        self._emit_pending: Callable[[], object] = lambda: None

    def attach(self, host: Host, options: Mapping[str, Any]) -> None:
        trainer = self._trainer()
        self._detach_host = host.attach(trainer, self, options)
        self.is_attached = True
        try:
            self._wraps.wrap(trainer, "log", self._log)
            self._wraps.wrap(trainer, "evaluation_loop", self._evaluation_loop)
        except BaseException:
            self.detach()  # the next event attaches again, and two attached hosts would record everything twice
            raise

    def detach(self) -> None:
        self.is_attached = False
        self._wraps.detach()
        detach_host, self._detach_host = self._detach_host, lambda: None
        detach_host()

    def _is_active(self) -> bool:
        """Return whether the trainer still has the callback; detach if not.

        There is no event for the removal of a callback, so each wrapper checks.
        """
        if self._is_emitting_pending:
            return True
        with self._wraps.guarded("check whether the callback was removed"):
            callback = self._callback()
            is_held = callback is not None and callback.records(self._trainer())
            # While a callback is being added, it is not among the trainer's callbacks yet.
            if is_held or (callback is not None and not self._was_held):
                self._was_held = is_held
                return True
            if callback is None:
                self.detach()
            elif self.is_attached:
                self._emitting_pending(self.detach)  # the host may emit what it observed before the removal
                self._session.callback_removed()
        return False

    # --- called by the host, see `rollout_hookspecs.Emit` -------------------------------------------------------

    def __call__(self, batch: Batch) -> None:
        if self._is_active():
            self._session.submit(self._trainer(), batch)

    def lost(self, reason: str, count: int) -> None:
        if self._is_active():
            with self._wraps.guarded("count lost rollouts"):
                self._session.count(self._trainer(), reason, count)

    def untrained(self, reason: str, count: int, step: int | None = None) -> None:
        if self._is_active():
            with self._wraps.guarded("count untrained rollouts"):
                self._session.count_untrained(self._trainer(), reason, count, step)

    def waits(self, count: int, emit_pending: Callable[[], object]) -> None:
        self._emit_pending = emit_pending
        if self._callback() is None:  # its run has ended for good
            return
        if not self._session.set_pending(count) and count:
            self.emit_pending()

    def emit_pending(self) -> None:
        """Make the host submit the rollouts that it holds back, even if the callback was removed meanwhile."""
        with self._wraps.guarded("record pending rollouts"):
            self._emitting_pending(self._emit_pending)

    def _emitting_pending(self, emit: Callable[[], object]) -> None:
        outer, self._is_emitting_pending = self._is_emitting_pending, True
        try:
            emit()
        finally:
            self._is_emitting_pending = outer

    # --- the trainer's methods ----------------------------------------------------------------------------------

    def _log(self, call: Call) -> Any:
        return self._session.log(self._trainer(), call) if self._is_active() else call.run()

    def _evaluation_loop(self, call: Call) -> Any:
        if not self._is_active():
            return call.run()
        prefix = "eval"
        with self._wraps.guarded("find the evaluation dataset"):
            prefix = str(call.arguments.get("metric_key_prefix", prefix))
        with self._session.evaluations.running(prefix):
            return call.run()
