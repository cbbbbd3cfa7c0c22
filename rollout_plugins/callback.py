"""`trainer.add_callback(RolloutPluginCallback())`: transformers events → attach, flush, detach."""

from __future__ import annotations

import copy
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_hookspecs import Batch, Host, Run

from rollout_plugins.attaching import (
    batch_being_evaluated,
    checkpoint_being_resumed,
    step_being_resumed,
    trainer_adding,
    trainer_of,
)
from rollout_plugins.errors import SetupError, need
from rollout_plugins.hosts import host_for, nearest_to
from rollout_plugins.hosts.facts import tokenizer_of
from rollout_plugins.hosts.support import may_evaluate
from rollout_plugins.hosts.wrapping import Wraps
from rollout_plugins.identity import identify, write_marker
from rollout_plugins.loading import Plugins, flag
from rollout_plugins.opening import bind_sinks, cap_dashboards, named_metrics, open_pipeline
from rollout_plugins.pipeline import Pipeline
from rollout_plugins.precautions import check_trl, checked_dir, tell_of_unfinished, warn_of_log_completions

need("transformers", "trl")
from transformers import TrainerCallback  # noqa: E402 - after the check, so that a missing extra is one clear line

logger = logging.getLogger("rollout_plugins")


class RolloutPluginCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps every rollout of the trainer it is added to, and hands them to plugins.

    Args:
        plugins: instances or names of plugins, run in this order, for example `["redact", Cap(8), "console"]`.
            Sinks for trackio and wandb are on by themselves when `args.report_to` names them.
        dir: where runs are kept; default `<output_dir>/rollouts`.
        disable: names of plugins that must not run.
        config: options for plugins given by name, for example `{"cap": {"max_per_step": 8}}`.
        autoload: whether installed plugins run without being named.
        strict: let errors of plugins end the run; for tests.
        sync: do all work on the training thread; for debugging.
        tokens: also keep token ids, masks and log-probabilities.
        rendered: also keep the exact templated prompt text.
        on_full: "drop" the newest batch when recording falls behind, or "block" training until it catches up.
        trainer: the trainer, for the rare case that it cannot be found by itself.
    """

    def __init__(
        self,
        plugins: Sequence[Any] = (),
        *,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the name people expect
        disable: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        autoload: bool = True,
        strict: bool = False,
        sync: bool = False,
        tokens: bool = False,
        rendered: bool = False,
        on_full: str = "drop",
        trainer: Any = None,
    ) -> None:
        check_trl()
        self._plugins = Plugins(plugins, disable=disable, config=config, autoload=autoload)
        self._dir = checked_dir(dir)
        self._tokens, self._rendered = tokens, rendered
        self._strict = strict or flag("STRICT", default=False)
        self._sync, self._on_full = sync, on_full
        self._pipeline = self._new_pipeline()
        self._host: Host | None = None
        self._trainer: Callable[[], Any] = lambda: None
        self._detach: Callable[[], None] | None = None
        self._run: Run | None = None
        self._begun = 0
        self._has_begun_training = False
        self._told: set[str] = set()
        found = trainer if trainer is not None else trainer_adding(type(self))
        if found is not None:
            self._attach(found)

    def _new_pipeline(self) -> Pipeline:
        return open_pipeline(self, self._plugins, strict=self._strict, sync=self._sync, on_full=self._on_full)

    # --- events -------------------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", self._find_and_attach)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", self._find_and_attach)
        self._safely("begin a run", lambda: self._begin_training(int(state.global_step)))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._detach is None:
            self._safely("attach", self._attach_late)
        self._pipeline.raise_strict()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._pipeline.raise_strict()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "train_runtime" in logs:  # the last moment at which the trainer's own reporters still listen
            self._safely("flush", self.flush)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer()
        if trainer is not None and not trainer.is_in_train:
            self._safely("flush", self.flush)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("note the run in the checkpoint", lambda: self._mark_checkpoint(args, int(state.global_step)))
        self._safely("flush", self._pipeline.request_sync)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("flush", self._pipeline.request_sync)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("detach", self.detach)
        self._safely("close the run", self._pipeline.close)
        self._pipeline.raise_strict()

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        """Our own mistakes must not reach the trainer. What the user set up wrongly must, and at once."""
        try:
            action()
        except SetupError:
            raise
        except Exception as error:
            self._say(f"could not {what}: {error!r}; training goes on without it")
            logger.debug("could not %s", what, exc_info=error)
        self._pipeline.raise_strict()

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)

    # --- attaching ----------------------------------------------------------------------------------------------

    def _find_and_attach(self) -> None:
        if self._detach is not None and self._trainer() is not None:
            return
        trainer = trainer_of(self)
        if trainer is None:
            self._say("found no trainer for RolloutPluginCallback, so nothing is recorded; pass trainer=…")
        else:
            self._attach(trainer)

    def _attach(self, trainer: Any) -> None:
        self.detach()
        self._trainer = weakref.ref(trainer)
        self._host = host_for(trainer, self._pipeline.dispatcher.hosts())
        if self._host is None:
            kind = type(trainer).__name__
            self._say(f"{kind} makes no rollouts that are known here; the callback does nothing{_why(trainer)}")
            self._detach = lambda: None
            return
        self._add_reporters(trainer)
        warn_of_log_completions(trainer)
        options = {
            "tokens": self._tokens,
            "rendered": self._tokenizer(trainer),
            "gather": self._pipeline.has_global_sinks,
        }
        detach = self._host.attach(trainer, _Emitter(self), options)
        log = Wraps(trainer)
        log.wrap("log", self._log)

        def detach_both() -> None:
            log.detach()
            detach()

        self._detach = detach_both

    def _attach_late(self) -> None:
        """`evaluate()` alone after `add_callback(instance)`: no event came before the first batch was generated."""
        self._find_and_attach()
        trainer, count = self._trainer(), batch_being_evaluated()
        recover = getattr(self._host, "recover", None)
        if trainer is None or self._host is None or not may_evaluate(self._host, trainer):
            return
        batch = recover(trainer, count) if recover is not None and count else None
        if batch is not None:
            _Emitter(self)(batch)
        else:
            self._pipeline.counters.drop("before_attach", count)
            self._say(
                f"{count or 'some'} rollouts were made before the callback could attach; pass it in callbacks=[…]"
            )

    def _tokenizer(self, trainer: Any) -> Any:
        """A copy for the worker thread: tokenizers object when two threads use one at the same time."""
        if not self._rendered:
            return None
        return copy.deepcopy(tokenizer_of(trainer))

    def _add_reporters(self, trainer: Any) -> None:
        """The trainer's own destinations get traces too, capped."""
        wanted = [name for name in ("trackio", "wandb") if name in (trainer.args.report_to or ())]
        for name in wanted:
            self._plugins.add(name)
        cap_dashboards(self._plugins)

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait until all rollouts so far are in the store and with the sinks, at most so long; whether they are."""
        return self._pipeline.drain(seconds)

    def detach(self) -> None:
        """Take all wrappers off the trainer."""
        detach, self._detach = self._detach, None
        if detach is not None:
            detach()

    # --- runs ---------------------------------------------------------------------------------------------------

    def _begin_training(self, step: int) -> None:
        """A new run; a new attempt when training resumes or starts over; the same one after an evaluate() before."""
        if self._host is None or self._trainer() is None:
            return
        pipeline, trained = self._pipeline, self._trained
        self._has_begun_training = True
        if pipeline.run is not None and step == (pipeline.run.resumed_from or 0) and not trained:
            return
        if pipeline.run is None and self._run is not None:
            self._pipeline = self._new_pipeline()
        self._begin(step, restarted=pipeline.run if trained else None)

    @property
    def _trained(self) -> bool:
        """Whether the open run has been handed rollouts of a training; some trainers make others before it."""
        return self._has_begun_training and self._pipeline.submitted["train"] > 0

    def _begin(self, step: int, restarted: Run | None = None) -> None:
        trainer = self._trainer()
        root = self._dir or Path(trainer.args.output_dir) / "rollouts"
        self._begun += 1
        key = f"{root}|{self._position(trainer)}|{self._begun}|{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
        checkpoint = checkpoint_being_resumed() if step else None
        found = identify(root, key, checkpoint, step, restarted.id if restarted else None)
        facts = dict(self._host.describe(trainer)) if self._host else {}
        self._run = Run(
            id=found.id,
            attempt=found.attempt,
            dir=str(root / found.id),
            rank=trainer.accelerator.process_index,
            world_size=trainer.accelerator.num_processes,
            host=self._host.name if self._host else "",
            resumed_from=found.resumed_from,
            **facts,
        )
        self._start(found.generation)
        if self._run.rank == 0:
            self._pipeline.later(lambda: tell_of_unfinished(root, found.id))

    def _start(self, generation: int) -> None:
        assert self._run is not None
        bind_sinks(self._plugins, self._trainer(), self._safely)
        self._pipeline.start(self._run, generation)

    def _position(self, trainer: Any) -> int:
        """Which of several rollout callbacks this is; the same on every rank."""
        ours = [one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutPluginCallback)]
        return next((i for i, one in enumerate(ours) if one is self), len(ours))

    def _ensure_run(self) -> None:
        """`evaluate()` outside of training: the run that is open, else the last one again, else a new one."""
        if self._pipeline.run is not None:
            return
        if self._run is not None:
            self._start(self._pipeline.generation)
        else:
            self._begin(step_being_resumed())

    def _mark_checkpoint(self, args: Any, step: int) -> None:
        if self._run is not None:
            write_marker(Path(args.output_dir) / f"checkpoint-{step}", self._run.id, self._pipeline.generation)

    def _log(self, original: Callable[..., Any], logs: Any, *args: Any, **kwargs: Any) -> Any:
        """Metrics join the trainer's own log, under names of their own."""
        more: dict[str, float] = {}
        self._safely("add metrics to the log", lambda: more.update(self._metrics(logs)))
        return original({**logs, **more} if more else logs, *args, **kwargs)

    def _metrics(self, logs: Mapping[str, float]) -> dict[str, float]:
        if "train_runtime" in logs:
            self._pipeline.drain(30.0, sinks=False)
        is_eval = any(key.startswith("eval_") for key in logs)
        return named_metrics(self._pipeline, "eval" if is_eval else "train")


def _why(trainer: Any) -> str:
    """What the trainer would have to have, if it is like one that is known."""
    found = nearest_to(trainer)
    return f": {found}; docs/plugins.md tells how to write a host for it" if found else ""


class _Emitter:
    """What a host hands its batches to."""

    def __init__(self, callback: RolloutPluginCallback) -> None:
        self._callback = weakref.ref(callback)

    def __call__(self, batch: Batch) -> None:
        callback = self._callback()
        if callback is not None:
            callback._ensure_run()  # noqa: SLF001 - one class in two parts
            callback._pipeline.submit(batch)  # noqa: SLF001

    def lost(self, reason: str, count: int) -> None:
        callback = self._callback()
        if callback is not None:
            callback._pipeline.counters.drop(reason, count)  # noqa: SLF001
