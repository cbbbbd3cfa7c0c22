"""Build rollouts from ms-swift's samples, which are copied on the training thread and built on the worker thread."""

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

DECODED: Final = "earlier turns are decoded; the trainer and its reward functions have them as token ids"
WITHDRAWN: Final = "the scheduler withdrew {} of {} turns, which are neither stored nor trained on"
REWRITTEN: Final = "the scheduler rewrote turns; the trainer trains on the token ids that the model wrote"
TEACHER: Final = "of the whole sequence; the trainer adds a teacher's term to it for each token"
_OTHER_COLUMNS: Final = ("tools", "videos", "audios", "objects")
_MEDIA: Final = {"images", "videos", "audios"}
_TAG: Final = "<image>"


@dataclass(slots=True, eq=False)
class CopiedSample:
    """The copied parts of one sample. Token ids are packed."""

    messages: list[Any]
    images: list[Any]
    columns: dict[str, Any]
    infos: dict[str, Any]
    request: str
    prompt_id: str
    finish: Any
    ids: list[Any]
    """The token ids of each turn of the model."""
    masks: list[Any]
    """For each turn, 1 for tokens that the model wrote, 0 for those that the template put before them."""
    logprobs: list[Any]
    policy_step: int | None = None
    prompt_size: int | None = None
    """How many messages the model received for its first turn."""
    advantage: float | None = None
    fate: str = ""
    conversation: Any = None
    """The token ids that are trained on, including the prompt and the tools' answers."""
    trained_mask: Any = None
    """1 for each token of `conversation` that is trained on."""

    @classmethod
    def of(cls, sample: Any, copier: Snapshot) -> CopiedSample:
        others = {name: getattr(sample, name, None) for name in _OTHER_COLUMNS}
        infos = {name: value for name, value in sample.rollout_infos.items() if name not in _MEDIA}
        return cls(
            messages=[_copied(message, copier) for message in sample.messages],
            images=copier.copy(list(sample.images or ())),
            columns=copier.copy({**sample.extra, **{name: value for name, value in others.items() if value}}),
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
        """The indices of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if role_of(message) == "assistant"]

    def forget_withdrawn(self) -> int:
        """Remove turns that a scheduler took out of the conversation, and return how many.

        ms-swift assigns the token ids of the last turns to the last answers, and ignores the other token ids.
        """
        answers, turns = self.answers, len(self.ids)
        remaining = min(turns, len(answers))
        for name in ("ids", "masks", "logprobs"):
            values = getattr(self, name)
            if len(values) == turns:
                setattr(self, name, values[turns - remaining :])
        answered = len(answers) if self.prompt_size is None else sum(i >= self.prompt_size for i in answers)
        return max(turns - answered, 0)

    @property
    def bytes(self) -> int:
        packed = (*self.ids, *self.masks, *self.logprobs, self.conversation or (), self.trained_mask or ())
        return sum(memoryview(part).nbytes for part in packed if part)

    def see_encoded(self, encoded: Mapping[str, Any] | None) -> None:
        if encoded and encoded.get("input_ids") is not None and encoded.get("labels") is not None:
            self.conversation = packed_ids(encoded["input_ids"])
            self.trained_mask = bytes(map((-100).__ne__, encoded["labels"]))


def _turns(rows: Any) -> Sequence[Any]:
    """Return one list per turn; a single turn may not be nested."""
    return [rows] if rows and not isinstance(rows[0], (list, tuple)) else rows or ()


def _copied(message: Any, copier: Snapshot) -> Any:
    """Return a copy of the message, with packed content if that is a list of token ids."""
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
        self.taken: list[CopiedSample] = []
        self.may_be_left = False
        """Whether training ended, or could have ended, before all samples were trained on."""
        self.has_teacher = False
        """Whether the trainer adds a teacher's term to the advantages."""
        self.counts_vary = bool(getattr(trainer, "dynamic_num_samples", False))
        """Whether one trajectory may have become several samples, so that ranks differ in their number."""

    def see(
        self,
        samples: Sequence[Any],
        steps: Mapping[str, int] = MappingProxyType({}),
        prompt_sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Copy the samples; `steps` has the policy step of each request, `prompt_sizes` its number of messages."""
        copier = Snapshot()
        self.taken = [CopiedSample.of(sample, copier) for sample in samples]
        for sample in self.taken:
            sample.policy_step = steps.get(sample.request, self.policy_step)
            sample.prompt_size = prompt_sizes.get(sample.request)
        self.count = len(self.taken)
        self.bytes = copier.bytes + 512 * self.count

    @property
    def occupied_bytes(self) -> int:
        return super().occupied_bytes + sum(sample.bytes for sample in self.taken)

    @property
    def starts_at(self) -> int:
        """The index of this rank's first sample among those of all ranks."""
        return self.rank * self.count


def built(generation: Sampling) -> list[Rollout]:
    builder = _Builder(generation)
    return [builder.rollout(i, sample) for i, sample in enumerate(generation.taken)]


class _Builder:
    def __init__(self, generation: Sampling) -> None:
        self._generation = generation
        trainer = generation.trainer
        self._template: Any = getattr(trainer, "template", None)
        self._has_turns = getattr(trainer, "multi_turn_scheduler", None) is not None
        may_discard = getattr(trainer, "dynamic_sample", False) or generation.may_be_left
        self._may_discard = may_discard and generation.split == "train"

    def rollout(self, i: int, sample: CopiedSample) -> Rollout:
        generation = self._generation
        turns, withdrawn = len(sample.ids), sample.forget_withdrawn()
        notes = [WITHDRAWN.format(withdrawn, turns)] if withdrawn else []
        if self._has_turns and self._is_rewritten(sample):
            notes.append(REWRITTEN)
        prompt, completion = self._split_messages(sample, withdrawn)
        calls = self._calls(sample, completion)
        rewards = (
            dict(zip(generation.rewards.names, generation.rewards.rows[i], strict=True))
            if generation.rewards.rows
            else {}
        )
        index = generation.rank * generation.count + i
        starts = _starts(sample)
        start = _start(sample, starts)
        return Rollout(
            id="",
            rank=generation.rank,
            policy_step=sample.policy_step,
            index=index,
            group=_number(sample.prompt_id, index) if generation.counts_vary else index // generation.group_size,
            group_size=generation.group_size,
            time=generation.time,
            prompt=tuple(prompt),
            completion=tuple(completion),
            tool_calls=calls,
            rewards=rewards,
            reward=weighted_sum(rewards, generation.rewards.weights),
            advantage=sample.advantage,
            prompt_tokens=start,
            completion_tokens=_completion_tokens(sample),
            finish=self._finish(sample, calls),
            columns=sample.columns,
            extra={**sample.infos, "request_id": sample.request},
            marks=self._marks(sample, notes),
            rendered=self._rendered(sample, start),
            tokens=_tokens(sample, starts) if generation.options.get("tokens") else None,
            error=generation.error,
        )

    def _split_messages(self, sample: CopiedSample, withdrawn: int) -> tuple[list[Any], list[Any]]:
        """Return prompt and completion, which starts at the first of as many answers as there were turns."""
        answers = sample.answers
        turns = max(len(sample.ids), 1)
        first = answers[-min(turns, len(answers))] if answers else len(sample.messages)
        if sample.prompt_size is not None and (withdrawn or not answers):
            first = min(sample.prompt_size, len(sample.messages))
        left = iter(sample.images)
        messages = [self._decoded(message, left) for message in sample.messages]
        if rest := list(left):
            sample.columns["images"] = rest
        return messages[:first], messages[first:]

    def _decoded(self, message: Any, images: Iterator[Any]) -> Any:
        """Return the message with text instead of token ids, and images at the image tags of its text."""
        content = message.get("content")
        if isinstance(content, array):
            return {**message, "content": self._generation.decoder.answer(list(content))}
        if not isinstance(content, str) or _TAG not in content or role_of(message) == "assistant":
            return message
        return {**message, "content": list(_blocks(content, images))}

    def _is_rewritten(self, sample: CopiedSample) -> bool:
        """Return whether a message has other text than the token ids of its turn."""
        answers = [sample.messages[i]["content"] for i in sample.answers[len(sample.answers) - len(sample.ids) :]]
        pairs = ((text, ids) for text, ids in zip(answers, sample.ids, strict=True) if isinstance(text, str))
        return any("".join(text.split()) not in "".join(self._wrote(ids).split()) for text, ids in pairs)

    def _wrote(self, ids: Any) -> str:
        return str(self._generation.decoder.text(list(ids)))

    def _calls(self, sample: CopiedSample, completion: Sequence[Any]) -> tuple[ToolCall, ...]:
        """Return the calls that the trainer's template parses from the answers, which have them as text."""
        if not (sample.columns.get("tools") or any(_answers(message) for message in completion)):
            return ()
        return read_tool_calls([self._with_calls(message) for message in completion])

    def _with_calls(self, message: Any) -> Any:
        if _answers(message):
            return {**message, "role": "tool"}
        if role_of(message) != "assistant" or message.get("tool_calls"):
            return message
        with suppress(Exception):  # text that the agent's template can't parse stays text, as for the trainer
            calls = self._template.agent_template.get_toolcall(message["content"])
            return {**message, "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in calls]}
        return message

    def _finish(self, sample: CopiedSample, calls: Sequence[ToolCall]) -> Any:
        if self._generation.error:
            return "error"
        if sample.finish == "stop" and self._has_turns and any(call.status == "not_run" for call in calls):
            return "tool_limit"
        return sample.finish if sample.finish in {"stop", "length"} else "unknown"

    def _marks(self, sample: CopiedSample, notes: Sequence[str]) -> dict[str, str]:
        marks = dict(self._generation.unknown)
        if any(isinstance(message.get("content"), array) for message in sample.messages):
            notes = [DECODED, *notes]
        if notes:
            marks["turns"] = "; ".join(notes)
        if self._generation.has_teacher and sample.advantage is not None:
            marks["advantage"] = TEACHER
        if self._may_discard:
            fate = sample.fate if sample.fate in {"yes", ""} else f"no: {sample.fate}"
            marks["trained"] = fate or ("no: broke_off" if self._generation.error else "unknown")
        return marks

    def _rendered(self, sample: CopiedSample, start: int | None) -> str | None:
        if not self._generation.options.get("rendered") or start is None:
            return None
        return str(self._generation.decoder.text(list(sample.conversation[:start])))


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


def _number(prompt_id: str, default: int) -> int:
    """Return the trainer's number of the prompt, as in `prompt_3`."""
    number = prompt_id.rpartition("_")[2]
    return int(number) if number.isdigit() else default


def _completion_tokens(sample: CopiedSample) -> int | None:
    if not sample.ids:
        return None if sample.trained_mask is None else sum(sample.trained_mask)
    return sum(map(sum, _masks(sample)))


def _masks(sample: CopiedSample) -> list[Any]:
    """Return 1 for each token that the model wrote, per turn."""
    if [*map(len, sample.masks)] == [*map(len, sample.ids)]:
        return sample.masks
    return [bytes([1]) * len(ids) for ids in sample.ids]


def _starts(sample: CopiedSample) -> list[int]:
    """Return where each turn of the model starts in the conversation; an empty list if that is unknown."""
    if sample.conversation is None:
        return []
    size: int = sample.conversation.itemsize
    data, starts, position = sample.conversation.tobytes(), [], 0
    for ids in sample.ids:
        position = data.find(ids.tobytes(), position)
        while position > 0 and position % size:
            position = data.find(ids.tobytes(), position + 1)
        if position < 0:
            return []
        starts.append(position // size)
        position += size * len(ids)
    return starts


def _start(sample: CopiedSample, starts: Sequence[int]) -> int | None:
    """Return how many tokens precede the first one that the model wrote, or else the first one that is trained on."""
    if starts:
        return starts[0] + max(int(_masks(sample)[0].find(1)), 0)
    return None if sample.trained_mask is None else max(int(sample.trained_mask.find(1)), 0)


def _tokens(sample: CopiedSample, starts: Sequence[int]) -> Tokens:
    """Return the trained conversation from the model's first token on, or only the model's turns if untrained."""
    start = _start(sample, starts)
    if start is not None:
        return Tokens(
            prompt=list(sample.conversation[:start]),
            completion=list(sample.conversation[start:]),
            mask=list(sample.trained_mask[start:]),
            logprobs=_logprobs(sample, starts, len(sample.conversation), start),
        )
    ends = [*accumulate(map(len, sample.ids), initial=0)]
    return Tokens(
        completion=[*chain.from_iterable(sample.ids)],
        mask=[*chain.from_iterable(_masks(sample))],
        logprobs=_logprobs(sample, ends[:-1], ends[-1], 0),
    )


def _logprobs(sample: CopiedSample, starts: Sequence[int], length: int, start: int) -> list[float] | None:
    """Return the sampler's log-probabilities of the tokens that the model wrote, and 0 for the others."""
    masks = _masks(sample)
    if not sample.logprobs or not starts or [*map(len, sample.logprobs)] != [*map(sum, masks)]:
        return None
    values = [0.0] * length
    for turn_start, mask, logprobs in zip(starts, masks, sample.logprobs, strict=True):
        positions = (turn_start + j for j, is_model in enumerate(mask) if is_model)
        for position, value in zip(positions, logprobs, strict=True):
            values[position] = value
    return values[start:]
