"""Turns whose prompt does not begin with the tokens of the turn before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import GenerationColumns, Integers, columns_of
from rollout_plugins.checks.windows import Share

_SAMPLE = 32


class TurnsContinue(Check):
    """The prompt of a later turn does not begin with the tokens of the turn before it.

    The chat template rewrote the history, for example by removing the reasoning of earlier answers, or the text was
    decoded and tokenized again. The model is then trained on a history that it never saw. It shows only where each
    turn is recorded as a rollout of its own, as loops that record turn by turn do.
    """

    name = "turns-continue"
    needs = ("tokens",)
    columns = ("prompt", "completion")
    advice = "Append the new turn's tokens to the old ones, instead of rendering the conversation again."

    def begin(self) -> None:
        self._share = Share(chances=12, generations=2)
        self.why = "no turn is recorded as a rollout of its own"

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        turns = np.diff(columns.prompt.starts)
        if turns.min() == turns.max():
            return
        pairs = list(_consecutive(columns, turns))[:_SAMPLE]
        if not pairs:
            return
        self.observe(len(pairs))
        prompt_starts, prompts = columns.tokens("prompt")
        starts, completions = columns.tokens("completion")
        broken, places = [], []
        for earlier, later in pairs:
            before = np.concatenate([
                prompts[prompt_starts[earlier] : prompt_starts[earlier + 1]],
                completions[starts[earlier] : starts[earlier + 1]],
            ])  # fmt: skip
            after = prompts[prompt_starts[later] : prompt_starts[later + 1]]
            size = min(len(before), len(after))
            differing = np.flatnonzero(before[:size] != after[:size])
            if len(differing) or len(after) < len(before):
                broken.append(later)
                places.append(int(differing[0]) if len(differing) else len(after))
        self._share.add(step, len(broken), len(pairs))
        if broken and self._share.share >= 0.04 and self._share.events >= 2:
            yield self.finding(
                "turns do not continue the turn before",
                f"{self._share.events} of {self._share.chances} prompts of a later turn do not begin with the "
                f"tokens of the "
                f"turn before, first at token {places[0]}, steps {self._share.since} to {step}",
                "severe",
                steps=(self._share.since, step),
                rollouts=columns.ids(broken),
                token=None,
            )


def _consecutive(columns: GenerationColumns, turns: Integers) -> Iterator[tuple[int, int]]:
    """Yield rollouts, two by two, of which the second's prompt is the first's conversation and more."""
    prompt, completion = columns.prompt, columns.completion
    for group in range(len(columns.group_sizes)):
        rows = np.flatnonzero(columns.groups == group)
        rows = rows[np.argsort(turns[rows], kind="stable")].tolist()
        for at, later in enumerate(rows):
            whole = _bytes(prompt, later)
            for earlier in reversed(rows[:at]):
                if turns[earlier] + (completion.starts[earlier + 1] - completion.starts[earlier]) > turns[later]:
                    continue
                if whole.startswith(_bytes(prompt, earlier) + _bytes(completion, earlier)):
                    yield earlier, later
                    break


def _bytes(messages: object, row: int) -> bytes:
    texts, starts = messages.texts, messages.starts  # type: ignore[attr-defined]
    return bytes(texts.data[texts.offsets[starts[row]] : texts.offsets[starts[row + 1]]])
