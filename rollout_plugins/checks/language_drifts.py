"""Answers in another script or language than at first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, Integers, columns_of, text_of
from rollout_plugins.checks.windows import Window

#: The first byte of a character in UTF-8 tells the script.
_SCRIPTS = {
    "Cyrillic": (0xD0, 0xD3), "Greek": (0xCE, 0xCF), "Hebrew or Arabic": (0xD6, 0xDB), "Indic": (0xE0, 0xE0),
    "Chinese, Japanese or Korean": (0xE3, 0xED), "symbols": (0xE1, 0xE2), "accents": (0xC3, 0xC5),
    "emoji": (0xF0, 0xF0),
}  # fmt: skip
_FOREIGN = 0.06
_RISE = 0.08


class LanguageDrifts(Check):
    """Answers contain another script than at the start of the training: other languages, symbols or emoji.

    Mixed languages are how a policy drifts when nothing rewards readable text. Many scripts at once in one answer is
    gibberish.
    """

    name = "language-drifts"
    needs = ()
    columns = ("completion",)
    advice = "Read one of these rollouts; add a reward for the language, or raise the KL penalty."

    def begin(self) -> None:
        self._window = Window(first=96, latest=64)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        is_foreign = _foreign(columns.head_bytes) | _foreign(columns.tail_bytes)
        self._window.add(step, columns, is_foreign.astype(float))
        change = self._window.change()
        if change and is_foreign.any() and change.after - change.before > _RISE and change.errors > 4:
            row = int(np.flatnonzero(is_foreign)[0])
            yield self.finding(
                "another script than at the start",
                f"{change.before:.0%} → {change.after:.0%} of the answers have many characters that are not plain "
                f"letters, "
                f"from step {change.since}, mostly {_script(columns.tail_bytes[is_foreign])}: "
                f"{text_of(columns.tails[row], 40)!r}",
                "severe" if change.after > 0.5 else "warning",
                steps=(change.since, step),
                rollouts=columns.ids(is_foreign),
            )


def _foreign(texts: Integers) -> Flags:
    """Return which texts have more than a few bytes outside ASCII."""
    written = np.count_nonzero(texts, axis=1)
    result: Flags = np.count_nonzero(texts > 127, axis=1) > np.maximum(_FOREIGN * written, 6)
    return result


def _script(texts: Integers) -> str:
    counts = np.bincount(texts.reshape(-1), minlength=256)
    return max(_SCRIPTS, key=lambda name: int(counts[_SCRIPTS[name][0] : _SCRIPTS[name][1] + 1].sum()))
