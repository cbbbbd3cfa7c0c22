"""Read AReaL's trajectories, and its rollout dumps: `rollout/<version>/<task_id>.jsonl`, `eval-rollout/…`.

A trajectory is a dict of padded tensors with a row per sequence: `input_ids`, `loss_mask` and optionally
`attention_mask`, `rewards`, `versions` (of the policy, per token) and `logprobs`. A rejected one is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, groupby
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.foreign_values import (
    REJECTED,
    UNREADABLE,
    CopiedBatch,
    CopyOptions,
    ForeignRollouts,
    Lost,
    Unplaced,
    copied_batch,
)
from rollout_plugins.content.rewards import to_float
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes._fields import as_whole, as_whole_or_none, list_in, message_fields
from rollout_plugins.shapes._files import each_row, find_files
from rollout_plugins.shapes._speech import TokenSpans, decoder
from rollout_plugins.shapes._tensors import to_host

NAME = "AReaL"
LACKS = (
    "messages and tool calls: the texts contain the chat template's own tokens",
    "the roles of the text between the model's turns: it gets the role 'context'",
    "rewards per function, advantages and log-probabilities",
    "finish reasons and images",
    "rejected trajectories, which are not dumped",
)
_ROLES = {"gen": "assistant"}
NEEDED = ("input_ids", "loss_mask")
READ = (*NEEDED, "attention_mask", "rewards", "versions")


def rollouts(trajectories: Any, tokenizer: Any, *, data: Sequence[Mapping[str, Any]] | None = None) -> ForeignRollouts:
    """Return the rollouts of a batch, or of a list with the result of each episode and None for rejected ones.

    Args:
        trajectories: a dict of tensors, or a list of such dicts and None.
        tokenizer: decodes the texts; a function from ids to text works too. The recorder's thread calls it.
        data: the dataset rows: one per sequence of a batch, or one per episode of a list. Their `messages` are the
            prompt, instead of its decoded text; their other values are the rollouts' columns.
    """
    return ForeignRollouts(lambda options: _take(trajectories, tokenizer, data, options))


def _take(trajectories: Any, tokenizer: Any, data: Any, options: CopyOptions) -> CopiedBatch:
    is_list = isinstance(trajectories, (list, tuple))
    parts = [_checked(part, options) for part in (trajectories if is_list else [trajectories])]
    episodes = _copy_episodes(parts, (*READ, "logprobs") if options.tokens else READ)
    copier = Snapshot()
    rows = copier.copy(_dataset_rows(data, episodes, options, is_list=is_list))
    items: list[Any] = []
    for episode, episode_rows in zip(episodes, rows, strict=True):
        sequences = [(episode, index, row) for index, row in enumerate(episode_rows)]
        items += [episode] if isinstance(episode, Lost) else sequences
    tensors = [tensor for episode in episodes if isinstance(episode, _Episode) for tensor in episode.numbers.values()]
    reader = _Reader(tokenizer, options)
    return copied_batch(reader.rollout, items, copier.bytes + sum(tensor.nbytes for tensor in tensors), ("reward",))


@dataclass(slots=True)
class _Episode:
    """The tensors of one trajectory, with a row per sequence, and marks for its rollouts."""

    numbers: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers["input_ids"])


def _checked(part: Any, options: CopyOptions) -> Any:
    """Return the trajectory, or the `Lost` that replaces an unreadable one."""
    if part is None:
        return REJECTED
    if not isinstance(part, Mapping):
        fault = (
            f"a trajectory is of type {type(part).__name__}: give AReaL's dict of tensors, or None for a rejected one"
        )
    else:
        missing = " and no ".join(name for name in NEEDED if part.get(name) is None)
        fault = f"a trajectory has no {missing}; it has {', '.join(map(str, part))}" if missing else ""
    if fault and options.checked:
        raise SetupError(fault)
    return UNREADABLE if fault else part


def _copy_episodes(parts: Sequence[Any], names: Sequence[str]) -> list[_Episode | Lost]:
    """Return the trajectories with CPU copies of their tensors, copied all at once."""
    places = [(index, name) for index, part in enumerate(parts) for name in names if _has(part, name)]
    copies = to_host([parts[index][name] for index, name in places])
    tensors: list[dict[str, Any]] = [{} for _ in parts]
    for (index, name), tensor in zip(places, copies, strict=True):
        tensors[index][name] = tensor
    return [part if isinstance(part, Lost) else _episode(own) for part, own in zip(parts, tensors, strict=True)]


def _has(part: Any, name: str) -> bool:
    return not isinstance(part, Lost) and part.get(name) is not None


def _episode(tensors: dict[str, Any]) -> _Episode | Lost:
    """Return the episode with a dimension for the sequences, and without tensors that lack a row for each sequence."""
    ids = tensors["input_ids"]
    if ids is None or ids.ndim not in {1, 2}:
        return UNREADABLE
    if ids.ndim == 1:
        tensors = {name: None if tensor is None else tensor.unsqueeze(0) for name, tensor in tensors.items()}
    elif len(ids) == 1:  # a reward without dimension belongs to the only sequence
        tensors = {name: t.unsqueeze(0) if t is not None and not t.ndim else t for name, t in tensors.items()}
    count = len(tensors["input_ids"])
    complete = {name: t for name, t in tensors.items() if t is not None and t.ndim and len(t) == count}
    if not {"input_ids", "loss_mask"} <= complete.keys():
        return UNREADABLE
    reason = f"not a tensor with a row for each of {count} sequences"
    return _Episode(complete, {f"lost:{name}": reason for name in tensors if name not in complete})


def _dataset_rows(
    data: Any, episodes: Sequence[_Episode | Lost], options: CopyOptions, *, is_list: bool
) -> list[list[Any]]:
    """Return the dataset row of each sequence, per episode; empty rows if they do not line up."""
    counts = [len(episode) if isinstance(episode, _Episode) else 0 for episode in episodes]
    needed = len(counts) if is_list else counts[0]
    if data is None:
        return [[{}] * count for count in counts]
    if len(data) == needed:
        rows = [dict(row) if isinstance(row, Mapping) else row for row in (data[place] for place in range(needed))]
        return [[row] * count for row, count in zip(rows, counts, strict=True)] if is_list else [rows]
    fault = f"data has {len(data)} rows for {needed} {'episodes' if is_list else 'sequences'}"
    if options.checked:
        raise SetupError(fault)
    for episode in episodes:
        if isinstance(episode, _Episode):
            episode.marks["lost:data"] = fault
    return [[{}] * count for count in counts]


class _Reader:
    """Builds rollouts from sequences, on the worker thread."""

    def __init__(self, tokenizer: Any, options: CopyOptions) -> None:
        self._decode = decoder(tokenizer)
        self._end = getattr(tokenizer, "eos_token_id", None)
        self._with_tokens = options.tokens

    def rollout(self, sequence: tuple[_Episode, int, Any]) -> Unplaced:
        episode, index, row = sequence
        marks = dict(episode.marks)
        if not isinstance(row, Mapping):
            marks["lost:data"] = f"its row is of type {type(row).__name__}, not a dict"
            row = {}
        numbers = {name: tensor[index] for name, tensor in episode.numbers.items()}
        reward = _sum_rewards(numbers.pop("rewards", None))
        attention = numbers.pop("attention_mask", None)
        unpadded = {name: (t if attention is None else t[attention.bool()]).tolist() for name, t in numbers.items()}
        spans = TokenSpans(unpadded["input_ids"], unpadded["loss_mask"])
        answer = spans.completion(self._decode)
        prompt = row.get("messages")
        conversation = message_fields(spans.prompt(self._decode) if prompt is None else prompt, answer)
        conversation["prompt_is_text"] |= prompt is None
        conversation["completion_is_text"] = len(answer) == 1
        rollout = Rollout(
            id="",
            **conversation,
            **_version_fields(_summarise_versions(list(compress(unpadded.get("versions", ()), spans.mask)))),
            rewards={"reward": reward},
            reward=reward,
            prompt_tokens=spans.prompt_length,
            completion_tokens=sum(map(bool, spans.mask)),
            finish="stop" if answer and spans.ids[-1] == self._end else "unknown",
            columns={name: value for name, value in row.items() if name != "messages"},
            tokens=spans.tokens(unpadded.get("logprobs")) if self._with_tokens else None,
            marks=marks,
        )
        return Unplaced(rollout)


def _sum_rewards(rewards: Any) -> float | None:
    """Return the reward of a sequence, which may have one reward per token."""
    return None if rewards is None else float(rewards.double().sum())


def _summarise_versions(versions: list[int]) -> dict[str, Any]:
    """Return the oldest and the newest policy version, and each version with the number of consecutive tokens."""
    if not versions:
        return {}
    stretches = [[version, len(list(tokens))] for version, tokens in groupby(versions)]
    return {"head_version": min(versions), "tail_version": max(versions), "version_rle": stretches}


def _version_fields(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy versions of a rollout as its fields."""
    extra = {name: facts[name] for name in ("head_version", "tail_version", "version_rle", "seqlen") if name in facts}
    return {"policy_step": as_whole_or_none(facts.get("tail_version")), "extra": extra}


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield the samples of every task, in the order of the policy versions."""
    for file in find_files(path, "**/*.jsonl", "the rollout folder of the trial's logs, or one file in it"):
        yield from each_row(file, partial(_row_rollout, file=file))


def _row_rollout(row: dict[str, Any], file: Path) -> Unplaced | Lost:
    if "completion" not in row or "prompt" not in row:
        return Lost("row without prompt and completion")
    reward, version = to_float(row.get("reward")), file.parent.name
    versions = [pair for pair in list_in(row, "version_rle") if isinstance(pair, list) and len(pair) == 2]
    rollout = Rollout(
        id="",
        split="eval" if "eval-rollout" in file.parts else "train",
        step=int(version) if version.isdigit() else as_whole(row.get("tail_version")),
        **message_fields(row["prompt"], _turns(row) or row["completion"]),
        **_version_fields(row),
        rewards={"reward": reward}
        | ({"original": to_float(row["original_reward"])} if "original_reward" in row else {}),
        reward=reward,
        prompt_tokens=as_whole_or_none(row.get("prompt_len")),
        completion_tokens=sum(as_whole(tokens) for _, tokens in versions) if versions else None,
        columns={"task_id": row.get("task_id")},
    )
    return Unplaced(rollout, row.get("task_id"))


def _turns(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the segments after the prompt, if the dump has segments."""
    segments = [part for part in list_in(row, "segments") if isinstance(part, dict) and part.get("role") != "prompt"]
    return [{"role": _ROLES.get(str(part.get("role")), "context"), "content": part.get("text")} for part in segments]
