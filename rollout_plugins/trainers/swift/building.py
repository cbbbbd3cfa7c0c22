"""Rollouts out of ms-swift's samples: copied on the training thread, built on the worker's."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, Final

from rollout_hookspecs import Rollout, Tokens, ToolCall

from rollout_plugins.content.messages import role_of
from rollout_plugins.content.rewards import weighted_sum
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.content.tokens import pack
from rollout_plugins.content.tool_calls import ANSWERING, read_tool_calls
from rollout_plugins.hosts.kit.observed_generation import Generation, packed_ids

DECODED: Final = "earlier turns are decoded; the trainer, and its reward functions, have them as token ids"
WITHDRAWN: Final = "the scheduler withdrew {} of {} turns, which are neither here nor trained on"
REWRITTEN: Final = "the scheduler rewrote turns; the trainer trains on the token ids that the model wrote"
TEACHER: Final = "of the whole sequence; the trainer adds a teacher's term to it, token by token"
_BESIDE: Final = ("tools", "videos", "audios", "objects")
_MEDIA: Final = {"images", "videos", "audios"}
_TAG: Final = "<image>"


@dataclass(slots=True, eq=False)
class Taken:
    """What is kept of one sample. Token ids are packed."""

    messages: list[Any]
    images: list[Any]
    columns: dict[str, Any]
    infos: dict[str, Any]
    request: str
    prompt_id: str
    finish: Any
    ids: list[Any]
    """Of each turn of the model."""
    masks: list[Any]
    """1 for what the model wrote, 0 for what the template put in front of it."""
    logprobs: list[Any]
    policy_step: int | None = None
    asked: int | None = None
    """How many messages the model was given for its first turn."""
    advantage: float | None = None
    fate: str = ""
    whole: Any = None
    """The conversation as it is trained on, prompt and tools' answers included."""
    written: Any = None
    """1 for each token of it that is trained on."""

    @classmethod
    def of(cls, sample: Any, copier: Snapshot) -> Taken:
        beside = {name: getattr(sample, name, None) for name in _BESIDE}
        infos = {name: value for name, value in sample.rollout_infos.items() if name not in _MEDIA}
        return cls(
            messages=[_copied(message, copier) for message in sample.messages],
            images=copier.copy(list(sample.images or ())),
            columns=copier.copy({**sample.extra, **{name: value for name, value in beside.items() if value}}),
            infos=copier.copy(infos),
            request=sample.request_id,
            prompt_id=sample.prompt_id,
            finish=sample.finish_reason,
            ids=[packed_ids(row) for row in _turns(sample.response_token_ids)],
            masks=[bytes(row) for row in _turns(sample.response_loss_mask)],
            logprobs=[pack(row, "d") or array("d", row) for row in _turns(sample.rollout_logprobs)],
        )

    @property
    def answers(self) -> list[int]:
        """Places of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if role_of(message) == "assistant"]

    def forget_withdrawn(self) -> int:
        """Forget turns that a scheduler took out of the conversation; return how many these are.

        ms-swift gives the last answers the token ids of the last turns, and ignores the token ids that are left.
        """
        answers, turns = self.answers, len(self.ids)
        remaining = min(turns, len(answers))
        for name in ("ids", "masks", "logprobs"):
            values = getattr(self, name)
            if len(values) == turns:
                setattr(self, name, values[turns - remaining :])
        said = len(answers) if self.asked is None else sum(i >= self.asked for i in answers)
        return max(turns - said, 0)

    @property
    def bytes(self) -> int:
        packed = (*self.ids, *self.masks, *self.logprobs, self.whole or (), self.written or ())
        return sum(memoryview(one).nbytes for one in packed if one)

    def see_encoded(self, encoded: Mapping[str, Any] | None) -> None:
        if encoded and encoded.get("input_ids") is not None and encoded.get("labels") is not None:
            self.whole = packed_ids(encoded["input_ids"])
            self.written = bytes(map((-100).__ne__, encoded["labels"]))


def _turns(rows: Any) -> Sequence[Any]:
    """One list for each turn; a single turn's may stand alone."""
    return [rows] if rows and not isinstance(rows[0], (list, tuple)) else rows or ()


def _copied(message: Any, copier: Snapshot) -> Any:
    """The message; content that is a list of token ids is packed."""
    content = message.get("content")
    if isinstance(content, Mapping):
        content = content.get("token_ids", content.get("input_ids"))
    packed = pack(content, "i") if isinstance(content, list) else None
    if packed is None:
        return copier.copy(message)
    return {**copier.copy({**message, "content": None}), "content": packed}


