"""A callback on one trainer: what it knows of it, and the wrappers it has on it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rollout_hookspecs import Batch, Host, Run

from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.hosts.kit.finding import holds
from rollout_plugins.hosts.kit.wrapping import Call, Wraps

logger = logging.getLogger("rollout_plugins")


class Callback(Protocol):
    """What the wrappers on a trainer need of the callback that put them on."""

    def _submit(self, trainer: Any, attached: Attached, batch: Batch) -> None: ...

    def _count(self, trainer: Any, attached: Attached, reason: str, count: int, *, is_stored: bool) -> None: ...

    def _log(self, trainer: Any, attached: Attached, call: Call) -> Any: ...


class Evaluation(NamedTuple):
    """Which evaluation a batch belongs to; none by default."""

    number: int = 0
    dataset: str = ""


class Attached:
    """What a callback knows about one trainer, without keeping the trainer alive."""

    def __init__(self, host: Host | None, pipeline: Pipeline, output_dir: Path) -> None:
        self.host = host
        self.output_dir = output_dir
        """Absolute, since a reward may change the working directory."""
        self.stays_off = False
        self.begin_run(pipeline)
        self._evaluations = 0
        self._evaluation = Evaluation()
        self._to_log = ""
        self.prefixes: dict[str, str] = {}
        """By dataset, under which its evaluations were logged."""
        self._wrappers: Callable[[], Wrappers | None] = lambda: None

    def begin_run(self, pipeline: Pipeline) -> None:
        """The next rollouts are those of a new run."""
        self.pipeline = pipeline
        pipeline.hand_over_rest = self.hand_over_rest
        self._waiting = 0
        self.run: Run | None = None
        self.has_begun_training = self.has_ended_training = False

    @property
    def has_trained(self) -> bool:
        """Whether the run has been handed rollouts of a training; some trainers make others before it."""
        return self.has_begun_training and self.pipeline.submitted["train"] > 0

    # --- wrappers -----------------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        wrappers = self._wrappers()
        return wrappers is not None and wrappers.are_on

    @property
    def is_settled(self) -> bool:
        """Whether the wrappers are on, or were taken off on request."""
        return self.is_on or self.stays_off

    def put_on(self, trainer: Any, wrappers: Wrappers, options: Mapping[str, Any]) -> None:
        if self.host is not None:
            wrappers.put_on(trainer, self.host, options)
            self._wrappers = weakref.ref(wrappers)
            self.stays_off = False

    def take_off(self) -> None:
        wrappers = self._wrappers()
        if wrappers is not None:
            wrappers.take_off()

    # --- evaluations --------------------------------------------------------------------------------------------

    def begin_evaluation(self, prefix: str) -> None:
        """The trainer evaluates, and will log under this prefix: `eval`, `eval_<dataset>`, or one the user chose."""
        self._evaluations += 1
        self._evaluation = Evaluation(self._evaluations, dataset_of(prefix))
        self._to_log = self.prefixes[dataset_of(prefix)] = prefix

    def end_evaluation(self) -> None:
        self._evaluation = Evaluation()

    @contextmanager
    def evaluating(self, prefix: str) -> Iterator[None]:
        before = self._evaluation
        self.begin_evaluation(prefix)
        try:
            yield
        finally:
            self._evaluation, self._to_log = before, prefix

    def prefix_of(self, logs: Mapping[str, Any]) -> str:
        """The prefix of the evaluation that is being logged; empty when it is training."""
        prefix, self._to_log = self._to_log or "eval", ""  # only the next log is that evaluation's
        return next((one for one in (prefix, "eval") if any(key.startswith(f"{one}_") for key in logs)), "")

    def submit(self, batch: Batch) -> None:
        if batch.split == "eval":
            number, dataset = self._evaluation
            batch = replace(batch, dataset=dataset, evaluation=number)
        self.pipeline.submit(batch)

    # --- what the host keeps back -------------------------------------------------------------------------------

    def waits(self, count: int) -> bool:
        """Note how many rollouts the host keeps back; False when the run they would be in has ended."""
        self._waiting = count
        return self.run is None or self.pipeline.run is not None

    def hand_over_rest(self) -> None:
        """Have the host hand over what it keeps back. What it kept is lost when its trainer is gone, and counted."""
        wrappers = self._wrappers()
        if self._waiting and wrappers is not None:
            wrappers.hand_over_rest()
        lost, self._waiting = self._waiting, 0
        if lost:
            self.pipeline.count("kept_back", lost)
            logger.warning("%d rollouts that were not complete yet went with their trainer (kept_back)", lost)


def dataset_of(prefix: str) -> str:
    """The name of the dataset in a prefix of metrics; empty for the only one."""
    return "" if prefix == "eval" else prefix.removeprefix("eval_")


class Wrappers:
    """The wrappers on one trainer, and what its host hands batches to.

    They belong to the trainer, which alone keeps them alive; they hold the callback, and it holds them, weakly.
    """

    def __init__(self, callback: Callback, attached: Attached) -> None:
        self._callback = weakref.ref(callback)
        self._attached = attached
        self._trainer: Callable[[], Any] = lambda: None
        self._detach_host: Callable[[], None] = lambda: None
        self._was_held = False
        self._hand_over: Callable[[], object] = lambda: None
        self.are_on = False

    def put_on(self, trainer: Any, host: Host, options: Mapping[str, Any]) -> None:
        self._trainer = weakref.ref(trainer)
        self._was_held = holds(trainer, self._callback())
        self._own = Wraps()
        self._detach_host = host.attach(trainer, self, options)
        self.are_on = True
        try:
            self._own.wrap(trainer, "log", self._log)
            self._own.wrap(trainer, "evaluation_loop", self._evaluation_loop)
        except BaseException:
            self.take_off()  # it is tried again, and would record everything twice
            raise

    def take_off(self) -> None:
        self.are_on = False
        self._own.detach()
        detach, self._detach_host = self._detach_host, lambda: None
        detach()

    def _held(self) -> Callback | None:
        """The callback, while the trainer has it. Its removal causes no event, so each use looks."""
        with self._own.guarded("see whether the callback was removed"):
            callback, trainer = self._callback(), self._trainer()
            is_held = holds(trainer, callback)
            if callback is not None and (is_held or not self._was_held):
                self._was_held = is_held
                return callback
            self._was_held = False  # what the host still has was made before
            self.take_off()
            self._was_held = True
            self._attached.has_ended_training = True
            self._attached.pipeline.request_sync()
        return None

    def __call__(self, batch: Batch) -> None:
        callback = self._held()
        if callback is not None:
            callback._submit(self._trainer(), self._attached, batch)  # noqa: SLF001 - one class in two files

    def lost(self, reason: str, count: int) -> None:
        self._count(reason, count, is_stored=False)

    def untrained(self, reason: str, count: int) -> None:
        self._count(reason, count, is_stored=True)

    def _count(self, reason: str, count: int, *, is_stored: bool) -> None:
        callback = self._held()
        if callback is not None:
            with self._own.guarded("count what was lost"):
                callback._count(self._trainer(), self._attached, reason, count, is_stored=is_stored)  # noqa: SLF001 - see above

    def waits(self, count: int, hand_over: Callable[[], object]) -> None:
        self._hand_over = hand_over
        if not self._attached.waits(count) and count:
            self.hand_over_rest()

    def hand_over_rest(self) -> None:
        """What the host keeps back was made while the callback was there, even if it was removed since."""
        was_held, self._was_held = self._was_held, False
        with self._own.guarded("hand over what the host keeps back"):
            self._hand_over()
        self._was_held = was_held

    def _log(self, call: Call) -> Any:
        callback = self._held()
        if callback is None:
            return call.run()
        return callback._log(self._trainer(), self._attached, call)  # noqa: SLF001 - one class in two files

    def _evaluation_loop(self, call: Call) -> Any:
        if self._held() is None:
            return call.run()
        prefix = "eval"
        with self._own.guarded("see which dataset is evaluated"):
            prefix = str(call.arguments.get("metric_key_prefix", prefix))
        with self._attached.evaluating(prefix):
            return call.run()
