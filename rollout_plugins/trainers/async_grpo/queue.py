"""TRL's AsyncGRPOTrainer and AsyncDistillationTrainer: rollouts come by queue, from a process of their own.

Four places are observed, all on instances of the main rank (the others have no queue):

- the queue, as the trainer's dataset sees it: every sample that is taken out;
- the collator: which samples went into a micro-batch, so that those which didn't were dropped;
- `training_step` and the end of each optimizer step: which of the micro-batches were trained on;
- the worker's `stop`, which the trainer calls however training ends.

What became of a sample is known only later, and so is the step it trains. It is handed over then: after the optimizer
step, together with what was dropped meanwhile. Storing it at once, with a correction to follow, would show a reader
steps and fates that are guesses, and two versions of most rollouts. The price is small: what waits here is what the
trainer itself holds (the micro-batches of a step and one more), an exception or Ctrl-C hands it over too, and only a
killed process takes it along, as it does with whatever lies in the queue. Refused samples, which may be endless when
none is ever trained on, are handed over every few hundred.

A generation is thus what one optimizer step trained. Groups run on over generations, so their numbers are the
worker's, unique in the training. The teacher's candidates of AsyncDistillation are not kept. With trackio, TRL logs a
few samples of every eighth policy version itself: under `rollouts` too, by version instead of step, beside ours.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rollout_hookspecs import Batch, Emit, Support

from rollout_plugins.hosts.kit.stand_ins import itself
from rollout_plugins.hosts.kit.support import named_support
from rollout_plugins.hosts.kit.wrapping import Call, Wraps
from rollout_plugins.trainers.async_grpo.building import Builder, describe_async
from rollout_plugins.trainers.async_grpo.samples import UNKNOWN, Conversation, Stream

_PARTS = ("rollout_queue", "rollout_worker", "model_version")


class AsyncHost:
    """See the module."""

    name = "async"
    supports = (
        Support(
            trainer="AsyncGRPOTrainer",
            advantage=True,
            tools=True,
            groups=True,
            logprobs="sampler",
            note="every sample received, with what became of it: trained, stale, over budget, left over",
        ),
        Support(
            trainer="AsyncDistillationTrainer",
            rewards="none",
            note="every sample received, with what became of it; the teacher's candidates are not kept",
        ),
    )

    def matches(self, trainer: Any) -> bool:
        return named_support(self, trainer) is not None or not self.missing(trainer)

    def missing(self, trainer: Any) -> list[str]:
        """What keeps the trainer from being one of these, in words."""
        return [f"has no {name}" for name in _PARTS if not hasattr(trainer, name)]

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        return _Observer(trainer, emit, options).detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_async(trainer)


class _Tap:
    """The queue as the trainer sees it. The queue itself is left alone: a worker may want to pickle it."""

    def __init__(self, queue: Any, note: Callable[[Any], None]) -> None:
        self.queue = queue
        self.note: Callable[[Any], None] | None = note

    def get(self, *args: Any, **kwargs: Any) -> Any:
        sample = self.queue.get(*args, **kwargs)
        if self.note is not None:
            self.note(sample)
        return sample

    def get_nowait(self) -> Any:
        return self.get(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self.queue,)


class _Observer:
    """Waits for a trainer to begin, and watches that training. Other ranks than the main one have no queue."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer, self.emit, self.options = trainer, emit, options
        self.watch: _Watch | None = None
        self.wraps = Wraps()
        self.wraps.wrap(trainer, "get_train_dataloader", self._dataloader)
        if getattr(trainer, "is_in_train", False):  # added when training had begun to set itself up
            self._begin(trainer.callback_handler.train_dataloader)

    def _dataloader(self, call: Call) -> Any:
        loader = call.run()
        self._begin(loader)
        return loader

    def _begin(self, loader: Any) -> None:
        self._end()
        if getattr(self.trainer, "rollout_queue", None) is not None:
            with self.wraps.guarded("watch the queue of rollouts"):
                self.watch = _Watch(self.trainer, loader, self.emit, self.options)

    def _end(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end()

    def detach(self) -> None:
        self._end()
        self.wraps.detach()


class _Watch:
    """What was put on the parts of one training, and the samples on their way through it."""

    def __init__(self, trainer: Any, loader: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer, self.emit = trainer, emit
        self.builder = Builder(trainer, options)
        self.stream = Stream()
        self.updates: dict[int, int] = {}
        self.seconds = 0.0
        self.is_stop_watched = False
        self.source = _with_queue(loader)
        self.wraps = Wraps()
        self.guarded = self.wraps.guarded
        handler = trainer.callback_handler
        watched = [
            self.wraps.wrap(handler, "on_step_end", self._step_ended),
            self.wraps.wrap(handler, "on_epoch_end", self._epoch_ended),
            self.wraps.wrap(trainer, "training_step", self._trained),
            self.wraps.wrap(getattr(loader, "collate_fn", None), "torch_call", self._packed),
        ]
        self.wraps.wrap(handler, "on_train_end", self._training_ended)
        self.stream.is_blind = not all(watched)
        self.tap = _Tap(self.source.queue, self._receive)
        self.source.queue = self.tap

    def end(self) -> None:
        """Hand over what is left, and leave everything as it was."""
        self._submit(UNKNOWN)
        self.wraps.detach()
        self.tap.note = None
        if self.source.queue is self.tap:
            self.source.queue = self.tap.queue

    # --- what happens to samples --------------------------------------------------------------------------------

    def _receive(self, sample: Any) -> None:
        started, is_noted = time.perf_counter(), False
        if not self.is_stop_watched:  # not sooner: a worker may pickle itself to start its process
            self.is_stop_watched = True
            with self.guarded("watch the worker's end"):
                self.wraps.wrap(self.trainer.rollout_worker, "stop", self._stopped)
        with self.guarded("note a sample that was received"):
            self._note(sample)
            is_noted = True
        if not is_noted:
            self.emit.lost("not_observed", 1)
        if self.stream.is_crowded:
            self._submit()
        self._tell_waiting()
        self.seconds += time.perf_counter() - started

    def _note(self, sample: Any) -> None:
        version, done = int(self.trainer.model_version), int(self.trainer.state.global_step)
        self.updates.setdefault(version, done)
        staleness = version - sample.model_version
        policy_step = self.updates.get(sample.model_version)
        self.stream.receive(sample, staleness, self._refusal(sample, staleness), policy_step, done + 1)

    def _refusal(self, sample: Any, staleness: int) -> str:
        """Why the trainer's settings forbid training on it."""
        args = self.trainer.args
        if staleness > args.max_staleness:
            return "stale"
        return "over_budget" if 0 < (args.token_budget or 0) < len(sample.input_ids) else ""

    def _packed(self, call: Call) -> Any:
        batch = call.run()
        is_seen = False
        with self.guarded("see what a micro-batch is made of"):
            (rows,) = call.args[0] if call.args else call.kwargs["examples"]
            self.stream.pack([sample["input_ids"] for row in rows for sample in getattr(row, "samples", row)])
            is_seen = True
        self.stream.is_blind |= not is_seen
        return batch

    def _trained(self, call: Call) -> Any:
        loss = call.run()
        with self.guarded("note what was trained on"):
            self.stream.train(int(self.trainer.state.global_step) + 1)
        return loss

    def _step_ended(self, call: Call) -> Any:
        control = call.run()
        self._submit()
        return control

    def _epoch_ended(self, call: Call) -> Any:
        self._submit("left_over")
        return call.run()

    def _training_ended(self, call: Call) -> Any:
        with self.guarded("end the watch of a training"):
            self.end()
        return call.run()

    def _stopped(self, call: Call) -> Any:
        self._submit("broke_off")
        return call.run()

    # --- handing over -------------------------------------------------------------------------------------------

    def _submit(self, rest: str = "") -> None:
        started = time.perf_counter()
        with self.guarded("hand over rollouts"):
            settled = self.stream.settle(int(self.trainer.state.global_step), rest)
            steps: dict[int, list[Conversation]] = {}
            for conversation in settled:
                steps.setdefault(conversation.step, []).append(conversation)
            batches = [self._batch(step, steps[step]) for step in sorted(steps)]
            seconds, self.seconds = self.seconds + time.perf_counter() - started, 0.0
            for number, batch in enumerate(batches):
                self.emit(replace(batch, seconds=0.0 if number else seconds))
            for (reason, step), count in Counter((c.reason, c.step) for c in settled).items():
                if reason not in {"", UNKNOWN}:
                    self.emit.untrained(reason, count, step)

            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """For a training that breaks off in a way that does not stop its worker, or not where that can be seen."""
        with self.guarded("say what waits"):
            self.emit.waits(self.stream.waiting, partial(self._submit, "broke_off"))

    def _batch(self, step: int, conversations: list[Conversation]) -> Batch:
        if not self.builder.needs_ids:
            for conversation in conversations:
                conversation.forget_tokens()
        return Batch(
            build=partial(self.builder.rollouts, conversations),
            step=step,
            count=len(conversations),
            bytes=sum(conversation.bytes for conversation in conversations),
            gathered=True,
        )


def _with_queue(loader: Any) -> Any:
    """The dataset that takes samples out of the queue, below the ones that batch them."""
    found = getattr(loader, "dataset", None)
    while found is not None and not hasattr(found, "queue"):
        found = getattr(found, "dataset", None)
    if found is None:
        raise LookupError("the trainer's dataloader has no dataset with a queue")
    return found
