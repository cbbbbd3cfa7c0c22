"""What a person asks first: the best and the worst rollout, rewards that are not finite, the tool that fails most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.sql_pieces import name_of
from rollout_plugins.show.text import clean, one_line
from rollout_plugins.web.choose import also
from rollout_plugins.web.pools import Texts

_FAILING = """
select name, count(*) as calls, count(*) filter (where status in ('error', 'unknown')) as failed
from tool_calls group by name order by failed desc, name limit 1"""


class First:
    """What is said before everything else, and the rollouts that prove it; those are in the page in any case."""

    def __init__(self, run: StoredRun, **filters: Any) -> None:
        self._run, self._filters = run, {**filters, "order": None}
        self.best = self._one(order="-reward", where="isfinite(reward)")
        self.worst = self._one(order="reward", where="isfinite(reward)")
        odd = " or ".join(f"not isfinite({name_of(name)})" for name in run.health.not_finite)
        self.odd = self._one(order=None, where=odd) if odd else None
        self.tool = next(iter(run.sql(_FAILING).to_pylist()), None)
        name = self.tool["name"] if self.tool and self.tool["failed"] else None
        self.failing = None if name is None else self._one(tool=name, where="failed_calls > 0")

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for rollout in (self.best, self.worst, self.odd, self.failing) if rollout is not None]

    def _one(self, *, where: str, **more: Any) -> Rollout | None:
        return next(iter(self._run.rollouts(**{**also(self._filters, where), **more, "limit": 1})), None)

    def said(self, stats: Sequence[Mapping[str, Any]], texts: Texts) -> dict[str, Any]:
        """As the page has it."""
        train = [row for row in stats if row["split"] == "train"]
        made: dict[str, Any] = {"flat": [sum(row[name] for row in train) for name in ("flat_groups", "groups")]}
        for name, rollout in (("best", self.best), ("worst", self.worst)):
            if rollout is not None:
                made[name] = {
                    "id": clean(rollout.id),
                    "reward": texts.scalar(rollout.reward),
                    "step": texts.scalar(rollout.step),
                    "as_much": self._run.count(**also(self._filters, f"reward = {rollout.reward!r}")) - 1,
                }
        if self.odd is not None:
            made["odd"] = {"id": clean(self.odd.id), "step": texts.scalar(self.odd.step)}
        if self.tool is not None and self.failing is not None:
            made["tool"] = {**self.tool, "name": one_line(self.tool["name"], 120), "id": clean(self.failing.id)}
        return made
