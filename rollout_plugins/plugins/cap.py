"""A limit on how many rollouts of each step go to the sinks, chosen to be worth reading."""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rollout_hookspecs import Rollout, Run, Step, hookimpl

from rollout_plugins.content.numbers import real
from rollout_plugins.plugins.strategies import STRATEGIES, Pool, Reasons
from rollout_plugins.system.labels import NUMBERS
from rollout_plugins.system.option_checks import check, one_of, whole
from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")

_FIELDS = frozenset(field.name for field in fields(Rollout))
_STEPS_REMEMBERED = 16

Key = str | Callable[[Rollout], float | None]
Strategy = str | Callable[[Sequence[Rollout], int], Sequence[Rollout]]


class Cap:
    """Keeps at most `max_per_step` rollouts of each step, and of each evaluation, for the sinks; the store has all.

    The limit holds for the whole step: over all batches of it, where a host streams, and over all ranks, where each
    sees its own rollouts (they share it). Where it leaves some out, the `marks` of each say why it was kept or
    skipped, and of how many. No global random generator is used.

    max_per_step: how many.
        Cap(32)
    strategy: `groups` (whole groups: one with errors first, then the best and the worst rollout's, then others with
        errors, then at random), `top_bottom` (the k best and k worst), `random`, `first`, or a function of the
        rollouts and the number of places left that returns some of them.
        Cap(strategy="random")
        Cap(strategy=lambda rollouts, places: [r for r in rollouts if r.finish == "length"][:places])
    key: what best and worst mean: a numeric field of `Rollout`, the name of a reward function, or a function.
        Cap(key="advantage")
        Cap(key=lambda rollout: len(rollout.tool_calls))
    k: how many at each end, for `top_bottom`; by default as many as fit.
        Cap(strategy="top_bottom", k=2)
    seed: for the strategies that draw.
        Cap(strategy="random", seed=7)
    """

    headlines = ()

    def __init__(
        self,
        max_per_step: int = 16,
        *,
        strategy: Strategy = "groups",
        key: Key = "reward",
        k: int | None = None,
        seed: int = 0,
    ) -> None:
        check(
            "cap",
            whole("max_per_step", max_per_step, 1),
            None if callable(strategy) else one_of("strategy", strategy, tuple(STRATEGIES)),
            _key_fault(key),
            whole("k", k, 1, optional=True),
            "k is for strategy='top_bottom' alone" if k is not None and strategy != "top_bottom" else None,
            whole("seed", seed, 0),
        )
        self.max_per_step = max_per_step
        self._strategy = strategy
        self._key = key
        self._ends = k
        self._seed = seed
        self._begin()

    def _begin(self) -> None:
        """What is known of a run before its first rollout."""
        self.skip_reasons: dict[str, str] = {}
        self._once = Once()
        self._steps: OrderedDict[tuple[str, int, str, int], Pool] = OrderedDict()
        self._counts: dict[str, Counter[str]] = {}

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._begin()
        known = self._key in _FIELDS or self._key in run.reward_names
        if isinstance(self._key, str) and run.reward_names and not known:
            names = ", ".join(run.reward_names)
            logger.warning(
                "cap: key %r is not a reward function of this run (%s); all rollouts rank the same", self._key, names
            )

    @hookimpl(trylast=True)  # after whatever else leaves rollouts out, wherever a person lists it
    def select_rollouts(self, rollouts: Sequence[Rollout], step: Step) -> list[Rollout]:
        pool = self._pool(step)
        pool.add(rollouts, [self._rank_value(rollout) for rollout in rollouts])
        reasons = self._choose(rollouts, pool)
        pool.kept.update(reasons)
        counts = f"{len(pool.kept)} of {len(pool.entries)} kept"
        total = self._counts.setdefault(step.split, Counter())
        total.update(seen=len(rollouts), kept=len(reasons))
        self.skip_reasons = {r.id: f"over {pool.places} a step; {counts}" for r in rollouts if r.id not in reasons}
        if len(pool.kept) == len(pool.entries):
            return list(rollouts)
        return [
            replace(r, marks={**r.marks, "cap": f"{reasons[r.id]}; {counts}"}) for r in rollouts if r.id in reasons
        ]

    @hookimpl
    def rollout_metrics(self, step: Step) -> Mapping[str, float] | None:
        """Seen and kept since they were last asked for."""
        counts = self._counts.pop(step.split, None)
        return None if counts is None else {f"cap/{name}": float(value) for name, value in counts.items()}

    def _pool(self, step: Step) -> Pool:
        """What was seen of this step so far, or of this evaluation: there may be several at one step."""
        key = (step.split, step.step, step.dataset, step.evaluation)
        pool = self._steps.get(key)
        if pool is None:
            pool = Pool(self._places(step), f"{self._seed}-{step.split}-{step.step}", self._ends)
            self._steps[key] = pool
            if len(self._steps) > _STEPS_REMEMBERED:
                self._steps.popitem(last=False)
        return pool

    def _places(self, step: Step) -> int:
        """The part of the cap this process has; all of it where it sees the rollouts of all ranks."""
        if step.gathered or step.world_size <= 1:
            return self.max_per_step
        each, over = divmod(self.max_per_step, step.world_size)
        return each + (step.rank < over)

    def _choose(self, rollouts: Sequence[Rollout], pool: Pool) -> Reasons:
        """Why each of the chosen is kept, by id; never more than there is room for."""
        if callable(self._strategy):
            chosen = self._asked(rollouts, pool.room)
            if chosen is not None:
                return chosen
        named = self._strategy if isinstance(self._strategy, str) else "groups"
        return STRATEGIES[named](pool)

    def _asked(self, rollouts: Sequence[Rollout], room: int) -> Reasons | None:
        """What the user's own function chose; None when it failed, which must not let everything through."""
        assert callable(self._strategy)
        try:
            answer = list(self._strategy(tuple(rollouts), room))
            known = {rollout.id for rollout in rollouts}
            chosen = dict.fromkeys((r.id for r in answer if r.id in known), "chosen by the given function")
        except Exception as error:
            self._once.warn("cap: the given strategy failed, 'groups' is used: %r", error, error=error)
            return None
        return dict(list(chosen.items())[:room])

    def _rank_value(self, rollout: Rollout) -> float | None:
        try:
            if callable(self._key):
                return _comparable(self._key(rollout))
            if self._key in _FIELDS:
                return _comparable(getattr(rollout, self._key))
            return _comparable(rollout.rewards.get(self._key))
        except Exception as error:
            self._once.warn("cap: key failed, such rollouts rank as if they had none: %r", error, error=error)
            return None


def _comparable(value: Any) -> float | None:
    """A number that can be ranked, infinities included; None and NaN can't."""
    known = float(value) if isinstance(value, bool) else real(value)
    return None if known is None or math.isnan(known) else known


def _key_fault(key: Any) -> str | None:
    if callable(key) or (isinstance(key, str) and key and (key in NUMBERS or key not in _FIELDS)):
        return None
    numeric = ", ".join(sorted(NUMBERS))
    return f"key={key!r} is neither a numeric field ({numeric}), nor a reward function's name, nor a function"
