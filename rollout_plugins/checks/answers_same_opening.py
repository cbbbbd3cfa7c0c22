"""One opening for all answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of, text_of
from rollout_plugins.checks.windows import Window

#: How long an opening must be to mean more than a habit.
_BYTES = 40


class AnswersSameOpening(Check):
    """Nearly all answers now begin with the same words, and at first they did not.

    It may be a learned format. It is also how a policy begins to collapse, and how bought praise of a judge looks
    ("I have carefully verified…").
    """

    name = "answers-same-opening"
    needs = ()
    columns = ("completion",)
    advice = "Read the opening: is it a format that you want, or words that a judge likes?"

    def begin(self) -> None:
        self._window = Window()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        openings = [head[:_BYTES] for head in columns.heads]
        self.observe(columns.count)
        opening, _ = Counter(openings).most_common(1)[0]
        if len(opening) < _BYTES:
            opening = b"-"
        is_same = np.array([one == opening for one in openings])
        self._window.add(step, columns, is_same.astype(float))
        change = self._window.change()
        if (
            change
            and change.after > 0.8
            and change.before < 0.5
            and change.errors > 5
            and len(columns.group_sizes) > 1
        ):
            yield self.finding(
                "one opening for all answers",
                f"{change.before:.0%} → {change.after:.0%} of a generation's answers begin alike, from step "
                f"{change.since}: "
                f"{text_of(opening)!r}",
                "warning" if change.after > 0.95 else "info",
                steps=(change.since, step),
                rollouts=columns.ids(is_same),
            )
