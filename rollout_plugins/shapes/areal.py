"""AReaL's trajectories, and its rollout dumps: `rollout/<version>/<task_id>.jsonl`, `eval-rollout/…` for evaluation.

A trajectory is a dict of padded tensors, a row for each sequence: `input_ids`, `loss_mask` and, where they are there,
`attention_mask`, `rewards`, `versions` (of the policy, for each token) and `logprobs`. It is None when rejected.
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
from rollout_plugins.shapes._fields import list_in, spoken, whole, whole_or_none
from rollout_plugins.shapes._files import each_row, find
from rollout_plugins.shapes._speech import Speech, decoder
from rollout_plugins.shapes._tensors import to_host

NAME = "AReaL"
LACKS = (
    "messages and tool calls: texts carry the chat template's own tokens",
    "whose words stand between the model's turns: they get the role 'context'",
    "rewards per function, advantages and log-probabilities",
    "finish reasons and images",
    "rejected trajectories, which are not dumped",
)
_ROLES = {"gen": "assistant"}
NEEDED = ("input_ids", "loss_mask")
READ = (*NEEDED, "attention_mask", "rewards", "versions")


def rollouts(trajectories: Any, tokenizer: Any, *, data: Sequence[Mapping[str, Any]] | None = None) -> ForeignRollouts:
    """A whole batch, or a list of what each episode returned, with None for those rejected.

    Args:
        trajectories: a dict of tensors, or a list of such dicts and None.
        tokenizer: for the texts, or a function from ids to text. Decoding is done by the recorder's thread.
        data: the dataset rows: one for each sequence of a batch, or for each episode of a list. Their `messages` are
            the prompt, instead of its decoded text; the rest are the rollouts' columns.
    """
    return ForeignRollouts(lambda wanted: _take(trajectories, tokenizer, data, wanted))


def _take(trajectories: Any, tokenizer: Any, data: Any, wanted: CopyOptions) -> CopiedBatch:
    is_list = isinstance(trajectories, (list, tuple))
    parts = [_checked(part, wanted) for part in (trajectories if is_list else [trajectories])]
    episodes = _on_host(parts, (*READ, "logprobs") if wanted.tokens else READ)
    copier = Snapshot()
    rows = copier.copy(_dataset_rows(data, episodes, wanted, is_list=is_list))
    items: list[Any] = []
    for episode, some in zip(episodes, rows, strict=True):
        sequences = [(episode, place, row) for place, row in enumerate(some)]
        items += [episode] if isinstance(episode, Lost) else sequences
    numbers = [tensor for one in episodes if isinstance(one, _Episode) for tensor in one.numbers.values()]
    reader = _Reader(tokenizer, wanted)
    return copied_batch(reader.found, items, copier.bytes + sum(tensor.nbytes for tensor in numbers), ("reward",))


@dataclass(slots=True)
class _Episode:
    """One trajectory's tensors, a row for each sequence, and what is to be noted of it."""

    numbers: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers["input_ids"])


def _checked(part: Any, wanted: CopyOptions) -> Any:
    """A trajectory that can be read, or what stands for one that can't."""
    if part is None:
        return REJECTED
    if not isinstance(part, Mapping):
        fault = (
            f"a trajectory is of type {type(part).__name__}; give AReaL's dict of tensors, or None for a rejected one"
        )
    else:
        missing = " and no ".join(name for name in NEEDED if part.get(name) is None)
        fault = f"a trajectory has no {missing}; it has {', '.join(map(str, part))}" if missing else ""
    if fault and wanted.checked:
        raise SetupError(fault)
    return UNREADABLE if fault else part


def _on_host(parts: Sequence[Any], names: Sequence[str]) -> list[_Episode | Lost]:
    """The trajectories with their tensors copied, all at once."""
    places = [(place, name) for place, part in enumerate(parts) for name in names if _has(part, name)]
    copies = to_host([parts[place][name] for place, name in places])
    found: list[dict[str, Any]] = [{} for _ in parts]
    for (place, name), tensor in zip(places, copies, strict=True):
        found[place][name] = tensor
    return [part if isinstance(part, Lost) else _episode(one) for part, one in zip(parts, found, strict=True)]


def _has(part: Any, name: str) -> bool:
    return not isinstance(part, Lost) and part.get(name) is not None


def _episode(tensors: dict[str, Any]) -> _Episode | Lost:
    """With a dimension for the sequences; what does not have a row for each of them is left out."""
    ids = tensors["input_ids"]
    if ids is None or ids.ndim not in {1, 2}:
        return UNREADABLE
    if ids.ndim == 1:
        tensors = {name: None if tensor is None else tensor.unsqueeze(0) for name, tensor in tensors.items()}
    elif len(ids) == 1:  # a reward alone is that of the one sequence
        tensors = {name: t.unsqueeze(0) if t is not None and not t.ndim else t for name, t in tensors.items()}
    count = len(tensors["input_ids"])
    good = {name: t for name, t in tensors.items() if t is not None and t.ndim and len(t) == count}
    if not {"input_ids", "loss_mask"} <= good.keys():
        return UNREADABLE
    why = f"not a tensor with a row for each of {count} sequences"
    return _Episode(good, {f"lost:{name}": why for name in tensors if name not in good})


