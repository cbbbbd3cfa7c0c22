"""Prompts that contain their answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of, text_of
from rollout_plugins.checks.windows import Share

#: Names under which datasets keep the right answer.
_ANSWERS = ("answer", "solution", "ground_truth", "gold", "target", "label", "reference", "expected", "final_answer")
#: An answer of fewer bytes stands in many prompts by chance. Of a long one, the end is looked for.
_SHORTEST, _LONGEST = 3, 200
_LARGEST_ROW = 20_000


class AnswerInPrompt(Check):
    """The right answer stands in the prompt, so the model only needs to copy it.

    A template that inserts the wrong column, few-shot examples with the question itself among them, or a tool's
    description. Reading comprehension has its answers in the prompt on purpose: disable the check there.
    """

    name = "answer-in-prompt"
    needs = ()
    columns = ("prompt", "columns")
    advice = "Print the rendered prompt of one of these rollouts and find out which part of it has the answer."

    def begin(self) -> None:
        self._share = Share(chances=48, generations=2)
        self._chance = self._prompts = 0
        self._previous: str | None = None
        self.why = "no dataset column is called answer, solution, target or the like"

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        rows = columns.array("columns")
        if rows.null_count == len(rows):
            return
        places, first_hit = columns.group_starts[:64].tolist(), None
        seen = hits = 0
        for place in places:
            answer = _answer_of(rows[place].as_py())
            if answer is None:
                continue
            seen += 1
            start, end = columns.prompt.starts[place], columns.prompt.starts[place + 1]
            data = columns.prompt.texts
            prompt = bytes(data.data[data.offsets[start] : data.offsets[end]])
            is_hit = _contains(prompt, answer)
            first_hit = place if is_hit and first_hit is None else first_hit
            hits += is_hit
            self._chance += (
                self._previous is not None and self._previous != answer and _contains(prompt, self._previous)
            )
            self._prompts += 1
            self._previous = answer
        if not seen:
            return
        self.observe(columns.count)
        self._share.add(step, hits, seen)
        share, chance = self._share, self._chance / self._prompts
        if first_hit is None or share.events < 5 or share.share < max(0.06, 4 * chance):
            return
        example = (_answer_of(rows[first_hit].as_py()) or "").encode()
        yield self.finding(
            "the answer stands in the prompt",
            f"{share.events} of {share.chances} prompts contain their answer, such as {text_of(example, 40)!r}, "
            f"{split} steps {share.since} to {step}; by chance it would be {chance:.0%}",
            steps=(step,),
            rollouts=columns.ids([first_hit]),
        )


def _answer_of(row: str | None) -> str | None:
    if not row or len(row) > _LARGEST_ROW:
        return None
    values = json.loads(row)
    for name in _ANSWERS:
        value = values.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            text = str(value).strip()[-_LONGEST:]
            return text if len(text) >= _SHORTEST else None
    return None


def _contains(prompt: bytes, answer: str) -> bool:
    """Return whether a prompt contains an answer as a word of its own."""
    wanted = answer.encode()
    place = prompt.find(wanted)
    while place >= 0:
        before, after = (
            prompt[place - 1 : place] if place else b"",
            prompt[place + len(wanted) : place + len(wanted) + 1],
        )
        if not before.isalnum() and not after.isalnum():
            return True
        place = prompt.find(wanted, place + 1)
    return False
