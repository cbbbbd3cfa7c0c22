"""Observe a trainer while it generates, through wrappers on its methods."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Final, TypeAlias

from rollout_hookspecs import Batch, Emit

from rollout_plugins.hosts.kit.build_rollouts import batch_of
from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.wrapping import Call, Wraps

TOOL_LOOP: Final = ("prompts", "prompt_ids", "completion_ids", "completions")
AroundOne: TypeAlias = Callable[[Any, Call], Any]
Needs: TypeAlias = Mapping[str, tuple[str, ...]]
"""The arguments of each required method, by the method's name."""


class Observer:
    """Observes one trainer through wrappers on its methods, and holds the current generation of each thread."""

    needs: ClassVar[Needs] = {}
    """The methods that a matching trainer has, with their arguments."""
    without: ClassVar[tuple[str, ...]] = ()
    """Attributes that a matching trainer lacks, to tell it from another kind with the same methods."""

    answers_each: ClassVar[int] = 1
    """The number of rollouts for each row of the trainer's inputs."""
    decodes: ClassVar[bool] = False
    """Whether the trainer has completions only as token ids."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.emit = emit
        self.options = options
        self._threads = threading.local()
        self.refused: list[str] = []
        self.wraps = Wraps()
        self.decoder = Decoder(trainer, options) if self.decodes else None
        if hasattr(trainer, "evaluation_loop"):
            self.wraps.wrap(trainer, "evaluation_loop", self._evaluating)

    @property
    def is_training(self) -> bool:
        """Whether the current generation is for training.

        The model's own flag is not enough: Unsloth's RLOO leaves its model in training mode while it evaluates.
        """
        return bool(self.trainer.model.training) and not getattr(self._threads, "is_evaluating", False)

    @property
    def current(self) -> Generation | None:
        """The current generation of this thread.

        Each thread has its own, because a trainer may generate the next batch on a thread while it scores this one.
        """
        return getattr(self._threads, "current", None)

    @current.setter
    def current(self, generation: Generation | None) -> None:
        self._threads.current = generation

    def watch(
        self, name: str, around: AroundOne, parameters: tuple[str, ...] | None = None, *, optional: bool = False
    ) -> None:
        """Wrap a method of the trainer with `around(generation, call)`, which runs the call.

        The watched method that is entered first begins the generation, which is submitted when that method returns.
        The trainer may therefore lack some of them, and may raise anywhere: what was observed until then is recorded.
        """

        def inside(call: Call) -> Any:
            with self._generation() as generation:
                return call.run() if generation is None else around(generation, call)

        if optional and not hasattr(self.trainer, name):
            return
        expected_parameters = self.needs.get(name, ()) if parameters is None else parameters
        if not self.wraps.wrap(self.trainer, name, inside, expected_parameters):
            self.refused.append(name)
            if callable(getattr(self.trainer, name, None)):
                self.wraps.wrap(self.trainer, name, self._unseen)

    def _unseen(self, call: Call) -> Any:
        """Count the rows passed to a method with unexpected arguments, in case no other method shows its rollouts."""
        with self._generation() as generation:
            with self.guarded("count the rows of a generation"):
                if generation is not None and not generation.expected:
                    generation.expected = self.answers_each * rows_in(call)
            return call.run()

    @contextmanager
    def _generation(self) -> Iterator[Generation | None]:
        if self.current is not None:
            yield self.current
            return
        process_id = os.getpid()
        with self.guarded("begin a generation"):
            self.current = self.begin()
        try:
            yield self.current
        except BaseException as error:
            if self.current is not None:
                self.current.failed(error)
            raise
        finally:
            if self.current is not None and os.getpid() == process_id:  # after a fork, the parent submits it
                self.submit(self.current)
            self.current = None

    def _evaluating(self, call: Call) -> Any:
        """Set the current generation aside during an evaluation, which a reward function may start."""
        outer, self.current = self.current, None
        is_nested, self._threads.is_evaluating = getattr(self._threads, "is_evaluating", False), True
        if outer is not None:
            outer.rewards.is_paused = True
        try:
            return call.run()
        finally:
            self.current, self._threads.is_evaluating = outer, is_nested
            if outer is not None:
                outer.rewards.is_paused = False

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Catch and log errors of a block that observes the trainer, and add its time to the cost of recording."""
        started = time.perf_counter()
        with self.wraps.guarded(what):
            yield
        if self.current is not None:
            self.current.seconds += time.perf_counter() - started

    def begin(self) -> Generation:
        """Create the generation that begins when a watched method is entered."""
        generation = Generation(self.trainer, self.options, training=self.is_training)
        generation.decoder = self.decoder
        return generation

    def detach(self) -> None:
        self.wraps.detach()

    def submit(self, generation: Generation) -> None:
        """Submit a generation, however far the trainer or the observer got with it."""
        if generation.count:
            with self.guarded("read the rewards"):
                generation.read_rewards()
            with self.guarded("record a generation"):
                self.emit(self.batch(generation))
                self.count_refused(generation.count)
        elif generation.error is None and generation.expected:
            self.on_unobserved(generation)

    def batch(self, generation: Generation) -> Batch:
        return batch_of(generation)

    def count_refused(self, count: int) -> None:
        """Count rollouts that lack the values of a method that could not be wrapped."""
        for name in self.refused:
            self.emit.lost(f"without:{name}", count)

    def on_unobserved(self, generation: Generation) -> None:
        """Count a generation that no wrapper observed."""
        self.count_unobserved(generation.expected)

    def count_unobserved(self, count: int) -> None:
        """Count rollouts that could not be recorded, and warn the first time."""
        self.emit.lost("not_observed", count)
        self.wraps.once.warn(
            "%s generated %d rollouts in a way that cannot be observed; they are counted as not_observed; "
            "docs/how-to/host.md explains how to write a host for it",
            type(self.trainer).__name__, count,
        )  # fmt: skip

    def store_rows(self, generation: Generation, call: Call) -> None:
        """Record the dataset rows that a call received in its argument `inputs`."""
        with self.guarded("see the rows of a generation"):
            generation.rows = call.arguments["inputs"]
            generation.expected = len(generation.rows)

    def run_rewards(self, generation: Generation, call: Call) -> Any:
        """Run a method that calls the reward functions, and record the result of each function."""
        with self._swap("watch the reward functions", generation.rewards.watched):
            out = call.run()
        with self.guarded("read the weights of the rewards"):
            generation.rewards.weigh()
        return out

    def tool_loop(self, generation: Generation, call: Call) -> Any:
        """Run `_tool_call_loop`, and record its tool calls and the messages that it returns."""
        try:
            with self._swap("watch the tools", generation.watched_tools):
                out = call.run()
        except BaseException:
            with self.guarded("take a snapshot of a generation"):
                generation.snapshot_after_error(call.named(TOOL_LOOP))
            raise
        if isinstance(out, tuple) and len(out) > 1:
            generation.tool_mask, generation.tool_loop_completions = out[0], out[1]
        return out

    @contextmanager
    def _swap(self, what: str, watched: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        swap: AbstractContextManager[None] = nullcontext()
        with self.guarded(what):
            swap = watched()
        with swap:
            yield


def rows_in(call: Call) -> int:
    """Return the number of rows passed to a method, as a list of rows or a dictionary of columns."""
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, Mapping):
            return max(map(_length, value.values()), default=0)
        if isinstance(value, (list, tuple)):
            return len(value)
    return 0


def _length(column: Any) -> int:
    """Return the number of rows of a list or a tensor; 0 for other columns, whose length means something else."""
    shape = getattr(column, "shape", ())
    return len(column) if isinstance(column, (list, tuple)) else int(shape[0]) if shape else 0
