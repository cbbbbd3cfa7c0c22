"""`trainer.add_callback(RolloutPluginCallback())`: transformers events → attach, flush, detach."""

from __future__ import annotations

import copy
import logging
import os
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_hookspecs import Batch, Run

from rollout_plugins.attached import Attached, Wrappers, dataset_of
from rollout_plugins.content.once import Once
from rollout_plugins.engine.copying import Given
from rollout_plugins.engine.discover import TRAINERS
from rollout_plugins.engine.environment import flag
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.engine.run_id import identify, run_of, write_marker
from rollout_plugins.engine.setup import (
    bind_sinks,
    cap_dashboards,
    checked_dir,
    end_run,
    load_plugins,
    named_metrics,
    open_pipeline,
    tell_of_unfinished,
)
from rollout_plugins.engine.telling import shown
from rollout_plugins.engine.where import say_start
from rollout_plugins.errors import SetupError, need
from rollout_plugins.hosts import host_for, nearest_to
from rollout_plugins.hosts.kit.finding import (
    checkpoint_being_resumed,
    evaluation_under_way,
    step_being_resumed,
    trainer_adding,
    trainer_of,
)
from rollout_plugins.hosts.kit.stand_ins import added
from rollout_plugins.hosts.kit.support import may_evaluate
from rollout_plugins.hosts.kit.trainer_facts import check_trl, tokenizer_of, warn_of_log_completions
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.store.home import home_of, homes_of

need("transformers", "trl")
from transformers import TrainerCallback  # noqa: E402 - after the check, so that a missing extra is one clear line

logger = logging.getLogger("rollout_plugins")

#: How many runs and attempts of each place began in this process; the same on every rank.
_begun: Counter[str] = Counter()


class RolloutPluginCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps every rollout of the trainer it is added to, and hands them to plugins.

    Args:
        plugins: instances or names of plugins, run in this order, for example `["redact", Cap(8), "console"]`.
            Sinks for trackio and wandb are on by default when `args.report_to` names them.
        dir: where runs are kept; default `<output_dir>-rollouts`, next to what is uploaded with the model.
        disable: names of plugins that must not run.
        config: options for plugins given by name, for example `{"cap": {"max_per_step": 8}}`.
        mirror: a URL, such as `s3://bucket/runs`, that the run is copied to while it is recorded; see `Mirror`.
        autoload: whether installed plugins run without being named; `trainers` does in any case.
        strict: let errors of plugins end the run; for tests.
        sync: do all work on the training thread; for debugging.
        tokens: also keep token ids, masks and log-probabilities.
        rendered: also keep the exact templated prompt text.
        on_full: "drop" the newest batch when recording falls behind, or "block" training until it catches up.
        end_seconds: how long the end of training may wait for the store and the sinks together; whatever is not
            finished by then is counted. Default 30, or the value of `ROLLOUT_PLUGINS_END_SECONDS`.
        trainer: the trainer, in the rare case that the callback cannot find it.
    """

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
        tokens: bool = False,
        rendered: bool = False,
        on_full: str = "drop",
        end_seconds: float | None = None,
        trainer: Any = None,
    ) -> None:
        check_trl()
        others = set(vars(self))  # of a subclass
        disable = disable if isinstance(disable, str) else tuple(disable)
        self._plugins = load_plugins(plugins, config, disable=disable, mirror=mirror, autoload=autoload)
        self._plugins.add(TRAINERS)  # even without autoload: it changes no rollout and sends none
        self._options: dict[str, Any] = {
            "plugins": list(plugins or ()), "dir": checked_dir(dir), "disable": disable, "config": config,
            "mirror": mirror, "autoload": autoload, "strict": strict, "sync": sync, "tokens": tokens,
            "rendered": rendered, "on_full": on_full, "end_seconds": end_seconds,
        }  # fmt: skip
        self._pipeline = self._new_pipeline()
        # Weak, since a callback that outlives its trainer must not keep the model in memory.
        self._trainers: weakref.WeakKeyDictionary[Any, Attached] = weakref.WeakKeyDictionary()
        self._once = Once()
        self._turns: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)  # nobody gives back a parent's
        self._own = vars(self).keys() - others
        found = trainer if trainer is not None else trainer_adding(type(self))
        if found is not None:
            self._attach(found)

    def __getstate__(self) -> dict[str, Any]:
        """A copy is a new callback with the same options, for the trainer it is copied with."""
        plugins = [one if isinstance(one, str) else Given(one) for one in self._options["plugins"]]
        theirs = {name: value for name, value in vars(self).items() if name not in self._own}
        return {**theirs, "_options": {**self._options, "plugins": plugins}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["_options"]
        given = [one.plugin if isinstance(one, Given) else one for one in options["plugins"]]
        self.__dict__.update({name: value for name, value in state.items() if name != "_options"})
        plugins = [one for one in given if one is not None]
        # Not `self.__init__`: that of a subclass may take other arguments.
        RolloutPluginCallback.__init__(self, **{**options, "plugins": plugins})

    def _new_pipeline(self) -> Pipeline:
        strict = self._options["strict"] or flag("STRICT", default=False)
        how = {name: self._options[name] for name in ("sync", "on_full", "end_seconds")}
        return open_pipeline(self, self._plugins, strict=strict, **how)

    # --- events -------------------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach(self._caller(state, control)))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach(self._caller(state, control)))
        with self._turn:
            step = int(state.global_step)
            self._safely("begin a run", lambda: self._begin_training(self._caller(state, control), step))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._caller(state, control)))

    # Whoever adds the callback in the middle of a step is seen at the next event, whichever that is.
    on_substep_end = on_step_end = on_step_begin

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        evaluating = trainer_of(self)  # a shallow copy that has not trained has the original's state, too
        self._safely("attach", lambda: self._attach_in_evaluation(evaluating or self._caller(state, control)))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._caller(state, control)))
        if logs and "train_runtime" in logs:  # the last moment at which the trainer's own reporters still listen
            self._safely("flush", self._pipeline.drain_at_end)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("flush", lambda: self._end_evaluation(self._caller(state, control)))

    on_predict = on_evaluate

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("attach", lambda: self._attach_late(self._caller(state, control)))
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._safely(
            "note the run in the checkpoint", lambda: self._mark_checkpoint(self._caller(state, control), folder)
        )
        self._safely("flush", self._pipeline.request_sync)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._safely("flush", self._pipeline.request_sync)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self._turn:
            self._safely("close the run", lambda: self._end_training(self._caller(state, control)))

    def _safely(self, what: str, action: Callable[[], object]) -> None:
        """Keep our own mistakes from the trainer. Mistakes in the setup are raised at once."""
        try:
            action()
        except SetupError:
            raise
        except Exception as error:
            self._once.warn(f"could not {what}: {shown(error)}; training goes on without it")
            logger.debug("could not %s", what, exc_info=error)
        self._pipeline.raise_strict()

    # --- attaching ----------------------------------------------------------------------------------------------

    def _caller(self, state: Any, control: Any) -> Any | None:
        """The trainer whose event this is: one callback may serve several, one after the other or in turns.

        A shallow copy of a trainer has the control of the original, and a state of its own once it trains.
        """
        alike = [one for one in list(self._trainers) if control is not None and one.control is control]
        same = [one for one in alike if one.state is state]
        found = same if len(same) == 1 else [trainer_of(self), *alike]
        trainer = next((one for one in found if one is not None), None)  # a trainer may be empty, and so not be true
        if trainer is None:
            self._once.warn("found no trainer for RolloutPluginCallback, so nothing is recorded; pass trainer=…")
        return trainer

    def _known(self, trainer: Any) -> Attached | None:
        """What is known of a trainer that makes rollouts."""
        attached = None if trainer is None else self._trainers.get(trainer)
        return None if attached is None or attached.host is None else attached

    def _attach(self, trainer: Any) -> None:
        """Stay with the trainer until the callback is removed: no event comes before an evaluation's first batch."""
        if trainer is None:
            return
        if self._known(trainer) is None:  # a trainer that is being made may not have all its parts yet
            self._get_to_know(trainer)
        attached = self._known(trainer)
        if attached is None or attached.is_on:
            return
        self._add_reporters(trainer)
        warn_of_log_completions(trainer)
        options = {
            "tokens": self._options["tokens"],
            # A copy for the worker thread: one tokenizer must not be used on two threads at the same time.
            "rendered": copy.deepcopy(tokenizer_of(trainer)) if self._options["rendered"] else None,
            "gather": attached.pipeline.has_global_sinks,
        }
        attached.put_on(trainer, Wrappers(self, attached), options)

    def _get_to_know(self, trainer: Any) -> None:
        before = self._trainers.get(trainer)
        pipeline = before.pipeline if before is not None else self._new_pipeline()
        if self._pipeline.run is None:
            self._pipeline = pipeline
        host = host_for(trainer, pipeline.dispatcher.hosts())
        self._trainers[trainer] = Attached(host, pipeline, Path(trainer.args.output_dir).absolute())

    def _say_unknown(self, trainer: Any) -> None:
        if trainer is not None and self._known(trainer) is None:
            unknown = f"{type(trainer).__name__} makes no rollouts that are known here; the callback does nothing"
            self._once.warn(unknown + self._why(trainer))

    def _why(self, trainer: Any) -> str:
        """What is missing to know the trainer, or how it differs from the known one it is most like."""
        trainers = self._plugins.found.get(TRAINERS)
        if trainers is not None and trainers.status != "active":
            return f": plugin {TRAINERS!r}, which knows more trainers, is off ({trainers.status} {trainers.reason})"
        found = nearest_to(trainer, self._pipeline.dispatcher.hosts())
        return f": {found}; docs/trainers.md says how to write a host for it" if found else ""

    def _attach_late(self, trainer: Any) -> None:
        """Added, or added again, while the trainer is training."""
        self._attach_unless_settled(trainer)
        attached = self._known(trainer)
        if attached is not None and trainer.is_in_train and not attached.has_begun_training:
            attached.has_begun_training = True
            self._once.warn(
                f"RolloutPluginCallback was added in the middle of training, at step {trainer.state.global_step}: "
                "rollouts are recorded from here on"
            )

    def _attach_unless_settled(self, trainer: Any) -> bool:
        """Whether it was not attached and is now."""
        attached = self._known(trainer)
        if trainer is None or (trainer in self._trainers and (attached is None or attached.is_settled)):
            return False
        self._attach(trainer)
        return self._known(trainer) is not None

    def _attach_in_evaluation(self, trainer: Any) -> None:
        """`evaluate()` alone after `add_callback(instance)`: no event came before the first batch was generated."""
        is_new, attached = self._attach_unless_settled(trainer), self._known(trainer)
        self._say_unknown(trainer)
        if not is_new or attached is None or not may_evaluate(attached.host, trainer):
            return
        count, prefix = evaluation_under_way(trainer)
        attached.begin_evaluation(prefix)
        recover = getattr(attached.host, "recover", None)
        batch = recover(trainer, count) if recover is not None and count else None
        if batch is not None:
            self._submit(trainer, attached, batch)
        else:
            self._count(trainer, attached, "before_attach", count)
            self._once.warn(
                f"{count or 'some'} rollouts were made before the callback could attach; pass it in callbacks=[…]"
            )

    def _end_evaluation(self, trainer: Any) -> None:
        attached = self._known(trainer)
        if attached is not None:
            attached.end_evaluation()
            if not trainer.is_in_train:
                self.flush(attached.pipeline.end_seconds)

    def _add_reporters(self, trainer: Any) -> None:
        """The trainer's own destinations get traces too, capped."""
        for name in ("trackio", "wandb"):
            if name in (trainer.args.report_to or ()):
                self._plugins.add(name)
        cap_dashboards(self._plugins)

    def flush(self, seconds: float = 30.0) -> bool:
        """Wait at most that long until the store and the sinks have all rollouts so far; returns whether they do."""
        return self._pipeline.drain(seconds)

    def detach(self) -> None:
        """Take all wrappers off the trainers, until they train again."""
        for attached in list(self._trainers.values()):
            attached.take_off()
            attached.stays_off = True

    # --- runs ---------------------------------------------------------------------------------------------------

    @property
    def _turn(self) -> threading.RLock:
        """Held while a run begins, ends or takes a batch: trainers on several threads may share this callback."""
        return self._turns[os.getpid()]

    def _begin_training(self, trainer: Any, step: int) -> None:
        """A new run; a new attempt when training resumes or itself starts over; the same one after an evaluate()."""
        attached = self._known(trainer)
        if attached is None:
            self._say_unknown(trainer)
            return
        attached.output_dir = Path(trainer.args.output_dir).absolute()
        self._use(attached)
        run, has_trained = attached.run, attached.has_trained
        # A smaller batch is tried within one `train()`. Called again, after Ctrl-C in a notebook, it is another one.
        may_retry = getattr(trainer.args, "auto_find_batch_size", False)
        starts_over = may_retry and has_trained and not attached.has_ended_training
        is_elsewhere = run is not None and not has_trained and step != (run.resumed_from or 0)
        if attached.has_ended_training or is_elsewhere or (has_trained and not starts_over):
            end_run(attached.pipeline)
            attached.begin_run(self._new_pipeline())
            self._use(attached)
        attached.has_begun_training = True
        if attached.run is None or has_trained:
            self._begin(trainer, attached, step, restarted=run if starts_over else None)
        else:
            self._ensure_run(trainer, attached)

    def _end_training(self, trainer: Any) -> None:
        attached = self._known(trainer)
        if attached is not None:
            attached.has_ended_training = True
            end_run(attached.pipeline)

    def _use(self, attached: Attached) -> None:
        """Plugins see one run at a time: one that another trainer left open ends here."""
        if attached.pipeline.is_elsewhere:
            attached.begin_run(self._new_pipeline())
        if self._pipeline is not attached.pipeline:
            self._pipeline.close()
            self._pipeline = attached.pipeline

    def _begin(self, trainer: Any, attached: Attached, step: int, restarted: Run | None = None) -> None:
        checkpoint = checkpoint_being_resumed(trainer) if step else None
        root = self._root(attached.output_dir, checkpoint, restarted)
        # Ranks meet under this key. After an elastic restart they count from 1 again, while the store that they meet
        # in still has the answers of the launch before.
        place = f"{root}|{self._position(trainer)}"
        _begun[place] += 1
        key = f"{place}|{_begun[place]}|{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
        found = identify(root, key, checkpoint, step, restarted)
        facts = dict(attached.host.describe(trainer)) if attached.host else {}
        run = attached.run = Run(
            id=found.id,
            attempt=found.attempt,
            dir=str(root / found.id),
            name=attached.output_dir.name,
            rank=trainer.accelerator.process_index,
            world_size=trainer.accelerator.num_processes,
            host=attached.host.name if attached.host else "",
            resumed_from=found.resumed_from,
            **facts,
        )
        self._start(trainer, attached, run, found.generation)
        if run.rank == 0:
            attached.pipeline.later(lambda: tell_of_unfinished(root, found.id))

    def _root(self, output_dir: Path, checkpoint: Path | None, restarted: Run | None) -> Path:
        """The folder of runs: the one given, else that of the run being continued, else the default."""
        if self._options["dir"]:
            return Path(self._options["dir"])
        if restarted:
            return Path(restarted.dir).parent
        name = run_of(checkpoint)
        homes = homes_of(output_dir)
        return next((home for home in homes if name and (home / name).is_dir()), home_of(output_dir))

    def _start(self, trainer: Any, attached: Attached, run: Run, generation: int) -> None:
        bind_sinks(self._plugins, trainer, self._safely)
        attached.pipeline.start(run, generation)
        say_start(run)

    def _position(self, trainer: Any) -> int:
        """Which of several rollout callbacks this is; the same on every rank."""
        ours = [one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutPluginCallback)]
        return next((i for i, one in enumerate(ours) if one is self), len(ours))

    def _submit(self, trainer: Any, attached: Attached, batch: Batch) -> None:
        with self._turn:
            try:
                self._ensure_run(trainer, attached)
            except Exception:
                attached.pipeline.count("not_begun", batch.count)
                raise
            attached.submit(batch)

    def _count(self, trainer: Any, attached: Attached, reason: str, count: int, *, is_stored: bool = False) -> None:
        """Count rollouts that could not be observed, or were not trained on, in the run where people look for them."""
        with self._turn:
            try:
                self._ensure_run(trainer, attached)
            finally:
                attached.pipeline.count(reason, count, is_stored=is_stored)

    def _ensure_run(self, trainer: Any, attached: Attached) -> None:
        """`evaluate()` outside of training: the run that is open, else the last one again, else a new one."""
        self._use(attached)
        if attached.pipeline.run is not None:
            return
        if attached.run is not None:
            self._start(trainer, attached, attached.run, attached.pipeline.generation)
        else:
            self._begin(trainer, attached, step_being_resumed(trainer))

    def _mark_checkpoint(self, trainer: Any, folder: Path) -> None:
        attached = self._known(trainer)
        if attached is not None and attached.run is not None:
            write_marker(folder, Path(attached.run.dir), attached.run.attempt, attached.pipeline.generation)

    def _log(self, trainer: Any, attached: Attached, call: Call) -> Any:
        """Metrics join the trainer's own log, under names of their own.

        They stand in the trainer's dictionary while it logs, and are gone after: a copy would keep from the caller
        what `log` adds, which `evaluate()` returns and the best checkpoint is chosen by.
        """
        logs = call.args[0] if call.args else call.kwargs.get("logs")
        if not isinstance(logs, dict):
            return call.run()
        more: dict[str, float] = {}
        self._safely("add metrics to the log", lambda: more.update(self._metrics(trainer, attached, logs)))
        with added(logs, more):
            return call.run()

    def _metrics(self, trainer: Any, attached: Attached, logs: Mapping[str, float]) -> dict[str, float]:
        pipeline = attached.pipeline
        if "train_runtime" in logs:
            pipeline.drain_at_end(sinks=False)
            numbers = named_metrics(pipeline, "train")
            for name, prefix in attached.prefixes.items():  # the last evaluation's, if it was logged too soon
                numbers |= named_metrics(pipeline, "eval", prefix, name)
            return numbers
        prefix = attached.prefix_of(logs)
        if not prefix:
            return named_metrics(pipeline, "train")
        if not trainer.is_in_train:  # training does not wait
            pipeline.drain(pipeline.end_seconds, sinks=False)
        return named_metrics(pipeline, "eval", prefix, dataset_of(prefix))
