"""Follow the samples of an asynchronous trainer to their fate.

A sample is one row to train on, and nearly always a complete conversation. If the tokens of a conversation changed
when it was rendered with the chat template again, it comes as several consecutive rows, "forks", which are one rollout
here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rollout_plugins.content.snapshot import Snapshot

TRAINED = "yes"
UNKNOWN = "unknown"
MAX_REFUSED = 256  # how many refused rows may wait before their refusal counts as final


@dataclass(slots=True, eq=False)
class Row:
    """One sample. Its arrays are the trainer's own, and released as soon as possible."""

    number: int
    """How many samples were received before it."""
    ids: Any
    mask: Any
    logprobs: Any
    prompt_length: int
    trained_tokens: int
    """How many of its tokens are trained on: those that the model wrote."""
    last: int | None
    refused: str
    """Why the trainer's settings forbid training on it; empty if they allow it."""
    packed: bool = False
    """Whether it is in a micro-batch."""
    step: int | None = None
    """The optimizer step of its micro-batch."""
    fate: str = ""
    """`yes`, or why it was not trained on; empty while that is unknown."""

    @classmethod
    def of(cls, sample: Any, number: int, refused: str) -> Row:
        ids, mask = sample.input_ids, sample.completion_mask
        start = int(mask.argmax()) if len(mask) else 0
        return cls(
            number=number,
            ids=ids,
            mask=mask,
            logprobs=getattr(sample, "old_log_probs", None),
            prompt_length=start if len(mask) and mask[start] else len(ids),
            trained_tokens=int(mask.sum()),
            last=int(ids[-1]) if len(ids) else None,
            refused=refused,
        )

    def has_prompt_of(self, other: Row) -> bool:
        """Return whether both were generated from the same prompt tokens."""
        length = self.prompt_length
        return length == other.prompt_length and bool((self.ids[:length] == other.ids[:length]).all())


@dataclass(slots=True, eq=False)
class Conversation:
    """One rollout: its messages and facts, and its rows."""

    prompt: Any
    completion: Any
    group: Any
    advantage: float | None
    metrics: dict[Any, Any]
    """The worker's metrics: `reward`, `rewards/<function>` and others."""
    facts: dict[str, Any]
    """Further facts: versions, waiting time, teacher."""
    policy_step: int | None
    time: float
    received: int
    """The optimizer step during which it was received."""
    text_bytes: int
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, sample: Any, staleness: int, policy_step: int | None, step: int) -> Conversation:
        copier, received = Snapshot(), time.time()
        queued = getattr(sample, "enqueued_at", None)
        facts = {"model_version": sample.model_version, "staleness": staleness}
        if isinstance(queued, float):
            facts["seconds_in_queue"] = received - queued
        if (teacher := getattr(sample, "teacher_id", None)) is not None:
            facts["teacher_id"] = teacher
        return cls(
            prompt=copier.copy(sample.prompt),
            completion=copier.copy(sample.completion),
            group=group_of(sample),
            advantage=getattr(sample, "advantage", None),
            metrics=dict(getattr(sample, "metrics", None) or {}),
            facts=facts,
            policy_step=policy_step,
            time=queued if isinstance(queued, float) else received,
            received=step,
            text_bytes=copier.bytes + 1024,
        )

    def continues_with(self, sample: Any, row: Row) -> bool:
        """Return whether the row is a fork of this conversation. A sibling may be equal, but from the same prompt
        tokens.
        """
        with suppress(Exception):  # a row that cannot be compared is a separate conversation
            return bool(
                self.group == group_of(sample)
                and self.completion == sample.completion
                and self.prompt == sample.prompt
                and not any(row.has_prompt_of(other) for other in self.rows)
            )
        return False

    @property
    def bytes(self) -> int:
        arrays = [array for row in self.rows for array in (row.ids, row.mask, row.logprobs) if array is not None]
        return self.text_bytes + sum(int(array.nbytes) for array in arrays)

    def forget_tokens(self) -> None:
        for row in self.rows:
            row.ids = row.mask = row.logprobs = None

    @property
    def step(self) -> int:
        """The first optimizer step that it trained; if none, the step during which it was received."""
        return min(
            (row.step for row in self.rows if row.fate == TRAINED and row.step is not None), default=self.received
        )

    @property
    def fate(self) -> str:
        """The fate of the conversation, or of each of its rows if they differ."""
        fates = [row.fate for row in self.rows]
        reasons = ", ".join(fate for fate in dict.fromkeys(fates) if fate != TRAINED)
        if reasons == UNKNOWN:
            return UNKNOWN
        if TRAINED not in fates:
            return f"no: {reasons}"
        return f"{fates.count(TRAINED)} of {len(fates)} rows; no: {reasons}" if reasons else TRAINED

    @property
    def reason(self) -> str:
        """Why no row was trained on; empty if one was."""
        return "" if any(row.fate == TRAINED for row in self.rows) else self.rows[-1].fate


