"""Limit how many rollouts of each step go to the sinks, and choose those that are most worth reading."""

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
from rollout_plugins.system.option_checks import check, integer, one_of
from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")

_FIELDS = frozenset(field.name for field in fields(Rollout))
_STEPS_REMEMBERED = 16

Key = str | Callable[[Rollout], float | None]
Strategy = str | Callable[[Sequence[Rollout], int], Sequence[Rollout]]


class Cap:
    """Keeps at most `max_per_step` rollouts of each step, and of each evaluation, for the sinks; the store has all.

    The limit holds for the whole step: for all batches of it if the host streams, and for all ranks together, which
    share it if each sees only its own rollouts. If any are left out, the `marks` of each rollout state why it was kept
    or skipped, and out of how many. No global random generator is used.

    max_per_step: the limit.
        Cap(32)
    strategy: `groups` (complete groups: first one with errors, then those of the best and the worst rollout, then
    others
        with errors, then random ones), `top_bottom` (the k best and k worst), `random`, `first`, or a function of the
        rollouts and the number of free places that returns some of the rollouts.
        Cap(strategy="random")
        Cap(strategy=lambda rollouts, places: [r for r in rollouts if r.finish == "length"][:places])
    key: what the best and worst are ranked by: a numeric field of `Rollout`, the name of a reward function, or a
    function.
        Cap(key="advantage")
        Cap(key=lambda rollout: len(rollout.tool_calls))
    k: how many at each end, for `top_bottom`; by default as many as fit.
        Cap(strategy="top_bottom", k=2)
    seed: for the strategies that draw at random.
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
            integer("max_per_step", max_per_step, 1),
            None if callable(strategy) else one_of("strategy", strategy, tuple(STRATEGIES)),
            _key_fault(key),
            integer("k", k, 1, optional=True),
            "k is only for strategy='top_bottom'" if k is not None and strategy != "top_bottom" else None,
            integer("seed", seed, 0),
        )
        self.max_per_step = max_per_step
        self._strategy = strategy
        self._key = key
        self._ends = k
        self._seed = seed
        self._begin()

    def _begin(self) -> None:
        """Reset the state to that before the first rollout of a run."""
        self.skip_reasons: dict[str, str] = {}
        self._once = Once()
        self._steps: OrderedDict[tuple[str, int, str, int], Pool] = OrderedDict()
        self._counts: dict[str, Counter[str]] = {}

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._begin()
        is_valid_key = self._key in _FIELDS or self._key in run.reward_names
        if isinstance(self._key, str) and run.reward_names and not is_valid_key:
            names = ", ".join(run.reward_names)
            logger.warning(
                "cap: key %r is not a reward function of this run (%s), so all rollouts rank the same",
                self._key,
                names,
            )

    @hookimpl(trylast=True)  # run after the other plugins that leave rollouts out, in whatever order they are listed
    def select_rollouts(self, rollouts: Sequence[Rollout], step: Step) -> list[Rollout]:
        pool = self._pool(step)
        pool.add(rollouts, [self._rank_value(rollout) for rollout in rollouts])
        reasons = self._choose(rollouts, pool)
        pool.kept.update(reasons)
        counts = f"{len(pool.kept)} of {len(pool.entries)} kept"
        total = self._counts.setdefault(step.split, Counter())
        total.update(seen=len(rollouts), kept=len(reasons))
        self.skip_reasons = {r.id: f"over {pool.places} per step; {counts}" for r in rollouts if r.id not in reasons}
        if len(pool.kept) == len(pool.entries):
            return list(rollouts)
        return [
            replace(r, marks={**r.marks, "cap": f"{reasons[r.id]}; {counts}"}) for r in rollouts if r.id in reasons
        ]

    @hookimpl
    def rollout_metrics(self, step: Step) -> Mapping[str, float] | None:
        """Return how many rollouts were seen and kept since the last call."""
        counts = self._counts.pop(step.split, None)
        return None if counts is None else {f"cap/{name}": float(value) for name, value in counts.items()}

    def _pool(self, step: Step) -> Pool:
        """Return the rollouts seen so far of this step, or of this evaluation, as one step may have several."""
        key = (step.split, step.step, step.dataset, step.evaluation)
        pool = self._steps.get(key)
        if pool is None:
            pool = Pool(self._places(step), f"{self._seed}-{step.split}-{step.step}", self._ends)
            self._steps[key] = pool
            if len(self._steps) > _STEPS_REMEMBERED:
                self._steps.popitem(last=False)
        return pool

    def _places(self, step: Step) -> int:
        """Return this process's share of the cap, which is all of it if it sees the rollouts of all ranks."""
        if step.gathered or step.world_size <= 1:
            return self.max_per_step
        each, over = divmod(self.max_per_step, step.world_size)
        return each + (step.rank < over)

    def _choose(self, rollouts: Sequence[Rollout], pool: Pool) -> Reasons:
        """Return the ids of the rollouts to keep, each with the reason; never more than there is room for."""
        if callable(self._strategy):
            reasons = self._call_strategy(rollouts, pool.room)
            if reasons is not None:
                return reasons
        name = self._strategy if isinstance(self._strategy, str) else "groups"
        return STRATEGIES[name](pool)

    def _call_strategy(self, rollouts: Sequence[Rollout], room: int) -> Reasons | None:
        """Return the choice of the user's function; None if it failed, which must not let every rollout through."""
        assert callable(self._strategy)
        try:
            selected = list(self._strategy(tuple(rollouts), room))
            ids = {rollout.id for rollout in rollouts}
            reasons = dict.fromkeys((r.id for r in selected if r.id in ids), "chosen by the strategy function")
        except Exception as error:
            self._once.warn("cap: the strategy function failed, so 'groups' is used: %r", error, error=error)
            return None
        return dict(list(reasons.items())[:room])

    def _rank_value(self, rollout: Rollout) -> float | None:
        try:
            if callable(self._key):
                return _comparable(self._key(rollout))
            if self._key in _FIELDS:
                return _comparable(getattr(rollout, self._key))
            return _comparable(rollout.rewards.get(self._key))
        except Exception as error:
            self._once.warn(
                "cap: the key failed, so the rollout ranks like one without a value: %r", error, error=error
            )
            return None


def _comparable(value: Any) -> float | None:
    """Return the value as a number that can be ranked, which may be infinite; None for NaN and other values."""
    number = float(value) if isinstance(value, bool) else real(value)
    return None if number is None or math.isnan(number) else number


def _key_fault(key: Any) -> str | None:
    if callable(key) or (isinstance(key, str) and key and (key in NUMBERS or key not in _FIELDS)):
        return None
    numeric = ", ".join(sorted(NUMBERS))
    return f"key={key!r} is neither a numeric field ({numeric}), nor a reward function's name, nor a function"
