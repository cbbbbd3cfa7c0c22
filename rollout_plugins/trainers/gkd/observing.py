"""Hosts of TRL's GKDTrainer, GOLDTrainer and IWOPDTrainer: supervised trainers whose student answers some prompts.

They have only token ids. Those of a batch are copied from the device once; the rest is done on the worker thread:
completions are decoded, and prompts are looked up among the rows that the data collator received, to record the
dataset's own messages. The dataset's answers are not rollouts. A teacher's answers are, and are marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from rollout_hookspecs import Emit, Support

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer, rows_in
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.trainers.gkd.collating import Collated, Collating

TEACHER = {"source": "teacher"}
_SEVERAL = {"columns": "unknown, because several rows of the dataset have this prompt"}
_TOKENIZED = {
    "prompt", "input_ids", "attention_mask", "labels", "completion_mask", "assistant_masks", "token_type_ids",
    "byte_offsets", "seq_lengths", "original_prompt_text", "original_completion_text",
}  # fmt: skip


@dataclass
class Piece:
    """Some rows of a generation, as the trainer computes its loss on them."""

    packed: Any
    """Token ids, attention and labels, in one tensor."""
    start: int
    """The index of its first row in the batch of this rank."""
    collated: list[Collated]
    rows: list[Any]
    """The rows of the dataset, if the trainer has them; otherwise they are looked up in the collator's calls."""
    logprobs: Any
    marks: Mapping[str, str]

    def unpack(self, generation: Generation) -> None:
        """Add lists of ids, and their rows of the dataset, to the generation, on the worker thread."""
        prompts, answers = [], []
        for ids, attention, labels in zip(*self.packed.tolist(), strict=True):
            row = list(zip(ids, attention, labels, strict=True))
            prompts.append([token for token, is_real, label in row if is_real and label == -100])
            answers.append([token for token, _, label in row if label != -100])
        generation.prompt_ids += prompts
        generation.answer([*generation.ids, *answers])
        generation.places += range(self.start, self.start + len(prompts))
        for prompt, columns, marks in self._rows(prompts):
            generation.prompts.append(prompt)
            generation.columns.append(columns)
            generation.marks.append({**marks, **self.marks})
        if self.logprobs is not None:
            is_answer = self.packed[2] != -100
            logprobs = [row[keep] for row, keep in zip(self.logprobs, is_answer, strict=True)]
            generation.tensors["sampling_per_token_logps"] = [
                *generation.tensors.get("sampling_per_token_logps", ()),
                *logprobs,
            ]

    def _rows(self, prompts: list[list[int]]) -> list[tuple[Any, dict[str, Any], dict[str, str]]]:
        """Return prompt, columns and marks of each row; empty ones for a row that is unknown or ambiguous."""
        matches = [self.rows] if self.rows else [rows for call in self.collated for rows in call.rows_of(prompts)]
        return [_common_facts([rows[i] for rows in matches]) for i in range(len(prompts))]


def _common_facts(rows: list[Any]) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """Return what several rows with the same prompt ids have in common."""
    prompts = [_prompt(row) for row in rows]
    if not _equal(prompts) or prompts[0] is None:
        return None, {}, {}
    columns = [{name: value for name, value in row.items() if name not in _TOKENIZED} for row in rows]
    if not _equal(columns):
        return prompts[0], {}, _SEVERAL
    if columns[0].get("messages") == prompts[0]:
        del columns[0]["messages"]
    return prompts[0], columns[0], {}


def _equal(values: list[Any]) -> bool:
    """Return whether there are values and all are equal; False for arrays, whose comparison is ambiguous."""
    try:
        return bool(values) and all(value == values[0] for value in values)
    except Exception:
        return False


def _prompt(row: Mapping[str, Any]) -> Any:
    """Return the messages of a row before the answer that it contains."""
    if "prompt" in row:
        return row["prompt"]
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    last = messages[-1]
    answered = len(messages) > 1 and isinstance(last, dict) and last.get("role") == "assistant"
    return messages[:-1] if answered else messages


class TextObserver(Observer):
    """Builds a generation from pieces of token ids, as all three trainers have them."""

    decodes = True

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.collating = Collating(trainer)

    def detach(self) -> None:
        self.collating.detach()
        super().detach()

    def begin(self) -> Generation:
        generation = Generation(self.trainer, self.options, training=True)  # they answer no prompts in evaluation
        generation.decoder, generation.prompt_ids = self.decoder, []
        return generation

    def add(
        self, generation: Generation, tensors: Sequence[Any], start: int = 0, *, rows: Sequence[Any] = (),
        logprobs: Any = None, marks: Mapping[str, str] = MappingProxyType({}), width: int = 0,
    ) -> None:  # fmt: skip
        """Copy the tensors from the device once, so that the trainer's later changes to them have no effect.

        Positions without labels are the prompt; the first `width` columns are so in any case.
        """
        import torch

        ids, attention, labels = tensors
        packed = torch.stack((ids, attention.to(ids.dtype), labels)).detach().to("cpu", copy=True)
        packed[2, :, :width] = -100
        is_stored = logprobs is not None and self.options.get("tokens")
        copied_logprobs = logprobs.detach().to("cpu", copy=True) if is_stored else None
        copier = Snapshot()
        piece = Piece(packed, start, self.collating.latest(), copier.copy(list(rows)), copied_logprobs, marks)
        generation.count += len(ids)
        logprob_bytes = 0 if copied_logprobs is None else copied_logprobs.nbytes
        generation.bytes += packed.nbytes + logprob_bytes + copier.bytes + 512 * len(ids)
        generation.later.append(lambda: piece.unpack(generation))


