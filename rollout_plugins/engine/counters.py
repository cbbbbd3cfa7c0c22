"""What was lost, by reason; what is stored but was not trained on, or not sent; and what recording cost."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any
from weakref import WeakSet

_all: WeakSet[Counters] = WeakSet()


class Counters:
    """Adds up what was lost by reason and seconds by kind, from any thread."""

    def __init__(self) -> None:
        self._renew_lock()
        _all.add(self)
        self.begin()

    def begin(self) -> None:
        """Before a run or an attempt."""
        with self._lock:
            self.drops: Counter[str] = Counter()
            self.untrained: Counter[str] = Counter()
            self.unsent: Counter[str] = Counter()
            self.skipped: Counter[str] = Counter()
            self.rollouts: Counter[str] = Counter()
            self.generations: Counter[str] = Counter()
            self.seconds: Counter[str] = Counter()
            self.errors: Counter[str] = Counter()
            self.queue_bytes = 0

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may close a pipeline while this one counts

    def drop(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self.drops[reason] += count
            if not self.drops[reason]:  # what was given up on came back after all
                del self.drops[reason]

    def left_out(self, reason: str, count: int) -> None:
        """Count rollouts that the trainer left out; the store has them."""
        with self._lock:
            self.untrained[reason] += count

    def not_sent(self, sink: str, count: int) -> None:
        """Count rollouts that a sink missed; the store has them."""
        with self._lock:
            self.unsent += Counter({sink: count})

    def skip(self, who: str) -> None:
        """Count a rollout that a plugin did not select for the sinks; the store has it."""
        with self._lock:
            self.skipped[who] += 1

    def queued(self, size: int) -> None:
        """Note how much waits in the queue; the most is kept."""
        with self._lock:
            self.queue_bytes = max(self.queue_bytes, size)

    def error(self, who: str) -> None:
        with self._lock:
            self.errors[who] += 1

    def spent(self, kind: str, seconds: float) -> None:
        with self._lock:
            self.seconds[kind] += seconds  # type: ignore[assignment]

    def stored(self, split: str, count: int) -> None:
        with self._lock:
            self.rollouts[split] += count
            self.generations[split] += 1

    def counted(self) -> dict[str, dict[str, int]]:
        """What happened, for run.json."""
        with self._lock:
            return {
                "rollouts": dict(self.rollouts),
                "generations": dict(self.generations),
                "drops": dict(self.drops),
                "untrained": dict(self.untrained),
                "unsent": dict(self.unsent),
                "skipped": dict(self.skipped),
                "plugin_errors": dict(self.errors),
            }

    def costs(self) -> dict[str, Any]:
        """What recording cost, for run.json."""
        with self._lock:
            seconds = {kind: round(value, 6) for kind, value in self.seconds.items()}
            return {"seconds": seconds, "queue_bytes": self.queue_bytes}


def _renew_locks() -> None:
    """In a forked child: a thread that held one of them is not there to give it back."""
    for counters in _all:
        counters._renew_lock()  # noqa: SLF001 - one class in two parts


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_locks)
