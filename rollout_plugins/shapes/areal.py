"""AReaL's trajectories: dicts of padded tensors, a row for each sequence; None where one was rejected.

`input_ids`, `loss_mask` and, where they are there, `attention_mask`, `rewards`, `versions` (of the policy, for each
token) and `logprobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.building import as_messages
from rollout_plugins.shapes.shaped import REJECTED, UNREADABLE, Asked, Lost, Shaped, Taken, bytes_of, each
from rollout_plugins.shapes.speech import Speech, decoder
from rollout_plugins.shapes.tensors import to_host
from rollout_plugins.snapshot import Snapshot
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import tool_calls

NEEDED = ("input_ids", "loss_mask")
READ = (*NEEDED, "attention_mask", "rewards", "versions")


def rollouts(trajectories: Any, tokenizer: Any, *, data: Sequence[Mapping[str, Any]] | None = None) -> Shaped:
    """A whole batch, or a list of what each episode returned, with None for those rejected.

    Args:
        trajectories: a dict of tensors, or a list of such dicts and None.
        tokenizer: for the texts, or a function from ids to text. Decoding is done by the recorder's thread.
        data: the dataset rows: one for each sequence of a batch, or for each episode of a list. Their `messages` are
            the prompt, instead of its decoded text; the rest are the rollouts' columns.
    """
    return Shaped(lambda asked: _take(trajectories, tokenizer, data, asked))


def _take(trajectories: Any, tokenizer: Any, data: Any, asked: Asked) -> Taken:
    is_list = isinstance(trajectories, (list, tuple))
    parts = [_checked(part, asked) for part in (trajectories if is_list else [trajectories])]
    episodes = _on_host(parts, (*READ, "logprobs") if asked.tokens else READ)
    counts = [len(episode.numbers["input_ids"]) if isinstance(episode, _Episode) else 0 for episode in episodes]
    copier = Snapshot()
    rows = copier.copy(_dataset_rows(data, episodes, counts, asked, is_list=is_list))
    read = [episode for episode in episodes if isinstance(episode, _Episode)]
    size = sum(tensor.nbytes for episode in read for tensor in episode.numbers.values())
    reader = _Reader(tokenizer, asked)

    def build() -> list[Found | Lost]:
        sequences = [one for some in map(_sequences, episodes, rows) for one in some]
        return each(reader.found, sequences)

    return Taken(build, sum(counts), bytes_of(sum(counts), size + copier.bytes), ("reward",))


@dataclass(slots=True)
class _Episode:
    """One trajectory's tensors, a row for each sequence, and what is to be noted of it."""

    numbers: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)


def _checked(part: Any, asked: Asked) -> Any:
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
    if fault and asked.checked:
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
    data: Any, episodes: Sequence[Any], counts: list[int], asked: Asked, *, is_list: bool
) -> list[list[Any]]:
    """For each episode, the dataset row of each of its sequences; empty ones if they don't line up."""
    wanted = len(counts) if is_list else counts[0]
    if data is None or len(data) == wanted:
        given = [{}] * wanted if data is None else [data[place] for place in range(wanted)]
        rows = [dict(row) if isinstance(row, Mapping) else row for row in given]
        return [[row] * count for row, count in zip(rows, counts, strict=True)] if is_list else [rows]
    fault = f"data has {len(data)} rows for {wanted} {'episodes' if is_list else 'sequences'}"
    if asked.checked:
        raise SetupError(fault)
    for episode in episodes:
        if isinstance(episode, _Episode):
            episode.marks["lost:data"] = fault
    return [[{}] * count for count in counts]


def _sequences(episode: _Episode | Lost, rows: Sequence[Any]) -> list[Any]:
    """Each sequence's numbers, with its dataset row."""
    if isinstance(episode, Lost):
        return [episode]
    return [
        ({name: tensor[place] for name, tensor in episode.numbers.items()}, row, dict(episode.marks))
        for place, row in enumerate(rows)
    ]


class _Reader:
    """Makes rollouts of sequences; on the worker thread."""

    def __init__(self, tokenizer: Any, asked: Asked) -> None:
        self._decode = decoder(tokenizer)
        self._end = getattr(tokenizer, "eos_token_id", None)
        self._asked = asked

    def found(self, sequence: tuple[dict[str, Any], Any, dict[str, str]]) -> Found:
        numbers, row, marks = sequence
        if not isinstance(row, Mapping):
            marks["lost:data"] = f"its row is of type {type(row).__name__}, not a dict"
            row = {}
        reward = _total(numbers.pop("rewards", None))
        real = numbers.pop("attention_mask", None)
        cut = {name: (some if real is None else some[real.bool()]).tolist() for name, some in numbers.items()}
        speech = Speech(cut["input_ids"], cut["loss_mask"])
        versions = list(compress(cut.get("versions", ()), speech.mask))
        completion = speech.completion(self._decode)
        rollout = Rollout(
            id="",
            policy_step=max(versions, default=None),
            **self._prompt(row, speech),
            completion=completion,
            completion_is_text=len(completion) == 1,
            tool_calls=tool_calls(completion),
            rewards={"reward": reward},
            reward=reward,
            prompt_tokens=speech.prompt_length,
            completion_tokens=sum(map(bool, speech.mask)),
            finish="stop" if completion and speech.ids[-1] == self._end else "unknown",
            columns={name: value for name, value in row.items() if name != "messages"},
            extra=_spread(versions),
            tokens=speech.tokens(cut.get("logprobs")) if self._asked.tokens else None,
            marks=marks,
        )
        return Found(rollout)

    def _prompt(self, row: Mapping[str, Any], speech: Speech) -> dict[str, Any]:
        if row.get("messages") is None:
            return {"prompt": speech.prompt(self._decode), "prompt_is_text": True}
        prompt, is_text = as_messages(row["messages"], "user")
        return {"prompt": prompt, "prompt_is_text": is_text}


def _total(rewards: Any) -> float | None:
    """A sequence's reward; rewards for each token are summed."""
    return None if rewards is None else float(rewards.double().sum())


def _spread(versions: list[int]) -> dict[str, Any]:
    """Which versions of the policy wrote it: the oldest, the newest, and each with how many tokens in a row."""
    if not versions:
        return {}
    stretches = [[version, len(list(some))] for version, some in groupby(versions)]
    return {"head_version": min(versions), "tail_version": max(versions), "version_rle": stretches}
