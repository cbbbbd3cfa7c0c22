"""Show each distinct rollout to the sinks once. The store keeps all, and the share of duplicates is a metric."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollout_hookspecs import Rollout, Step, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.numbers import finite
from rollout_plugins.system.option_checks import check, flag, integer, one_of

KINDS = ("prompt", "completion", "rollout")
KEEP = ("first", "best")
MEMORY = 100_000


@dataclass(slots=True)
class _ShownRollout:
    """The rollout with some content that the sinks were shown last."""

    step: int
    reward: float
    id: str


class Dedup:
    """Shows equal rollouts to the sinks only once. A hash of their content decides whether rollouts are equal.

    The order of dict keys does not matter, types do, and images are compared by their pixels. `dedup/duplicates` is
    the share of a step's rollouts that repeat another rollout of the step: if it rises, the model is collapsing.

    by: what must be equal: `rollout` (prompt and completion), `completion`, or `prompt`.
        Dedup("completion")
    window: how many steps back a rollout still counts as shown; 0 compares only within a step. Train and eval are
        separate. At most 100,000 hashes are remembered (about 20 MB), and the oldest are forgotten first.
        Dedup(window=50)
    keep: which of the equal rollouts in a step to show: the `first`, or the `best` by reward. With `best`, a rollout
    that
        beats an equal one from an earlier step is shown too.
        Dedup(keep="best")
    siblings: with by="prompt", the rollouts of a group have the same prompt and stay together; True makes each of
        them count as a duplicate.
        Dedup("prompt", siblings=True)
    """

    def __init__(self, by: str = "rollout", *, window: int = 0, keep: str = "first", siblings: bool = False) -> None:
        check(
            "dedup",
            one_of("by", by, KINDS),
            integer("window", window, 0),
            one_of("keep", keep, KEEP),
            flag("siblings", siblings),
            "siblings=True is only for by='prompt'" if siblings is True and by != "prompt" else None,
        )
        self._by = by
        self._window = window
        self._best = keep == "best"
        self._groups = by == "prompt" and not siblings
        self.on_run_start()

    @hookimpl
    def on_run_start(self) -> None:
        self._shown: dict[str, OrderedDict[str, _ShownRollout]] = {}
        self.skip_reasons: dict[str, str] = {}

    @hookimpl
    def select_rollouts(self, rollouts: Sequence[Rollout], step: Step) -> list[Rollout]:
        self.skip_reasons = {}
        units_by_key: dict[str, list[list[Rollout]]] = {}
        for unit in self._units(rollouts):
            units_by_key.setdefault(self._key(unit[0]), []).append(unit)
        marks: dict[str, str] = {}
        for key, units in units_by_key.items():
            self._choose(key, units, step, marks)
        return [_with_mark(r, marks.get(r.id)) for r in rollouts if r.id not in self.skip_reasons]

    @hookimpl
    def rollout_metrics(self, rollouts: Sequence[Rollout]) -> Mapping[str, float] | None:
        units = self._units(rollouts)
        if not units:
            return None
        different = len({self._key(unit[0]) for unit in units})
        return {"dedup/duplicates": 1 - different / len(units), "dedup/different": different}

    def _units(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Return the lists of rollouts that are kept or left out together: single rollouts, or groups."""
        if not self._groups:
            return [[rollout] for rollout in rollouts]
        groups: dict[int, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.group, []).append(rollout)
        return list(groups.values())

    def _key(self, rollout: Rollout) -> str:
        if self._by == "prompt":
            return content_hash(rollout.prompt)
        if self._by == "completion":
            return content_hash(rollout.completion)
        return content_hash((rollout.prompt, rollout.completion))

    def _choose(self, key: str, units: list[list[Rollout]], step: Step, marks: dict[str, str]) -> None:
        """Keep one of the equal units, or none if the sinks were shown an equal one before."""
        first = max(units, key=_reward) if self._best else units[0]  # max returns the first of equal maxima
        previous = self._remembered(key, step)
        is_same_rollout = previous is not None and any(r.id == previous.id for unit in units for r in unit)
        if previous is not None and not is_same_rollout and not (self._best and _reward(first) > previous.reward):
            self._skip(units, f"same {self._by} as {previous.id} of step {previous.step}")
            return
        self._remember(key, _ShownRollout(step.step, _reward(first), first[0].id), step)
        duplicates = [unit for unit in units if unit is not first]
        self._skip(duplicates, f"same {self._by} as {first[0].id} of this step")
        if duplicates:
            marks.update(
                (rollout.id, f"stands for {len(duplicates)} more with the same {self._by}") for rollout in first
            )

    def _skip(self, units: Sequence[Sequence[Rollout]], reason: str) -> None:
        self.skip_reasons.update((rollout.id, reason) for unit in units for rollout in unit)

    def _remembered(self, key: str, step: Step) -> _ShownRollout | None:
        previous = self._shown[step.split].get(key) if step.split in self._shown else None
        return previous if previous is not None and 0 <= step.step - previous.step <= self._window else None

    def _remember(self, key: str, previous: _ShownRollout, step: Step) -> None:
        memory = self._shown.setdefault(step.split, OrderedDict())
        memory[key] = previous
        memory.move_to_end(key)
        while len(memory) > MEMORY or next(iter(memory.values())).step < step.step - self._window:
            memory.popitem(last=False)


def _reward(unit: Sequence[Rollout]) -> float:
    """Return the unit's best reward, or minus infinity if it has none."""
    return max((value for r in unit if (value := finite(r.reward)) is not None), default=float("-inf"))


def _with_mark(rollout: Rollout, mark: str | None) -> Rollout:
    return rollout if mark is None else replace(rollout, marks={**rollout.marks, "dedup": mark})