def _dataset_rows(
    data: Any, episodes: Sequence[_Episode | Lost], wanted: CopyOptions, *, is_list: bool
) -> list[list[Any]]:
    """For each episode, the dataset row of each of its sequences; empty ones if they don't line up."""
    counts = [len(episode) if isinstance(episode, _Episode) else 0 for episode in episodes]
    needed = len(counts) if is_list else counts[0]
    if data is None:
        return [[{}] * count for count in counts]
    if len(data) == needed:
        rows = [dict(row) if isinstance(row, Mapping) else row for row in (data[place] for place in range(needed))]
        return [[row] * count for row, count in zip(rows, counts, strict=True)] if is_list else [rows]
    fault = f"data has {len(data)} rows for {needed} {'episodes' if is_list else 'sequences'}"
    if wanted.checked:
        raise SetupError(fault)
    for episode in episodes:
        if isinstance(episode, _Episode):
            episode.marks["lost:data"] = fault
    return [[{}] * count for count in counts]


class _Reader:
    """Makes rollouts of sequences; on the worker thread."""

    def __init__(self, tokenizer: Any, wanted: CopyOptions) -> None:
        self._decode = decoder(tokenizer)
        self._end = getattr(tokenizer, "eos_token_id", None)
        self._with_tokens = wanted.tokens

    def found(self, sequence: tuple[_Episode, int, Any]) -> Unplaced:
        episode, place, row = sequence
        marks = dict(episode.marks)
        if not isinstance(row, Mapping):
            marks["lost:data"] = f"its row is of type {type(row).__name__}, not a dict"
            row = {}
        numbers = {name: tensor[place] for name, tensor in episode.numbers.items()}
        reward = _total(numbers.pop("rewards", None))
        real = numbers.pop("attention_mask", None)
        cut = {name: (some if real is None else some[real.bool()]).tolist() for name, some in numbers.items()}
        speech = Speech(cut["input_ids"], cut["loss_mask"])
        said = speech.completion(self._decode)
        asked = row.get("messages")
        talk = spoken(speech.prompt(self._decode) if asked is None else asked, said)
        talk["prompt_is_text"] |= asked is None
        talk["completion_is_text"] = len(said) == 1
        rollout = Rollout(
            id="",
            **talk,
            **_written_by(_spread(list(compress(cut.get("versions", ()), speech.mask)))),
            rewards={"reward": reward},
            reward=reward,
            prompt_tokens=speech.prompt_length,
            completion_tokens=sum(map(bool, speech.mask)),
            finish="stop" if said and speech.ids[-1] == self._end else "unknown",
            columns={name: value for name, value in row.items() if name != "messages"},
            tokens=speech.tokens(cut.get("logprobs")) if self._with_tokens else None,
            marks=marks,
        )
        return Unplaced(rollout)


def _total(rewards: Any) -> float | None:
    """A sequence's reward; rewards for each token are summed."""
    return None if rewards is None else float(rewards.double().sum())


def _spread(versions: list[int]) -> dict[str, Any]:
    """Which versions of the policy wrote it: the oldest, the newest, and each with how many tokens in a row."""
    if not versions:
        return {}
    stretches = [[version, len(list(some))] for version, some in groupby(versions)]
    return {"head_version": min(versions), "tail_version": max(versions), "version_rle": stretches}


def _written_by(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a rollout says of the policy's versions."""
    extra = {name: facts[name] for name in ("head_version", "tail_version", "version_rle", "seqlen") if name in facts}
    return {"policy_step": whole_or_none(facts.get("tail_version")), "extra": extra}


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """The samples of every task, in the order of the versions."""
    for file in find(path, "**/*.jsonl", "the rollout folder of the trial's logs, or one file in it"):
        yield from each_row(file, partial(_dumped, file=file))


def _dumped(row: dict[str, Any], file: Path) -> Unplaced | Lost:
    if "completion" not in row or "prompt" not in row:
        return Lost("row without prompt and completion")
    reward, version = to_float(row.get("reward")), file.parent.name
    versions = [pair for pair in list_in(row, "version_rle") if isinstance(pair, list) and len(pair) == 2]
    rollout = Rollout(
        id="",
        split="eval" if "eval-rollout" in file.parts else "train",
        step=int(version) if version.isdigit() else whole(row.get("tail_version")),
        **spoken(row["prompt"], _turns(row) or row["completion"]),
        **_written_by(row),
        rewards={"reward": reward}
        | ({"original": to_float(row["original_reward"])} if "original_reward" in row else {}),
        reward=reward,
        prompt_tokens=whole_or_none(row.get("prompt_len")),
        completion_tokens=sum(whole(tokens) for _, tokens in versions) if versions else None,
        columns={"task_id": row.get("task_id")},
    )
    return Unplaced(rollout, row.get("task_id"))


def _turns(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The segments behind the prompt, where the dump has them."""
    segments = [part for part in list_in(row, "segments") if isinstance(part, dict) and part.get("role") != "prompt"]
    return [{"role": _ROLES.get(str(one.get("role")), "context"), "content": one.get("text")} for one in segments]