class Sampling(Generation):
    """The samples of one call of the trainer's engine, which are scored together."""

    def __init__(self, trainer: Any, options: Mapping[str, Any], *, training: bool) -> None:
        super().__init__(trainer, options, training=training)
        self.taken: list[Taken] = []
        self.may_be_left = False
        """Whether training ended, or could have, before all samples were trained on."""
        self.has_teacher = False
        """Whether the trainer adds a teacher's term to the advantages."""
        self.counts_vary = bool(getattr(trainer, "dynamic_num_samples", False))
        """Whether one trajectory may have become several samples, so that ranks may have more or fewer of them."""

    def see(
        self,
        samples: Sequence[Any],
        steps: Mapping[str, int] = MappingProxyType({}),
        asked: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Copy the samples. `steps` has the policy's step of each request, `asked` the length of its prompt."""
        copier = Snapshot()
        self.taken = [Taken.of(sample, copier) for sample in samples]
        for one in self.taken:
            one.policy_step = steps.get(one.request, self.policy_step)
            one.asked = asked.get(one.request)
        self.count = len(self.taken)
        self.bytes = copier.bytes + 512 * self.count

    @property
    def occupied_bytes(self) -> int:
        return super().occupied_bytes + sum(one.bytes for one in self.taken)

    @property
    def starts_at(self) -> int:
        """Place of this rank's first sample among those of all ranks."""
        return self.rank * self.count


def built(generation: Sampling) -> list[Rollout]:
    builder = _Builder(generation)
    return [builder.rollout(i, one) for i, one in enumerate(generation.taken)]


class _Builder:
    def __init__(self, generation: Sampling) -> None:
        self._now = generation
        trainer = generation.trainer
        self._template: Any = getattr(trainer, "template", None)
        self._has_turns = getattr(trainer, "multi_turn_scheduler", None) is not None
        may_discard = getattr(trainer, "dynamic_sample", False) or generation.may_be_left
        self._may_discard = may_discard and generation.split == "train"

    def rollout(self, i: int, one: Taken) -> Rollout:
        generation = self._now
        turns, withdrawn = len(one.ids), one.forget_withdrawn()
        notes = [WITHDRAWN.format(withdrawn, turns)] if withdrawn else []
        if self._has_turns and self._is_rewritten(one):
            notes.append(REWRITTEN)
        prompt, completion = self._spoken(one, withdrawn)
        calls = self._calls(one, completion)
        rewards = (
            dict(zip(generation.rewards.names, generation.rewards.rows[i], strict=True))
            if generation.rewards.rows
            else {}
        )
        index = generation.rank * generation.count + i
        starts = _starts(one)
        start = _start(one, starts)
        return Rollout(
            id="",
            rank=generation.rank,
            policy_step=one.policy_step,
            index=index,
            group=_number(one.prompt_id, index) if generation.counts_vary else index // generation.group_size,
            group_size=generation.group_size,
            time=generation.time,
            prompt=tuple(prompt),
            completion=tuple(completion),
            tool_calls=calls,
            rewards=rewards,
            reward=weighted_sum(rewards, generation.rewards.weights),
            advantage=one.advantage,
            prompt_tokens=start,
            completion_tokens=_written(one),
            finish=self._finish(one, calls),
            columns=one.columns,
            extra={**one.infos, "request_id": one.request},
            marks=self._marks(one, notes),
            rendered=self._rendered(one, start),
            tokens=_tokens(one, starts) if generation.options.get("tokens") else None,
            error=generation.error,
        )

    def _spoken(self, one: Taken, withdrawn: int) -> tuple[list[Any], list[Any]]:
        """Prompt and completion: as many of the assistant's last messages are new as there were turns."""
        answers = one.answers
        turns = max(len(one.ids), 1)
        first = answers[-min(turns, len(answers))] if answers else len(one.messages)
        if one.asked is not None and (withdrawn or not answers):
            first = min(one.asked, len(one.messages))
        left = iter(one.images)
        messages = [self._shown(message, left) for message in one.messages]
        if rest := list(left):
            one.columns["images"] = rest
        return messages[:first], messages[first:]

    def _shown(self, message: Any, images: Iterator[Any]) -> Any:
        """Text in place of token ids, and images where the text says that they are."""
        content = message.get("content")
        if isinstance(content, array):
            return {**message, "content": self._now.decoder.answer(list(content))}
        if not isinstance(content, str) or _TAG not in content or role_of(message) == "assistant":
            return message
        return {**message, "content": list(_blocks(content, images))}

    def _is_rewritten(self, one: Taken) -> bool:
        """Whether a message has other words than the token ids of its turn."""
        answers = [one.messages[i]["content"] for i in one.answers[len(one.answers) - len(one.ids) :]]
        pairs = ((text, ids) for text, ids in zip(answers, one.ids, strict=True) if isinstance(text, str))
        return any("".join(text.split()) not in "".join(self._wrote(ids).split()) for text, ids in pairs)

    def _wrote(self, ids: Any) -> str:
        return str(self._now.decoder.text(list(ids)))

    def _calls(self, one: Taken, completion: Sequence[Any]) -> tuple[ToolCall, ...]:
        """The calls that the trainer's template finds in the answers; the messages have them as text."""
        if not (one.columns.get("tools") or any(_answers(message) for message in completion)):
            return ()
        return read_tool_calls([self._with_calls(message) for message in completion])

    def _with_calls(self, message: Any) -> Any:
        if _answers(message):
            return {**message, "role": "tool"}
        if role_of(message) != "assistant" or message.get("tool_calls"):
            return message
        with suppress(Exception):  # what the agent's template can't read is text, as for the trainer
            found = self._template.agent_template.get_toolcall(message["content"])
            return {**message, "tool_calls": [{"name": one.name, "arguments": one.arguments} for one in found]}
        return message

    def _finish(self, one: Taken, calls: Sequence[ToolCall]) -> Any:
        if self._now.error:
            return "error"
        if one.finish == "stop" and self._has_turns and any(call.status == "not_run" for call in calls):
            return "tool_limit"
        return one.finish if one.finish in {"stop", "length"} else "unknown"

    def _marks(self, one: Taken, notes: Sequence[str]) -> dict[str, str]:
        marks = dict(self._now.unknown)
        if any(isinstance(message.get("content"), array) for message in one.messages):
            notes = [DECODED, *notes]
        if notes:
            marks["turns"] = "; ".join(notes)
        if self._now.has_teacher and one.advantage is not None:
            marks["advantage"] = TEACHER
        if self._may_discard:
            known = one.fate if one.fate in {"yes", ""} else f"no: {one.fate}"
            marks["trained"] = known or ("no: broke_off" if self._now.error else "unknown")
        return marks

    def _rendered(self, one: Taken, start: int | None) -> str | None:
        if not self._now.options.get("rendered") or start is None:
            return None
        return str(self._now.decoder.text(list(one.whole[:start])))


def _answers(message: Any) -> bool:
    return role_of(message) in ANSWERING or role_of(message) == "tool_response"


def _blocks(text: str, images: Iterator[Any]) -> Iterator[dict[str, Any]]:
    head, *parts = text.split(_TAG)
    if head:
        yield {"type": "text", "text": head}
    for part in parts:
        image = next(images, None)
        if image is not None:
            yield {"type": "image", "image": image}
        if image is None or part:
            yield {"type": "text", "text": part if image is not None else _TAG + part}


def _number(prompt_id: str, otherwise: int) -> int:
    """The trainer's number of the prompt, as in `prompt_3`."""
    number = prompt_id.rpartition("_")[2]
    return int(number) if number.isdigit() else otherwise


def _written(one: Taken) -> int | None:
    if not one.ids:
        return None if one.written is None else sum(one.written)
    return sum(map(sum, _masks(one)))


def _masks(one: Taken) -> list[Any]:
    """1 for each token of each turn that the model wrote."""
    if [*map(len, one.masks)] == [*map(len, one.ids)]:
        return one.masks
    return [bytes([1]) * len(ids) for ids in one.ids]


def _starts(one: Taken) -> list[int]:
    """Where each turn of the model begins in the whole conversation; empty where that is not known."""
    if one.whole is None:
        return []
    size: int = one.whole.itemsize
    whole, found, at = one.whole.tobytes(), [], 0
    for ids in one.ids:
        at = whole.find(ids.tobytes(), at)
        while at > 0 and at % size:
            at = whole.find(ids.tobytes(), at + 1)
        if at < 0:
            return []
        found.append(at // size)
        at += size * len(ids)
    return found


def _start(one: Taken, starts: Sequence[int]) -> int | None:
    """How many tokens stand before the first that the model wrote; else before the first that is trained on."""
    if starts:
        return starts[0] + max(int(_masks(one)[0].find(1)), 0)
    return None if one.written is None else max(int(one.written.find(1)), 0)


def _tokens(one: Taken, starts: Sequence[int]) -> Tokens:
    """What is trained on, from the model's first token on; of what never was, the model's turns alone."""
    start = _start(one, starts)
    if start is not None:
        return Tokens(
            prompt=list(one.whole[:start]),
            completion=list(one.whole[start:]),
            mask=list(one.written[start:]),
            logprobs=_logprobs(one, starts, len(one.whole), start),
        )
    ends = [*accumulate(map(len, one.ids), initial=0)]
    return Tokens(
        completion=[*chain.from_iterable(one.ids)],
        mask=[*chain.from_iterable(_masks(one))],
        logprobs=_logprobs(one, ends[:-1], ends[-1], 0),
    )


def _logprobs(one: Taken, starts: Sequence[int], length: int, start: int) -> list[float] | None:
    """The sampler's, at the tokens that the model wrote; 0 at the others."""
    masks = _masks(one)
    if not one.logprobs or not starts or [*map(len, one.logprobs)] != [*map(sum, masks)]:
        return None
    values = [0.0] * length
    for at, mask, known in zip(starts, masks, one.logprobs, strict=True):
        for place, value in zip((at + j for j, wrote in enumerate(mask) if wrote), known, strict=True):
            values[place] = value
    return values[start:]
