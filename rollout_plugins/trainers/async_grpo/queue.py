"""The host of TRL's AsyncGRPOTrainer and AsyncDistillationTrainer, which receive rollouts by queue from a process.

Four places are observed, all on instances of the main rank (the other ranks have no queue):

- the queue, as the trainer's dataset sees it: every sample that is taken out;
- the collator: which samples went into a micro-batch; the others were dropped;
- `training_step` and the end of each optimizer step: which of the micro-batches were trained on;
- the worker's `stop`, which the trainer calls however training ends.

The fate of a sample, and the step that it trains, are known only later. It is submitted then: after the optimizer
step, together with the samples dropped meanwhile. Storing it at once, with a correction to follow, would show readers
steps and fates that are guesses, and two versions of most rollouts. The cost is small: the samples that wait here are
those that the trainer itself holds (the micro-batches of a step and one more), an exception or Ctrl-C submits them
too, and only a killed process loses them, as it loses those in the queue. Refused samples, of which there may be
endlessly many if none is ever trained on, are submitted every few hundred.

A generation is thus what one optimizer step trained. Groups span generations, so their numbers are the worker's,
unique in the training. The teacher's candidates of AsyncDistillation are not stored. With trackio, TRL itself logs a
few samples of every eighth policy version, also under `rollouts`, by version instead of step, next to ours.
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
    """The host of both asynchronous trainers."""

    name = "async"
    supports = (
        Support(
            trainer="AsyncGRPOTrainer",
            advantage=True,
            tools=True,
            groups=True,
            logprobs="sampler",
            note="every sample received, with its fate: trained, stale, over budget, left over",
        ),
        Support(
            trainer="AsyncDistillationTrainer",
            rewards="none",
            note="every sample received, with its fate; the teacher's candidates are not stored",
        ),
    )

    def matches(self, trainer: Any) -> bool:
        return named_support(self, trainer) is not None or not self.missing(trainer)

    def missing(self, trainer: Any) -> list[str]:
        """Describe what keeps the trainer from being one of these."""
        return [f"has no {name}" for name in _PARTS if not hasattr(trainer, name)]

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        return _Observer(trainer, emit, options).detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_async(trainer)


class _QueueTap:
    """Replaces the queue for the trainer. The queue itself is not changed, because a worker may pickle it."""

    def __init__(self, queue: Any, on_sample: Callable[[Any], None]) -> None:
        self.queue = queue
        self.on_sample: Callable[[Any], None] | None = on_sample

    def get(self, *args: Any, **kwargs: Any) -> Any:
        sample = self.queue.get(*args, **kwargs)
        if self.on_sample is not None:
            self.on_sample(sample)
        return sample

    def get_nowait(self) -> Any:
        return self.get(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self.queue,)


class _Observer:
    """Waits for training to begin, and then observes it. Only the main rank has a queue."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer, self.emit, self.options = trainer, emit, options
        self.watch: _TrainingWatch | None = None
        self.wraps = Wraps()
        self.wraps.wrap(trainer, "get_train_dataloader", self._dataloader)
        if getattr(trainer, "is_in_train", False):  # the callback was added while training set itself up
            self._begin(trainer.callback_handler.train_dataloader)

    def _dataloader(self, call: Call) -> Any:
        loader = call.run()
        self._begin(loader)
        return loader

    def _begin(self, loader: Any) -> None:
        self._end()
        if getattr(self.trainer, "rollout_queue", None) is not None:
            with self.wraps.guarded("watch the queue of rollouts"):
                self.watch = _TrainingWatch(self.trainer, loader, self.emit, self.options)

    def _end(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end()

    def detach(self) -> None:
        self._end()
        self.wraps.detach()


class _TrainingWatch:
    """The wrappers on the parts of one training, and the samples on their way through it."""

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
        self.tap = _QueueTap(self.source.queue, self._receive)
        self.source.queue = self.tap

    def end(self) -> None:
        """Submit the remaining samples and remove all wrappers."""
        self._submit(UNKNOWN)
        self.wraps.detach()
        self.tap.on_sample = None
        if self.source.queue is self.tap:
            self.source.queue = self.tap.queue

    # --- observing samples ----------------------------------------------------------------------------------------

    def _receive(self, sample: Any) -> None:
        started, is_recorded = time.perf_counter(), False
        if not self.is_stop_watched:  # not earlier: a worker may pickle itself to start its process
            self.is_stop_watched = True
            with self.guarded("watch the worker's end"):
                self.wraps.wrap(self.trainer.rollout_worker, "stop", self._stopped)
        with self.guarded("record a sample that was received"):
            self._record(sample)
            is_recorded = True
        if not is_recorded:
            self.emit.lost("not_observed", 1)
        if self.stream.is_crowded:
            self._submit()
        self._report_waiting()
        self.seconds += time.perf_counter() - started

    def _record(self, sample: Any) -> None:
        version, done = int(self.trainer.model_version), int(self.trainer.state.global_step)
        self.updates.setdefault(version, done)
        staleness = version - sample.model_version
        policy_step = self.updates.get(sample.model_version)
        self.stream.receive(sample, staleness, self._refusal(sample, staleness), policy_step, done + 1)

    def _refusal(self, sample: Any, staleness: int) -> str:
        """Return why the trainer's settings forbid training on the sample; "" if they allow it."""
        args = self.trainer.args
        if staleness > args.max_staleness:
            return "stale"
        return "over_budget" if 0 < (args.token_budget or 0) < len(sample.input_ids) else ""

    def _packed(self, call: Call) -> Any:
        batch = call.run()
        is_seen = False
        with self.guarded("see the samples of a micro-batch"):
            (rows,) = call.args[0] if call.args else call.kwargs["examples"]
            self.stream.pack([sample["input_ids"] for row in rows for sample in getattr(row, "samples", row)])
            is_seen = True
        self.stream.is_blind |= not is_seen
        return batch

    def _trained(self, call: Call) -> Any:
        loss = call.run()
        with self.guarded("record which samples were trained on"):
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

    # --- submitting -----------------------------------------------------------------------------------------------

    def _submit(self, rest: str = "") -> None:
        started = time.perf_counter()
        with self.guarded("submit rollouts"):
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

            self._report_waiting()

    def _report_waiting(self) -> None:
        """Report the waiting samples, which the engine submits if training ends without stopping its worker."""
        with self.guarded("report how many samples wait"):
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
    """Return the dataset that takes samples from the queue, inside the datasets that batch them."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None and not hasattr(dataset, "queue"):
        dataset = getattr(dataset, "dataset", None)
    if dataset is None:
        raise LookupError("the trainer's dataloader has no dataset with a queue")
    return dataset