def _has_prompts(value: Any) -> bool:
    return isinstance(value, Mapping) and "prompts" in value


class GKDObserver(TextObserver):
    needs: ClassVar[Needs] = {"generate_on_policy_outputs": ("model", "inputs", "generation_config")}
    without = ("_fill_buffer",)

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("generate_on_policy_outputs", self._generate, ())  # whatever arguments it takes

    def _generate(self, generation: Generation, call: Call) -> Any:
        out = call.run()
        with self.guarded("count the rows of a generation"):
            generation.expected = len(out[0])
        with self.guarded("copy the tokens of a generation"):
            values = (*call.args, *call.kwargs.values())
            is_teacher = any(map(self._is_teacher, values))
            generation.policy_step = None if is_teacher else generation.policy_step
            prompts = next(value["prompts"] for value in values if _has_prompts(value))
            self.add(generation, out[:3], marks=TEACHER if is_teacher else {}, width=prompts.shape[1])
        return out

    @cached_property
    def _teacher(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.teacher_model)

    def _is_teacher(self, model: Any) -> bool:
        return model is self._teacher or model is self.trainer.teacher_model


class BufferObserver(TextObserver):
    """Observes a trainer that answers the prompts of an optimizer step at once, or slice by slice."""

    needs: ClassVar[Needs] = {
        "_prepare_inputs": ("generation_batch",),
        "_fill_buffer": ("generation_batch", "buffer_steps"),
    }
    flags: ClassVar[str]
    """The trainer's attribute that states which slices the student answers; without it, the student answers all."""

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.waiting: set[int] = set()
        self.watch("_prepare_inputs", self._prepare, ())  # whatever arguments they take
        self.watch("_fill_buffer", self._fill, ())

    def _fill(self, generation: Generation, call: Call) -> Any:
        # a reference to the list would keep its tensors in memory
        before = id(vars(self.trainer).get("_buffered_inputs"))
        try:
            return call.run()
        finally:
            buffer = vars(self.trainer).get("_buffered_inputs")
            if not isinstance(buffer, list):
                self._count_all(generation, call)
            elif id(buffer) != before:
                self.waiting = set(range(len(buffer)))

    def _prepare(self, generation: Generation, call: Call) -> Any:
        try:
            return call.run()
        finally:
            if self.waiting:
                self._count_all(generation, call)  # until they are taken
                with self.guarded("copy the tokens of a generation"):
                    self._take(generation, next(iter((*call.args, *call.kwargs.values())), ()))
                    generation.expected = 0
                if generation.expected:
                    self.waiting.clear()

    def _count_all(self, generation: Generation, call: Call) -> None:
        """Count all rows as answered, if the buffer does not state which were."""
        with self.guarded("count the rows of a generation"):
            generation.expected = rows_in(call)

    def _take(self, generation: Generation, batch: Any) -> None:
        """Add the slices of the buffer that the student has answered by now and that were not added yet."""
        trainer = self.trainer
        buffer = vars(trainer)["_buffered_inputs"]
        flags = vars(trainer).get(self.flags) or [True] * len(buffer)
        self.waiting -= {index for index in self.waiting if not flags[index]}
        for index in sorted(self.waiting):
            if isinstance(buffer[index], Mapping) and "labels" in buffer[index]:
                self.waiting.discard(index)
                self._add_slice(generation, buffer[index], index, batch)
                generation.width = len(buffer) * len(buffer[index]["labels"])
        if trainer.use_vllm:
            # vLLM does not receive the weights of every step
            generation.policy_step = vars(trainer)["_last_vllm_sync_step"]

    def _add_slice(self, generation: Generation, inputs: Mapping[str, Any], index: int, batch: Any) -> None:
        tensors = [inputs[name] for name in ("input_ids", "attention_mask", "labels")]
        count = len(tensors[0])
        start = index * count
        rows = batch[start : start + count] if isinstance(batch, list) else ()
        self.add(generation, tensors, start, rows=rows, logprobs=inputs.get("rollout_logprobs"))


class GOLDObserver(BufferObserver):
    needs: ClassVar[Needs] = {**BufferObserver.needs, **GKDObserver.needs}
    flags = "_buffered_on_policy"


class IWOPDObserver(BufferObserver):
    without = ("generate_on_policy_outputs",)
    flags = "_buffered_on_policy_flags"


GKD = TRLHost(
    "gkd",
    GKDObserver,
    (
        Support(
            trainer="GKDTrainer", messages="decoded completions", rewards="none", since="0.22",
            note="answers of the teacher are marked; the dataset's own are not rollouts; before 1.10, a padding token "
            "inside an answer counts as padding",
        ),
    ),
)  # fmt: skip
GOLD = TRLHost(
    "gold",
    GOLDObserver,
    (
        Support(
            trainer="GOLDTrainer", messages="decoded completions", rewards="none", groups=True, images=True,
            since="0.29", note="the dataset's own answers are not rollouts; before 1.10, a padding token inside an "
            "answer counts as padding",
        ),
    ),
)  # fmt: skip
IWOPD = TRLHost(
    "iwopd",
    IWOPDObserver,
    (
        Support(
            trainer="IWOPDTrainer", messages="decoded completions", rewards="none", groups=True, logprobs="sampler",
            since="1.9", note="log-probabilities with vLLM; the dataset's own answers are not rollouts",
        ),
        Support(
            trainer="DistillationTrainer", messages="decoded completions", rewards="none", groups=True, since="1.1",
            until="1.9",
        ),
    ),
)  # fmt: skip