def group_of(sample: Any) -> Any:
    """Return the number of the sample's prompt, which the worker counts over the whole training."""
    return getattr(sample, "group_id", getattr(sample, "prompt_id", None))


class Stream:
    """Follows every row from the queue to its fate.

    Rows are identified by their array object, which the trainer passes through unchanged. Micro-batches are trained in
    the order they were packed, and packed in the order their rows were received: a row that a later one overtook was
    dropped.
    """

    def __init__(self) -> None:
        self.is_blind = False
        """Whether micro-batches cannot be observed, so that the fate of every row stays unknown."""
        self._open: list[Conversation] = []
        self._waiting: dict[int, deque[Row]] = {}
        self._microbatches: deque[list[Row]] = deque()
        self._received = 0
        self._overtaken = 0
        self._refused = 0

    def receive(self, sample: Any, staleness: int, refused: str, policy_step: int | None, step: int) -> None:
        row = Row.of(sample, self._received, refused)
        self._received += 1
        self._refused += bool(refused)
        newest = self._open[-1] if self._open else None
        if newest is None or not newest.continues_with(sample, row):
            newest = Conversation.of(sample, staleness, policy_step, step)
            self._open.append(newest)
        newest.rows.append(row)
        self._waiting.setdefault(id(row.ids), deque()).append(row)

    @property
    def waiting(self) -> int:
        """How many conversations are not settled."""
        return len(self._open)

    @property
    def is_crowded(self) -> bool:
        """Whether too many refused rows wait for a later row to overtake them."""
        return self._refused >= MAX_REFUSED

    def pack(self, arrays: Iterable[Any]) -> None:
        """Record that these arrays were packed into a micro-batch."""
        rows = [waiting.popleft() for array in arrays if (waiting := self._waiting.get(id(array)))]
        for row in rows:
            row.packed = True
        self._overtaken = max([self._overtaken, *(row.number for row in rows)])
        self._microbatches.append(rows)

    def train(self, step: int) -> None:
        """Record that the oldest micro-batch was trained on in this optimizer step."""
        for row in self._microbatches.popleft() if self._microbatches else ():
            row.step = step

    def settle(self, done: int, rest: str = "") -> list[Conversation]:
        """Remove and return the conversations whose fate is known after step `done`; all of them if `rest` is their
        fate.
        """
        for row in (row for c in self._open for row in c.rows):
            row.fate = row.fate or self._fate(row, done, rest)
        newest = None if rest or not self._open else self._open[-1]  # a fork may follow
        settled: list[Conversation] = []
        unsettled, self._open = self._open, []
        for conversation in unsettled:
            is_settled = conversation is not newest and all(row.fate for row in conversation.rows)
            (settled if is_settled else self._open).append(conversation)
        unpacked = [row for c in self._open for row in c.rows if not row.packed]
        self._refused = sum(bool(row.refused) for row in unpacked)
        self._waiting = {}
        for row in unpacked:
            self._waiting.setdefault(id(row.ids), deque()).append(row)
        return settled

    def _fate(self, row: Row, done: int, rest: str) -> str:
        if self.is_blind:
            return UNKNOWN
        if row.packed:
            return TRAINED if row.step is not None and row.step <= done else rest
        if row.number < self._overtaken:
            return row.refused or "dropped"
        return (row.refused or rest) if rest or self.is_crowded else ""
