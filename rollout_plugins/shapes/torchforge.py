"""Read torchforge's Episodes, alone or in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Rollout, Tokens

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
from rollout_plugins.content.hashing import is_tensor
from rollout_plugins.content.rewards import to_float
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes._fields import finish_of, message_fields, scores
from rollout_plugins.shapes._tensors import to_host

READ = ("request", "prompt", "response", "target", "reward", "reward_breakdown", "advantage", "policy_version")
KEPT = ("episode_id", "request_len", "response_len", "pad_id")
PER_TOKEN = ("prompt_ids", "token_ids", "logprobs")


def rollouts(episodes: Any) -> ForeignRollouts:
    """Return the rollouts of a list of episodes, or of groups of them (`list[list[Episode]]`); None is a rejected one.

    These attributes of an episode are read if present: `request` (or `prompt`), `response`, `target`, `reward`,
    `reward_breakdown`, `advantage`, `policy_version`, `episode_id`, `request_len`, `response_len`, `pad_id`. A
    recorder with `tokens=True` also reads `ref_logprobs` and, from its `completion`, `prompt_ids`, `token_ids` and
    `logprobs`.
    """
    return ForeignRollouts(lambda options: _take(episodes, options))


def _take(episodes: Any, options: CopyOptions) -> CopiedBatch:
    if not isinstance(episodes, (list, tuple)):
        raise SetupError(
            f"episodes is of type {type(episodes).__name__}: give a list of episodes, or of groups of them"
        )
    items: list[Any] = []
    copier = Snapshot()
    for episode, group in _flat(episodes):
        facts = _facts(episode, copier, options)
        items.append(facts if isinstance(facts, Lost) else (facts, group))
    readable = [item[0] for item in items if not isinstance(item, Lost)]
    _copy_tensors(readable)
    names = dict.fromkeys(name for facts in readable for name in scores(facts["reward_breakdown"])[0])
    tensors = [tensor for facts in readable for tensor in facts["tensors"].values()]
    return copied_batch(_rollout, items, copier.bytes + sum(tensor.nbytes for tensor in tensors), names)


def _flat(episodes: Sequence[Any]) -> Iterator[tuple[Any, int | None]]:
    """Yield each episode, with the index of its group if it is in one."""
    for index, item in enumerate(episodes):
        if isinstance(item, (list, tuple)):
            yield from ((episode, index) for episode in item)
        else:
            yield item, None


def _facts(episode: Any, copier: Snapshot, options: CopyOptions) -> dict[str, Any] | Lost:
    """Return the facts of an episode; tensors are not copied yet."""
    if episode is None:
        return REJECTED
    try:
        facts = {name: copier.copy(_get(episode, name)) for name in (*READ, *KEPT)}
        facts |= _completion_facts(episode, options)
    except (Exception, SystemExit):  # an attribute may raise when it is read
        return UNREADABLE
    if facts["response"] is None and facts["request"] is None and facts["prompt"] is None:
        if options.checked:
            raise SetupError(f"an episode, of type {type(episode).__name__}, has neither request nor response")
        return UNREADABLE
    if isinstance(facts["reward_breakdown"], Mapping):
        facts["reward_breakdown"] = dict(facts["reward_breakdown"])
    for holder, name in _numbers(facts):
        holder[name] = holder[name] if is_tensor(holder[name]) else to_float(holder[name])
    return facts


def _completion_facts(episode: Any, options: CopyOptions) -> dict[str, Any]:
    completion = _get(episode, "completion")
    tensors = {name: _get(completion, name) for name in PER_TOKEN}
    ids = {name: tensors[name] for name in ("prompt_ids", "token_ids")}
    lengths = {name: len(values) for name, values in ids.items() if values is not None}
    tensors_to_copy = {**tensors, "ref_logprobs": _get(episode, "ref_logprobs")} if options.tokens else {}
    return {
        "lengths": lengths,
        "stop_reason": _get(completion, "stop_reason"),
        "tensors": {name: values for name, values in tensors_to_copy.items() if values is not None},
        "marks": {},
    }


def _numbers(facts: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return each container and key of an episode's rewards and its advantage."""
    parts = facts["reward_breakdown"]
    return [(facts, "reward"), (facts, "advantage"), *((parts, name) for name in parts or () if type(parts) is dict)]


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _copy_tensors(episodes: Sequence[dict[str, Any]]) -> None:
    """Replace all tensors of all episodes by CPU copies. A tensor that cannot be copied is removed."""
    places = [
        *((facts, holder, name) for facts in episodes for holder, name in _numbers(facts) if is_tensor(holder[name])),
        *((facts, facts["tensors"], name) for facts in episodes for name in facts["tensors"]),
    ]
    copies = to_host([holder[name] for _, holder, name in places])
    for (facts, holder, name), copied in zip(places, copies, strict=True):
        if holder is not facts["tensors"]:
            holder[name] = to_float(copied if copied is not None else "a tensor that cannot be copied")
        elif copied is not None:
            holder[name] = copied
        else:
            del holder[name]
            facts["marks"][f"lost:tokens.{name}"] = "it could not be copied"


def _rollout(item: tuple[dict[str, Any], Any]) -> Unplaced:
    facts, group = item
    rewards, other_rewards = scores(facts["reward_breakdown"])
    version = to_float(facts["policy_version"])
    extra = {name: facts[name] for name in KEPT if facts[name] is not None}
    rollout = Rollout(
        id="",
        policy_step=int(version) if type(version) is float and version.is_integer() else version,
        **message_fields(facts["prompt"] if facts["request"] is None else facts["request"], facts["response"]),
        rewards=rewards,
        reward=facts["reward"],
        advantage=facts["advantage"],
        prompt_tokens=facts["lengths"].get("prompt_ids"),
        completion_tokens=facts["lengths"].get("token_ids"),
        finish=finish_of(facts["stop_reason"]),
        columns={"target": facts["target"]} if facts["target"] is not None else {},
        extra=extra if other_rewards is None else {**extra, "reward_breakdown": other_rewards},
        tokens=_tokens(facts["tensors"]),
        marks=facts["marks"],
    )
    return Unplaced(rollout, group)


def _tokens(tensors: dict[str, Any]) -> Tokens | None:
    """Return ids and log-probabilities, the latter without padding."""
    if "token_ids" not in tensors:
        return None
    lists = {name: tensor.reshape(-1).tolist() for name, tensor in tensors.items()}
    length = len(lists["token_ids"])
    return Tokens(
        prompt=lists.get("prompt_ids"),
        completion=lists["token_ids"],
        mask=[1] * length,
        logprobs=lists.get("logprobs"),
        reference_logprobs=lists["ref_logprobs"][:length] if "ref_logprobs" in lists else None,
    )
