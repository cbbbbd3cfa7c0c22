"""Record one trainer: its runs, the rollouts that its host observes, and plugin metrics in its log."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollout_hookspecs import Batch, Host, Run

from rollout_plugins.engine.run_id import write_marker
from rollout_plugins.engine.run_setup import end_run, start_run
from rollout_plugins.engine.threads import run_off_own_threads
from rollout_plugins.hosts import host_for, nearest_to
from rollout_plugins.hosts.kit.find_trainer import evaluation_under_way, step_being_resumed
from rollout_plugins.hosts.kit.stand_ins import added
from rollout_plugins.hosts.kit.support import may_evaluate, recovered
from rollout_plugins.hosts.kit.trainer_facts import tokenizer_of, warn_of_log_completions
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.session.attachment import Attachment, Owner
from rollout_plugins.session.evaluations import Evaluations, dataset_of
from rollout_plugins.session.new_run import new_run
from rollout_plugins.session.shared import SharedPlugins

logger = logging.getLogger("rollout_plugins")


class TrainerSession:
    """Records the runs of one trainer in turn. It owns the pipeline, and does not keep the trainer alive."""

    def __init__(self, trainer: Any, shared: SharedPlugins) -> None:
        self.evaluations = Evaluations()
        self.host: Host | None = None
        self._shared = shared
        self._output_dir = Path(trainer.args.output_dir).absolute()  # a reward may change the working directory
        self._attachment: Callable[[], Attachment | None] = lambda: None
        self._is_detached = False
        self._reset()

    def _reset(self) -> None:
        """Prepare for a new run."""
        self.pipeline = self._shared.new_pipeline()
        self.run: Run | None = None
        self._has_begun_training = self._has_ended_training = False
        self._pending = 0

    # --- attaching to the trainer -------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        attachment = self._attachment()
        return attachment is not None and attachment.is_attached

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to attach: it is attached, was detached on request, or no host matches."""
        return self.is_attached or self._is_detached or self.host is None

    def attach(self, trainer: Any, callback: Owner) -> None:
        """Let a matching host observe the trainer until the callback is removed."""
        if self.host is None:  # a trainer under construction may not have all its parts yet
            self.host = host_for(trainer, self.pipeline.dispatcher.hosts())
        if self.host is None or self.is_attached:
            return
        self._shared.plugins.add_reporters(trainer.args.report_to or ())
        self._shared.plugins.check_all_options_are_used()
        warn_of_log_completions(trainer)
        options = {
            "tokens": bool(self._shared.options.tokens),
            # A copy for the worker thread: a tokenizer must not be used on two threads concurrently.
            "rendered": copy.deepcopy(tokenizer_of(trainer)) if self._shared.options.rendered else None,
            "gather": self.pipeline.has_global_sinks,
        }
        attachment = Attachment(self, trainer, callback)
        attachment.attach(self.host, options)
        self._attachment = weakref.ref(attachment)
        self._is_detached = False

    def detach(self) -> None:
        """Remove all wrappers from the trainer, until it trains again."""
        attachment = self._attachment()
        if attachment is not None:
            attachment.detach()
        self._is_detached = True

    def callback_removed(self) -> None:
        """End the training, because the trainer no longer has the callback: its next training is another run."""
        self._has_ended_training = True
        self.pipeline.request_sync()

    def explain_missing_host(self, trainer: Any) -> str:
        """Return how the trainer differs from the most similar supported one; empty if none is similar."""
        difference = nearest_to(trainer, self.pipeline.dispatcher.hosts())
        return f"{difference}; docs/how-to/host.md says how to write a host for it" if difference else ""

    # --- runs ---------------------------------------------------------------------------------------------------

    def begin_training(self, trainer: Any, step: int) -> None:
        """Start a run, or the next attempt if the trainer restarts; or continue the run that `evaluate()` started."""
        self._output_dir = Path(trainer.args.output_dir).absolute()
        self._take_turn()
        # Some trainers generate rollouts before training begins.
        has_trained = self._has_begun_training and self.pipeline.submitted["train"] > 0
        restarted = self.run if has_trained and self._is_restarting(trainer) else None
        starts_at_other_step = self.run is not None and not has_trained and step != (self.run.resumed_from or 0)
        if self._has_ended_training or starts_at_other_step or (has_trained and restarted is None):
            self.end()
            self._reset()
        self._has_begun_training = True
        if self.run is None or restarted is not None:
            self._begin_run(trainer, step, restarted)
        else:
            self._ensure_run(trainer)

    def _is_restarting(self, trainer: Any) -> bool:
        """Return whether `train()` itself tries again with a smaller batch.

        A second call of `train()`, such as after Ctrl-C in a notebook, is another training.
        """
        return getattr(trainer.args, "auto_find_batch_size", False) and not self._has_ended_training

    def join_training(self) -> bool:
        """Mark the training as begun; return False if it had begun before."""
        has_joined, self._has_begun_training = not self._has_begun_training, True
        return has_joined

    def end_training(self) -> None:
        self._has_ended_training = True
        self.end()

    def _take_turn(self) -> None:
        if self.pipeline.is_forked_copy:
            self._reset()
        self._shared.give_turn(self)

    def _begin_run(self, trainer: Any, step: int, restarted: Run | None = None) -> None:
        assert self.host is not None
        run, generation = new_run(
            trainer, self.host, step=step, output_dir=self._output_dir, runs_dir=self._shared.options.dir,
            restarted=restarted,
        )  # fmt: skip
        self._start(trainer, run, generation)

    def _start(self, trainer: Any, run: Run, generation: int) -> None:
        if self.pipeline.run is not None:  # an attempt that was broken off
            self._emit_pending()
        self.run = run
        start_run(self.pipeline, self._shared.plugins, run, generation, trainer=trainer, safely=self._shared.safely)

    def _ensure_run(self, trainer: Any) -> None:
        """Open a run if none is open, as for `evaluate()` outside training: the previous run, or a new one."""
        self._take_turn()
        if self.pipeline.run is not None:
            return
        if self.run is not None:
            self._start(trainer, self.run, self.pipeline.generation)
        else:
            self._begin_run(trainer, step_being_resumed(trainer))

    def mark_checkpoint(self, folder: Path) -> None:
        """Write into a checkpoint which run it belongs to, so that a resumed training continues the run."""
        if self.run is not None:
            write_marker(folder, Path(self.run.dir), self.run.attempt, self.pipeline.generation)

    # --- rollouts -----------------------------------------------------------------------------------------------

    def submit(self, trainer: Any, batch: Batch) -> None:
        """Record one generation batch."""
        with self._shared.lock:
            try:
                self._ensure_run(trainer)
            except Exception:
                self.pipeline.count("not_begun", batch.count)
                raise
            self.pipeline.submit(self.evaluations.assign(batch))

    def count(self, trainer: Any, reason: str, count: int) -> None:
        """Count rollouts that could not be observed."""
        with self._shared.lock:
            try:
                self._ensure_run(trainer)
            finally:
                self.pipeline.count(reason, count)

    def count_untrained(self, trainer: Any, reason: str, count: int, step: int | None) -> None:
        """Count submitted rollouts of a step on which the trainer did not train."""
        with self._shared.lock:
            try:
                self._ensure_run(trainer)
            finally:
                self.pipeline.count_untrained(reason, count, step)

    def set_pending(self, count: int) -> bool:
        """Store how many rollouts the host holds back; return False if their run has ended."""
        self._pending = count
        return self.run is None or self.pipeline.run is not None

    def _emit_pending(self) -> None:
        """Make the host submit what it holds back. If the trainer is gone, count those rollouts as lost."""
        attachment = self._attachment()
        if attachment is not None:  # even without pending rollouts, the host may count untrained ones
            attachment.emit_pending()
        lost, self._pending = self._pending, 0
        if lost:
            self.pipeline.count("kept_back", lost)
            logger.warning("%d unfinished rollouts were lost because their trainer was deleted (kept_back)", lost)

    # --- evaluation ---------------------------------------------------------------------------------------------

    def join_evaluation(self, trainer: Any) -> None:
        """Record the first batch of an evaluation during which the callback was attached, or count its rollouts."""
        if not may_evaluate(self.host, trainer):
            return
        count, prefix = evaluation_under_way(trainer)
        self.evaluations.begin(prefix)
        batch = None if self.host is None else recovered(self.host, trainer, count)
        if batch is not None:
            self.submit(trainer, batch)
        else:
            self.count(trainer, "before_attach", count)
            self._shared.once.warn(
                f"{count or 'some'} rollouts were generated before the callback could attach; pass it in callbacks=[…]"
            )

    def end_evaluation(self, trainer: Any) -> None:
        self.evaluations.end()
        if not trainer.is_in_train:  # training must not wait
            self.pipeline.drain(self.pipeline.end_seconds)

    # --- the trainer's log --------------------------------------------------------------------------------------

    def log(self, trainer: Any, call: Call) -> Any:
        """Run the trainer's `log` with the plugins' metrics in its dictionary.

        They are in the dictionary only during the call. Passing a copy would hide from the caller what `log` adds to
        the dictionary, which `evaluate()` returns and which selects the best checkpoint.
        """
        logs = call.args[0] if call.args else call.kwargs.get("logs")
        if not isinstance(logs, dict):
            return call.run()
        metrics: dict[str, float] = {}
        self._shared.safely("add metrics to the log", lambda: metrics.update(self._metrics(trainer, logs)))
        with added(logs, metrics):
            return call.run()

    def _metrics(self, trainer: Any, logs: Mapping[str, float]) -> dict[str, float]:
        pipeline, evaluations = self.pipeline, self.evaluations
        if "train_runtime" in logs:
            self.drain_at_end(sinks=False)
            metrics = pipeline.log_metrics("train")
            for (
                dataset,
                prefix,
            ) in evaluations.prefix_by_dataset.items():  # logged before they were recorded
                metrics |= pipeline.log_metrics("eval", prefix, dataset)
            return metrics
        prefix = evaluations.logged_prefix(logs)
        if not prefix:
            return pipeline.log_metrics("train")
        if not trainer.is_in_train:  # training must not wait
            pipeline.drain(pipeline.end_seconds, sinks=False)
        return pipeline.log_metrics("eval", prefix, dataset_of(prefix))

    # --- the end ------------------------------------------------------------------------------------------------

    def drain_at_end(self, *, sinks: bool = True) -> None:
        """Wait for the store, and for the sinks, when training ends. This and `end` share one time limit."""
        self._emit_pending()
        self.pipeline.drain_at_end(sinks=sinks)

    def end(self) -> None:
        """End the run. Also called when the callback is garbage-collected and when the process exits."""
        if self.pipeline.is_forked_copy or run_off_own_threads(self.end):
            return
        self._emit_pending()
        end_run(self.pipeline)
