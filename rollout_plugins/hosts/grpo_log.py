"""TRL's in-memory log of the last generation: advantages as numbers, and the rollouts of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rollout_hookspecs import Batch, Rollout

from rollout_plugins.hosts.kit.building import Builder, batch_of
from rollout_plugins.hosts.kit.generation import Generation


class LogTail:
    """The last generation in TRL's in-memory log, of all ranks. Only what is asked for is copied."""

    def __init__(self, logs: Mapping[str, Any], total: int, names: Sequence[str]) -> None:
        self._logs = logs
        self._total = total
        self._names = names

    @classmethod
    def of(cls, now: Generation, before: Sequence[Any] | None) -> LogTail | None:
        """None when the log does not hold that many rows, or got another number of them since `before`."""
        logs, total = getattr(now.trainer, "_logs", None), now.count * now.world
        if not isinstance(logs, dict) or not total or len(logs.get("advantages", ())) < total:
            return None
        return cls(logs, total, now.rewards.names) if _added(logs["advantages"], before) in {None, total} else None

    @staticmethod
    def before(trainer: Any) -> list[Any] | None:
        """The advantages that are in the log now. They are numbers made for it, so each is known again."""
        logs = getattr(trainer, "_logs", None)
        return list(logs["advantages"]) if isinstance(logs, dict) and "advantages" in logs else None

    def _tail(self, rows: Any) -> list[Any]:
        return list(islice(rows, len(rows) - self._total, None))

    def advantages(self) -> list[float | None]:
        return self._tail(self._logs["advantages"])

    def reward(self, name: str) -> list[float] | None:
        """One function's rewards, if they are logged under a name of its own: TRL mixes those of one name."""
        if any(other.startswith(f"{name}#") for other in self._names):
            return None
        rows = self._logs["rewards"].get(name, ())
        return self._tail(rows) if len(rows) >= self._total else None

    def everything(self) -> dict[str, Any]:
        """All that is known of these rollouts, safe from what the trainer logs next."""
        rows = len(self._logs["advantages"])
        extra = {name: values for name, values in (self._logs.get("extra") or {}).items() if len(values) == rows}
        rewards = {name: self.reward(name) for name in self._names}
        return {
            "prompt": self._tail(self._logs["prompt"]),
            "completion": self._tail(self._logs["completion"]),
            "advantages": self.advantages(),
            "rewards": {name: values for name, values in rewards.items() if values is not None},
            "extra": {name: self._tail(values) for name, values in extra.items()},
        }


def _added(rows: Any, before: Sequence[Any] | None) -> int | None:
    """How many rows the log has got since; None if that is not known."""
    if before is None:
        return None
    old = set(map(id, before))
    return sum(id(row) not in old for row in rows)


def batch_from_log(trainer: Any, count: int, before: Sequence[Any] | None = None) -> Batch | None:
    """This rank's rows of the last generation in the trainer's log, for one that was not observed."""
    now = Generation(trainer, {})
    now.count = count
    log = LogTail.of(now, before)
    if log is None:
        return None
    logged = log.everything()
    start = now.rank * count
    builder = Builder(now)

    def build() -> list[Rollout]:
        return [builder.logged(logged, start + i, now.rank) for i in range(count)]

    return batch_of(now, build)
