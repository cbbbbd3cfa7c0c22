"""Track the evaluations of a trainer: the one to which a batch belongs, and the prefix of its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from rollout_hookspecs import Batch


class Evaluation(NamedTuple):
    """The evaluation in progress; number 0 if there is none."""

    number: int = 0
    dataset: str = ""


class Evaluations:
    """The evaluations of one trainer, numbered from 1."""

    def __init__(self) -> None:
        self.prefix_by_dataset: dict[str, str] = {}
        """Prefix under which the last evaluation of each dataset was logged."""
        self._count = 0
        self._current = Evaluation()
        self._prefix_to_log = ""

    def begin(self, prefix: str) -> None:
        """Start an evaluation whose metrics have this prefix: `eval`, `eval_<dataset>`, or one that the user chose."""
        self._count += 1
        self._current = Evaluation(self._count, dataset_of(prefix))
        self._prefix_to_log = self.prefix_by_dataset[dataset_of(prefix)] = prefix

    def end(self) -> None:
        self._current = Evaluation()

    @contextmanager
    def running(self, prefix: str) -> Iterator[None]:
        """Assign the batches inside the block to an evaluation."""
        outer = self._current
        self.begin(prefix)
        try:
            yield
        finally:
            self._current, self._prefix_to_log = outer, prefix

    def assign(self, batch: Batch) -> Batch:
        """Return the batch with the evaluation in progress, if its split is `eval`."""
        if batch.split != "eval":
            return batch
        return replace(batch, dataset=self._current.dataset, evaluation=self._current.number)

    def logged_prefix(self, logs: Mapping[str, Any]) -> str:
        """Return the prefix of the evaluation to which these metrics belong; empty for training metrics."""
        # The first log after an evaluation has its metrics.
        prefix, self._prefix_to_log = self._prefix_to_log or "eval", ""
        prefixes = (prefix, "eval")
        return next((prefix for prefix in prefixes if any(name.startswith(f"{prefix}_") for name in logs)), "")


def dataset_of(prefix: str) -> str:
    """Return the dataset's name in a metric prefix; empty if the trainer has only one dataset."""
    return "" if prefix == "eval" else prefix.removeprefix("eval_")
