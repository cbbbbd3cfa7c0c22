"""Watch a trainer make a generation: the wrappers on its methods, and what they have seen so far."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Final, TypeAlias

from rollout_hookspecs import Batch, Emit

from rollout_plugins.hosts.kit.building import batch_of
from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.generation import Generation
from rollout_plugins.hosts.kit.wrapping import Call, Wraps

TOOL_LOOP: Final = ("prompts", "prompt_ids", "completion_ids", "completions")
AroundOne: TypeAlias = Callable[[Any, Call], Any]
Needs: TypeAlias = Mapping[str, tuple[str, ...]]
"""Methods, and the arguments they take."""


class Observer:
    """The wrappers on one trainer, and the generation that each thread is making."""

    needs: ClassVar[Needs] = {}
    """Methods by which the trainer is known, with the arguments they take."""
    without: ClassVar[tuple[str, ...]] = ()
    """What a trainer of this kind does not have, unlike another kind with the same methods."""

    answers_each: ClassVar[int] = 1
    """How many rollouts a row of the trainer's inputs gives."""
    decodes: ClassVar[bool] = False
    """Whether the trainer has completions as token ids alone."""

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
    def now(self) -> Generation | None:
        """A trainer may generate the next batch on a thread while it scores this one."""
        return getattr(self._threads, "now", None)

    @now.setter
    def now(self, generation: Generation | None) -> None:
        self._threads.now = generation

    def watch(
        self, name: str, around: AroundOne, parameters: tuple[str, ...] | None = None, *, optional: bool = False
    ) -> None:
        """Wrap a method of the trainer with `around(generation, call)`, which runs the call.

        Whichever watched method is entered first begins the generation, and it is handed over when that one is left.
        So the trainer may lack one of them, and may raise anywhere: what was seen until then is recorded.
        """

        def inside(call: Call) -> Any:
            with self._generation() as now:
                return call.run() if now is None else around(now, call)

        if optional and not hasattr(self.trainer, name):
            return
        taken = self.needs.get(name, ()) if parameters is None else parameters
        if not self.wraps.wrap(self.trainer, name, inside, taken):
            self.refused.append(name)
            if callable(getattr(self.trainer, name, None)):
                self.wraps.wrap(self.trainer, name, self._unseen)

    def _unseen(self, call: Call) -> Any:
        """A method that takes other arguments: if no other tells what was made, the rows it was given are counted."""
        with self._generation() as now:
            with self.guarded("count the rows of a generation"):
                if now is not None and not now.expected:
                    now.expected = self.answers_each * rows_in(call)
            return call.run()

    @contextmanager
    def _generation(self) -> Iterator[Generation | None]:
        if self.now is not None:
            yield self.now
            return
        here = os.getpid()
        with self.guarded("begin a generation"):
            self.now = self.begin()
        try:
            yield self.now
        except BaseException as error:
            if self.now is not None:
                self.now.failed(error)
            raise
        finally:
            if self.now is not None and os.getpid() == here:  # what a forked copy leaves is its parent's
                self.hand_over(self.now)
            self.now = None

    def _evaluating(self, call: Call) -> Any:
        """A reward function may evaluate: those generations are not the one that is being scored."""
        outer, self.now = self.now, None
        if outer is not None:
            outer.rewards.is_paused = True
        try:
            return call.run()
        finally:
            self.now = outer
            if outer is not None:
                outer.rewards.is_paused = False

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Work of ours on the training thread: its mistakes end here, and its time is counted."""
        started = time.perf_counter()
        with self.wraps.guarded(what):
            yield
        if self.now is not None:
            self.now.seconds += time.perf_counter() - started

    def begin(self) -> Generation:
        now = Generation(self.trainer, self.options)
        now.decoder = self.decoder
        return now

    def detach(self) -> None:
        self.wraps.detach()

    def hand_over(self, now: Generation) -> None:
        """What was generated is worth keeping however far the trainer, or we, got with it."""
        if now.count:
            with self.guarded("read the rewards"):
                now.read_rewards()
            with self.guarded("record a generation"):
                self.emit(self.batch(now))
                self.count_refused(now.count)
        elif now.error is None and now.expected:
            self.missed(now)

    def batch(self, now: Generation) -> Batch:
        return batch_of(now)

    def count_refused(self, count: int) -> None:
        """Count rollouts that are stored without what a method we could not watch would have shown."""
        for name in self.refused:
            self.emit.lost(f"without:{name}", count)

    def missed(self, now: Generation) -> None:
        """The trainer made rollouts, and no wrapper of ours saw them."""
        self.lose(now.expected)

    def lose(self, count: int) -> None:
        """Count rollouts that were made and could not be kept; say so the first time."""
        self.emit.lost("not_observed", count)
        self.wraps.once.warn(
            "%s made %d rollouts in a way that cannot be observed; such are counted as not_observed; "
            "docs/trainers.md says how to write a host for it",
            type(self.trainer).__name__, count,
        )  # fmt: skip

    def given(self, now: Generation, call: Call) -> None:
        """The rows of the dataset that a method was called with as its `inputs`."""
        with self.guarded("see the rows of a generation"):
            now.rows = call.arguments["inputs"]
            now.expected = len(now.rows)

    def scored(self, now: Generation, call: Call) -> Any:
        """Run a method that calls the reward functions, and see what each of them gives."""
        with self._swap("watch the reward functions", now.rewards.watched):
            out = call.run()
        with self.guarded("read the weights of the rewards"):
            now.rewards.weigh()
        return out

    def tool_loop(self, now: Generation, call: Call) -> Any:
        """Around `_tool_call_loop`: what each call did, and the completions it made as messages."""
        try:
            with self._swap("watch the tools", now.watched_tools):
                out = call.run()
        except BaseException:
            with self.guarded("take a snapshot of a generation"):
                now.broken_off(call.named(TOOL_LOOP))
            raise
        if isinstance(out, tuple) and len(out) > 1:
            now.tool_mask, now.said = out[0], out[1]
        return out

    @contextmanager
    def _swap(self, what: str, watched: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        swap: AbstractContextManager[None] = nullcontext()
        with self.guarded(what):
            swap = watched()
        with swap:
            yield


def rows_in(call: Call) -> int:
    """How many rows a method was given: a list of them, or a dictionary of columns."""
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, Mapping):
            return max(map(_length, value.values()), default=0)
        if isinstance(value, (list, tuple)):
            return len(value)
    return 0


def _length(column: Any) -> int:
    """Of a list or a tensor; other columns do not tell how many rows there are."""
    shape = getattr(column, "shape", ())
    return len(column) if isinstance(column, (list, tuple)) else int(shape[0]) if shape else 0
