"""Read the run files: the facts of a run, its attempts and their counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Run

from rollout_plugins.errors import RunError
from rollout_plugins.store.run_facts import as_count, as_list, read_facts, run_files
from rollout_plugins.store.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WHOLE = ("attempt", "rank", "world_size", "num_generations", "resumed_from")
_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "name", "trainer", "host", "model", "chat_template"), str),
    **dict.fromkeys(("versions", "settings"), dict),
}
_TUPLES: dict[str, type | tuple[type, ...]] = {"reward_names": str, "reward_weights": (int, float), "tools": dict}
_COUNTS = ("rollouts", "generations", "drops", "untrained", "unsent", "skipped", "plugin_errors", "warnings")
#: The facts that should be equal on all ranks.
_SHARED = ("world_size", "trainer", "host", "model", "num_generations", "reward_names", "versions")
# Earlier versions counted these as drops, although the rollouts are stored.
_STORED = {"skipped_by": "skipped", "not_trained": "untrained", "sink_failed": "unsent"}
_YEAR_9000 = 2.2e11


class Facts:
    """The content of a run's run files."""

    def __init__(self, folder: Path, damaged: dict[str, str]) -> None:
        self._folder = folder
        self._read = [facts for path in run_files(folder) if (facts := read_facts(path, damaged))]
        newest = max((as_count(facts.get("schema")) or 1 for facts in self._read), default=1)
        if newest > VERSION:
            raise RunError(
                f"{folder} was written with schema {newest}; this version reads up to {VERSION}: "
                "pip install -U rollout-plugins"
            )

    @property
    def info(self) -> Run:
        recorded = self._read[0] if self._read else {}
        facts = {name: value for name, value in recorded.items() if _is_fact(name, value)}
        for name, kind in _TUPLES.items():
            facts[name] = tuple(value for value in as_list(recorded.get(name)) if isinstance(value, kind))
        return Run(**{"id": self._folder.name, **facts, "dir": str(self._folder)})

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return [
            _attempt(attempt, as_count(facts.get("rank")) or 0)
            for facts in self._read
            for attempt in as_list(facts.get("attempts"))
            if isinstance(attempt, dict)
        ]

    @property
    def contradictions(self) -> list[str]:
        """One line for each fact of the newest attempt that two ranks recorded differently."""
        newest = max((attempt["attempt"] for attempt in self.attempts), default=1)
        newest_facts = [facts for facts in self._read if _last_attempt(facts) == newest]
        return [
            f"rank {as_count(facts.get('rank')) or 0} says that {name} is {facts[name]!r}, and rank "
            f"{as_count(newest_facts[0].get('rank')) or 0} that it is {newest_facts[0][name]!r}"
            for facts in newest_facts[1:]
            for name in _SHARED
            if name in facts and name in newest_facts[0] and facts[name] != newest_facts[0][name]
        ]

    @property
    def chosen(self) -> dict[str, Any]:
        """The filters with which these rollouts were selected from a larger run, or an empty dict."""
        filters = self._read[0].get("chosen") if self._read else None
        return filters if isinstance(filters, dict) else {}

    @property
    def started(self) -> float | None:
        """When the newest attempt began, by its machine's clock; None if that is not recorded."""
        return max((a["started"] for a in self.attempts if a["started"] is not None), default=None)

    def total(self, what: str) -> dict[str, int]:
        """Return the sum of one kind of count over all ranks and attempts."""
        total: Counter[str] = Counter()
        for attempt in self.attempts:
            total.update(attempt.get(what, {}))
        return dict(total)

    @property
    def untrained(self) -> dict[str, int]:
        """The number of rollouts that were not trained on, by reason, without superseded ones."""
        total = Counter(self.total("untrained"))
        for attempt in self.attempts:
            by_step = attempt.get("untrained_steps")
            for reason, steps in by_step.items() if isinstance(by_step, dict) else ():
                total[reason] -= sum(
                    count for step, count in _counts(steps).items() if self._is_superseded(attempt["attempt"], step)
                )
        return {reason: count for reason, count in total.items() if count > 0}

    def _is_superseded(self, attempt: int, step: str) -> bool:
        return step.isdigit() and any(later > attempt and int(step) > start for later, start in self.restarts)

    @property
    def costs(self) -> dict[str, float]:
        noted = [attempt for attempt in self.attempts if isinstance(attempt.get("seconds"), dict)]
        spent = {
            name: [_number(each["seconds"].get(name)) for each in noted] for name in ("training_thread", "worker")
        }
        sizes = {name: [_number(each.get(name)) for each in noted] for name in ("bytes_written", "queue_bytes")}
        if not noted:
            return {}
        return {
            **{f"seconds/{name}": sum(seconds) for name, seconds in spent.items()},
            "bytes_written": sum(sizes["bytes_written"]),
            "queue_bytes": max(sizes["queue_bytes"]),
        }

    @property
    def restarts(self) -> list[tuple[int, int]]:
        """(attempt, step it resumed from) of every attempt that may have repeated steps."""
        restarts = {(a["attempt"], a["resumed_from"]) for a in self.attempts}
        return sorted((attempt, step) for attempt, step in restarts if attempt > 1 and step is not None)


def _last_attempt(facts: Mapping[str, Any]) -> int:
    attempts = [attempt for attempt in as_list(facts.get("attempts")) if isinstance(attempt, dict)]
    return max((as_count(attempt.get("attempt")) or 1 for attempt in attempts), default=1)


def _is_fact(name: str, value: Any) -> bool:
    """Return True if a fact has the type that `Run` expects; run files may have been edited."""
    return as_count(value) is not None if name in _WHOLE else isinstance(value, _KINDS.get(name, ()))


def _attempt(record: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return an attempt's record with checked numbers."""
    counts = {name: _counts(record[name]) for name in _COUNTS if name in record}
    for reason in list(counts.get("drops", ())):
        kind, _, rest = reason.partition(":")
        if kind in _STORED:
            counts.setdefault(_STORED[kind], {})[rest] = counts["drops"].pop(reason)
    times = {name: _time(record.get(name)) for name in ("started", "ended")}
    step = as_count(record.get("resumed_from"))
    return {
        **record,
        **counts,
        **times,
        "resumed_from": step,
        "attempt": as_count(record.get("attempt")) or 1,
        "rank": rank,
    }


def _counts(value: Any) -> dict[str, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): number for name, count in items if (number := as_count(count)) is not None}


def _number(value: Any) -> float:
    return value if type(value) in {int, float} and 0 <= value < math.inf else 0.0


def _time(value: Any) -> float | None:
    """Return a Unix time for which a calendar has a date, or None."""
    return float(value) if type(value) in {int, float} and 0 < value < _YEAR_9000 else None
