"""End tokens that are missing, doubled or not trained, and padding behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, GenerationColumns, Integers, columns_of
from rollout_plugins.checks.windows import Share


class EndToken(Check):
    """The token that ends an answer is missing, stands there twice, is not trained, or padding follows it.

    Without a trained end token the model forgets to stop, and answers grow to the limit within some hundred steps. A
    doubled one, or padding that counts as written by the model, is trained as if it were text.
    """

    name = "end-token"
    needs = ("tokens",)
    columns = ("finish",)
    advice = "Look at the last five ids and their mask: exactly one end token, with mask 1, ends an answer."

    def begin(self) -> None:
        self._last: Counter[int] = Counter()
        self._shares = {
            title: Share(chances=32, generations=2) for title in ("missing", "twice", "untrained", "padded")
        }

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        starts, ids = columns.tokens("completion")
        sizes = np.diff(starts)
        rows = np.flatnonzero((sizes >= 5) & (columns.finish != "length") & (columns.finish != "error"))
        if not len(rows):
            return
        self.observe(len(rows), int(sizes[rows].sum()))
        ends = starts[1:][rows]
        last = ids[ends[:, None] - np.arange(1, 5)]
        self._last.update(last[:, 0].tolist())
        end, count = self._last.most_common(1)[0]
        if count < 0.3 * self._last.total():
            end = -1
        repeated = last[:, 0] == last[:, 1]
        padded = repeated & (last[:, 1] == last[:, 2]) & (last[:, 2] == last[:, 3])
        flags = {
            "missing": last[:, 0] != end,
            "twice": repeated & ~padded & (last[:, 0] == end),
            "untrained": self._untrained(columns, rows, sizes) & (last[:, 0] == end),
            "padded": padded & (last[:, 0] == end),
        }
        for title, is_bad in flags.items():
            share = self._shares[title]
            share.add(step, int(is_bad.sum()), len(is_bad))
            if is_bad.any() and share.share >= (0.12 if title == "missing" else 0.06) and share.events >= 5:
                yield self._report(title, share, step, columns.ids(rows[is_bad]))

    def _untrained(self, columns: GenerationColumns, rows: Integers, sizes: Integers) -> Flags:
        """Return which of the rows have mask 0 at their last token."""
        starts, mask = columns.tokens("mask")
        if not (np.diff(starts) == sizes).all():
            return np.zeros(len(rows), bool)
        return np.asarray(mask[starts[1:][rows] - 1] == 0)

    def _report(self, title: str, share: Share, step: int, evidence: tuple[str, ...]) -> Finding:
        what = {
            "missing": "do not end with the end token, although the length limit did not end them",
            "twice": "end with the end token twice",
            "untrained": "have an end token with mask 0, so it is not trained",
            "padded": "end with four equal tokens or more: padding counts as written by the model",
        }[title]
        return self.finding(
            {
                "missing": "no end token",
                "twice": "two end tokens",
                "untrained": "end token not trained",
                "padded": "padding is trained",
            }[title],
            f"{share.events} of {share.chances} answers {what}, steps {share.since} to {step}",
            "severe" if share.share > 0.5 else "warning",
            steps=(share.since, step),
            rollouts=evidence,
        )
