"""Prompts of the evaluation that the model is trained on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of

#: So many prompts are remembered, 100 bytes each at most.
_MOST = 200_000


class EvalInTrain(Check):
    """The same prompts are used in training and in the evaluation, so the evaluation does not test new questions."""

    name = "eval-in-train"
    needs = ("evaluation",)
    columns = ("prompt",)
    advice = "Split the dataset by prompt, after removing duplicates."

    def begin(self) -> None:
        self._train: set[int] = set()
        self._eval: dict[int, str] = {}
        self._shared: dict[int, str] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        hashes = columns.prompt.hashes[columns.group_starts].tolist()
        if split == "train":
            if len(self._train) < _MOST:
                self._train.update(hashes)
            new = {key: self._eval[key] for key in hashes if key in self._eval}
        else:
            self.observe(columns.count)
            ids = columns.ids(columns.group_starts, limit=len(hashes)) if len(self._eval) < _MOST else ()
            self._eval.update(zip(hashes, ids, strict=False))
            new = {key: self._eval[key] for key in hashes if key in self._train and key in self._eval}
        self._shared.update(new)
        if new and len(self._shared) >= max(2, 0.03 * len(self._eval)):
            yield self.finding(
                "evaluation prompts are in the training data",
                f"{len(self._shared)} of {len(self._eval)} prompts of the evaluation were also trained on, until "
                f"step {step}",
                "severe" if len(self._shared) > 0.5 * len(self._eval) else "warning",
                steps=(step,),
                rollouts=list(self._shared.values())[:5],
            )
