"""torchforge's Episodes, alone or in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Rollout, Tokens
from rollout_hookspecs._records import Finish

from rollout_plugins.errors import SetupError
from rollout_plugins.hashing import is_tensor
from rollout_plugins.hosts.building import as_messages
from rollout_plugins.shapes.shaped import REJECTED, UNREADABLE, Asked, Lost, Shaped, Taken, bytes_of, each
from rollout_plugins.shapes.tensors import to_host
from rollout_plugins.snapshot import Snapshot
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import given, scores, tool_calls

READ = ("request", "prompt", "response", "target", "reward", "reward_breakdown", "advantage", "policy_version")
KEPT = ("episode_id", "request_len", "response_len", "pad_id")
PER_TOKEN = ("prompt_ids", "token_ids", "logprobs")
_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length"}


def rollouts(episodes: Any) -> Shaped:
    """A list of episodes, or of groups of them (`list[list[Episode]]`); None among them is a rejected one.

    Of each is read, where it is there: `request` (or `prompt`), `response`, `target`, `reward`, `reward_breakdown`,
    `advantage`, `policy_version`, `episode_id`, `request_len`, `response_len`, `pad_id`; and, by a recorder with
    `tokens=True`, `prompt_ids`, `token_ids` and `logprobs` of its `completion`, and `ref_logprobs`.
    """
    return Shaped(lambda asked: _take(episodes, asked))


def _take(episodes: Any, asked: Asked) -> Taken:
    if not isinstance(episodes, (list, tuple)):
        raise SetupError(
            f"episodes is of type {type(episodes).__name__}; give a list of episodes, or of groups of them"
        )
    flat = list(_flat(episodes))
    copier = Snapshot()
    facts = [_facts(one, copier, asked) for one, _ in flat]
    _on_host([fact for fact in facts if isinstance(fact, dict)])
    items = [fact if isinstance(fact, Lost) else (fact, group) for fact, (_, group) in zip(facts, flat, strict=True)]
    known = [fact for fact in facts if isinstance(fact, dict)]
    names = dict.fromkeys(name for fact in known for name in scores(fact["reward_breakdown"])[0])
    count = len(items) - items.count(REJECTED)
    size = copier.bytes + sum(tensor.nbytes for fact in known for tensor in fact["tensors"].values())
    return Taken(lambda: each(_found, items), count, bytes_of(count, size), tuple(names))


def _flat(episodes: Sequence[Any]) -> Iterator[tuple[Any, int | None]]:
    """Each episode, with the number of its group if it is in one."""
    for place, some in enumerate(episodes):
        if isinstance(some, (list, tuple)):
            yield from ((one, place) for one in some)
        else:
            yield some, None


def _facts(episode: Any, copier: Snapshot, asked: Asked) -> dict[str, Any] | Lost:
    """What is read of an episode; tensors are not copied yet."""
    if episode is None:
        return REJECTED
    try:
        facts = {name: copier.copy(_get(episode, name)) for name in (*READ, *KEPT)}
        facts |= _of_completion(episode, asked)
    except (Exception, SystemExit):  # an attribute that objects to being read
        return UNREADABLE
    if facts["response"] is None and facts["request"] is None and facts["prompt"] is None:
        if asked.checked:
            raise SetupError(f"an episode, of type {type(episode).__name__}, is without request and response")
        return UNREADABLE
    if isinstance(facts["reward_breakdown"], Mapping):
        facts["reward_breakdown"] = dict(facts["reward_breakdown"])
    for holder, name in _numbers(facts):
        holder[name] = holder[name] if is_tensor(holder[name]) else given(holder[name])
    return facts


def _of_completion(episode: Any, asked: Asked) -> dict[str, Any]:
    completion = _get(episode, "completion")
    tensors = {name: _get(completion, name) for name in PER_TOKEN}
    ids = {name: tensors[name] for name in ("prompt_ids", "token_ids")}
    lengths = {name: len(some) for name, some in ids.items() if some is not None}
    wanted = {**tensors, "ref_logprobs": _get(episode, "ref_logprobs")} if asked.tokens else {}
    return {
        "lengths": lengths,
        "stop_reason": _get(completion, "stop_reason"),
        "tensors": {name: some for name, some in wanted.items() if some is not None},
        "marks": {},
    }


def _numbers(facts: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where an episode's rewards and its advantage stand."""
    parts = facts["reward_breakdown"]
    return [(facts, "reward"), (facts, "advantage"), *((parts, name) for name in parts or () if type(parts) is dict)]


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _on_host(known: Sequence[dict[str, Any]]) -> None:
    """Copies all tensors of all episodes at once, to where they stand. One that cannot be copied is left out."""
    places = [
        *((facts, holder, name) for facts in known for holder, name in _numbers(facts) if is_tensor(holder[name])),
        *((facts, facts["tensors"], name) for facts in known for name in facts["tensors"]),
    ]
    copies = to_host([holder[name] for _, holder, name in places])
    for (facts, holder, name), copied in zip(places, copies, strict=True):
        if holder is not facts["tensors"]:
            holder[name] = given(copied if copied is not None else "a tensor that cannot be copied")
        elif copied is not None:
            holder[name] = copied
        else:
            del holder[name]
            facts["marks"][f"lost:tokens.{name}"] = "it could not be copied"


def _found(item: tuple[dict[str, Any], Any]) -> Found:
    facts, group = item
    rewards, other_rewards = scores(facts["reward_breakdown"])
    request = facts["request"] if facts["request"] is not None else facts["prompt"]
    prompt, prompt_is_text = as_messages(request if request is not None else (), "user")
    completion, completion_is_text = as_messages(
        facts["response"] if facts["response"] is not None else (), "assistant"
    )
    version = given(facts["policy_version"])
    extra = {name: facts[name] for name in KEPT if facts[name] is not None}
    rollout = Rollout(
        id="",
        policy_step=int(version) if type(version) is float and version.is_integer() else version,
        prompt=prompt,
        completion=completion,
        prompt_is_text=prompt_is_text,
        completion_is_text=completion_is_text,
        tool_calls=tool_calls(completion),
        rewards=rewards,
        reward=facts["reward"],
        advantage=facts["advantage"],
        prompt_tokens=facts["lengths"].get("prompt_ids"),
        completion_tokens=facts["lengths"].get("token_ids"),
        finish=_FINISH.get(str(facts["stop_reason"]), "unknown"),
        columns={"target": facts["target"]} if facts["target"] is not None else {},
        extra=extra if other_rewards is None else {**extra, "reward_breakdown": other_rewards},
        tokens=_tokens(facts["tensors"]),
        marks=facts["marks"],
    )
    return Found(rollout, group)


def _tokens(tensors: dict[str, Any]) -> Tokens | None:
    """Ids and log-probabilities, without the padding of the latter."""
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
