"""Count what was lost, not trained on and not sent, by reason, and what recording cost."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from typing import Any
from weakref import WeakSet

MAX_WARNINGS = 100

_all: WeakSet[Counters] = WeakSet()


class Counters:
    """Counts of one run or attempt. May be used from any thread."""

    def __init__(self) -> None:
        self._renew_lock()
        _all.add(self)
        self.begin()

    def begin(self) -> None:
        """Reset all counts at the start of a run or an attempt."""
        with self._lock:
            self.drops: Counter[str] = Counter()
            self.untrained: Counter[str] = Counter()
            self.untrained_steps: defaultdict[str, Counter[int]] = defaultdict(Counter)
            self.unsent: Counter[str] = Counter()
            self.skipped: Counter[str] = Counter()
            self.rollouts: Counter[str] = Counter()
            self.generations: Counter[str] = Counter()
            self.seconds: Counter[str] = Counter()
            self.errors: Counter[str] = Counter()
            self.warnings: Counter[str] = Counter()
            self.queue_bytes = 0

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # reentrant: a garbage collection may close a pipeline during a count

    def drop(self, reason: str, count: int = 1) -> None:
        """Count lost rollouts."""
        with self._lock:
            self.drops[reason] += count
            if not self.drops[reason]:  # an abandoned batch was stored after all
                del self.drops[reason]

    def left_out(self, reason: str, count: int, *, step: int | None = None) -> None:
        """Count rollouts on which the trainer did not train; the store has them."""
        with self._lock:
            self.untrained[reason] += count
            if step is not None:
                self.untrained_steps[reason][step] += count

    def not_sent(self, sink: str, count: int) -> None:
        """Count rollouts that a sink missed; the store has them."""
        with self._lock:
            self.unsent += Counter({sink: count})

    def skip(self, who: str) -> None:
        """Count a rollout that a plugin did not select for the sinks; the store has it."""
        with self._lock:
            self.skipped[who] += 1

    def queued(self, size: int) -> None:
        """Record the size of the queue, of which the maximum is reported."""
        with self._lock:
            self.queue_bytes = max(self.queue_bytes, size)

    def error(self, who: str) -> None:
        """Count an error of a plugin."""
        with self._lock:
            self.errors[who] += 1

    def warn(self, text: str) -> None:
        """Count a warning. At most `MAX_WARNINGS` different ones are stored."""
        with self._lock:
            if text in self.warnings or len(self.warnings) < MAX_WARNINGS:
                self.warnings[text] += 1

    def spent(self, kind: str, seconds: float) -> None:
        with self._lock:
            self.seconds[kind] += seconds  # type: ignore[assignment]

    def stored(self, split: str, count: int) -> None:
        with self._lock:
            self.rollouts[split] += count
            self.generations[split] += 1

    def counted(self) -> dict[str, dict[str, Any]]:
        """Return all counts, for run.json."""
        with self._lock:
            return {
                "rollouts": dict(self.rollouts),
                "generations": dict(self.generations),
                "drops": dict(self.drops),
                "untrained": dict(self.untrained),
                "untrained_steps": {reason: dict(steps) for reason, steps in self.untrained_steps.items()},
                "unsent": dict(self.unsent),
                "skipped": dict(self.skipped),
                "plugin_errors": dict(self.errors),
                "warnings": dict(self.warnings),
            }

    def costs(self) -> dict[str, Any]:
        """Return what recording cost, for run.json."""
        with self._lock:
            seconds = {kind: round(value, 6) for kind, value in self.seconds.items()}
            return {"seconds": seconds, "queue_bytes": self.queue_bytes}

    def as_metrics(self, queue_bytes: int, bytes_written: int | None) -> dict[str, float]:
        """Return costs and losses as metrics for the trainer's log."""
        with self._lock:
            metrics = {f"seconds/{kind}": float(self.seconds[kind]) for kind in ("training_thread", "worker")}
            metrics["queue_bytes"] = float(queue_bytes)
            if bytes_written is not None:
                metrics["bytes_written"] = float(bytes_written)
            for kind in ("skipped", "untrained", "unsent", "drops"):
                counts: Counter[str] = getattr(self, kind)
                metrics |= {f"{kind}/{reason}": float(count) for reason, count in counts.items()}
            return metrics


def _renew_locks() -> None:
    """Replace the locks in a forked child, where the thread that held one does not exist."""
    for counters in _all:
        counters._renew_lock()  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_locks)
