"""Read TRL's in-memory log of the last generation: the advantages as numbers, and the rollouts of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rollout_hookspecs import Batch, Rollout

from rollout_plugins.hosts.kit.build_rollouts import Builder, batch_of
from rollout_plugins.hosts.kit.observed_generation import Generation


class LogTail:
    """The last generation of all ranks in TRL's in-memory log. Each method copies only what it returns."""

    def __init__(self, logs: Mapping[str, Any], total: int, names: Sequence[str]) -> None:
        self._logs = logs
        self._total = total
        self._names = names

    @classmethod
    def of(cls, generation: Generation, before: Sequence[Any] | None) -> LogTail | None:
        """Return the log's tail for this generation.

        Return None if the log is shorter than the generation, or if another number of rows was added since `before`.
        """
        logs, total = getattr(generation.trainer, "_logs", None), generation.count * generation.world
        if not isinstance(logs, dict) or not total or len(logs.get("advantages", ())) < total:
            return None
        return (
            cls(logs, total, generation.rewards.names) if _added(logs["advantages"], before) in {None, total} else None
        )

    @staticmethod
    def before(trainer: Any) -> list[Any] | None:
        """Return the advantages in the log, to tell later which rows are new.

        TRL creates a number object for each row, so the identity of the object identifies the row.
        """
        logs = getattr(trainer, "_logs", None)
        return list(logs["advantages"]) if isinstance(logs, dict) and "advantages" in logs else None

    def _tail(self, rows: Any) -> list[Any]:
        return list(islice(rows, len(rows) - self._total, None))

    def advantages(self) -> list[float | None]:
        return self._tail(self._logs["advantages"])

    def reward(self, name: str) -> list[float] | None:
        """Return the rewards of one function, or None if another function has the same name: TRL mixes their rows."""
        if any(other.startswith(f"{name}#") for other in self._names):
            return None
        rows = self._logs["rewards"].get(name, ())
        return self._tail(rows) if len(rows) >= self._total else None

    def everything(self) -> dict[str, Any]:
        """Copy all that the log holds of these rollouts, so that later rows do not change it."""
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
    """Return how many rows were added since `before`; None if that is unknown."""
    if before is None:
        return None
    old = set(map(id, before))
    return sum(id(row) not in old for row in rows)


def batch_from_log(trainer: Any, count: int, before: Sequence[Any] | None = None) -> Batch | None:
    """Return this rank's rows of the last generation in the trainer's log, for one that was not observed."""
    generation = Generation(trainer, {})
    generation.count = count
    log = LogTail.of(generation, before)
    if log is None:
        return None
    logged = log.everything()
    start = generation.rank * count
    builder = Builder(generation)

    def build() -> list[Rollout]:
        return [builder.logged(logged, start + i, generation.rank) for i in range(count)]

    return batch_of(generation, build)
