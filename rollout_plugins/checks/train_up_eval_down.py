"""Training rewards that rise while those of the evaluation fall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import sqrt

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Floats, columns_of
from rollout_plugins.checks.windows import Window, spell

_SURE = 3.5


class TrainUpEvalDown(Check):
    """The reward rises on training prompts and falls on those of the evaluation.

    The model memorises the training prompts, or exploits what only their reward has. It can also be that training and
    evaluation use different rewards, limits or temperatures; then the two numbers do not mean the same.
    """

    name = "train-up-eval-down"
    needs = ("rewards", "evaluation")
    columns = ()
    advice = "Compare the latest evaluation's answers with the first one's, prompt by prompt: rollouts diff."

    def begin(self) -> None:
        self._train = Window()
        self._evaluations: dict[int, list[Floats]] = defaultdict(list)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        if split == "train":
            self._train.add(step, columns, columns.reward)
            return
        self.observe(columns.count)
        means = columns.group_means(columns.reward)
        self._evaluations[step].append(means[np.isfinite(means)])
        train = self._train.change()
        if train is None or train.errors < _SURE or len(self._evaluations) < 2:
            return
        steps = sorted(self._evaluations)
        best = max(steps[:-1], key=lambda at: float(np.concatenate(self._evaluations[at]).mean()))
        before, after = (np.concatenate(self._evaluations[at]) for at in (best, steps[-1]))
        if min(len(before), len(after)) < 8:
            return
        fall = float(before.mean() - after.mean())
        error = sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after)) + 1e-9
        if fall / error > _SURE and fall > 0.1 * abs(float(before.mean())):
            yield self.finding(
                "training rises while evaluation falls",
                f"reward in training {spell(train.before)} → {spell(train.after)}, in evaluation "
                f"{spell(float(before.mean()))} (step {best}) → {spell(float(after.mean()))} (step {steps[-1]})",
                steps=(best, steps[-1]),
                rollouts=columns.ids(np.argsort(columns.reward)),
            )
