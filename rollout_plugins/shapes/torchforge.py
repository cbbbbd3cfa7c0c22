"""torchforge's Episodes, alone or in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Rollout, Tokens
from rollout_hookspecs._records import Finish

from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.building import as_messages
from rollout_plugins.shapes.shaped import REJECTED, UNREADABLE, Asked, Lost, Shaped, Taken, bytes_of, each
from rollout_plugins.shapes.tensors import to_host
from rollout_plugins.snapshot import Snapshot
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import number, numbers_in, tool_calls

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
    copies = _on_host([one for one, _ in flat]) if asked.tokens else [{} for _ in flat]
    items = [
        fact if isinstance(fact, Lost) else (fact, group, some)
        for fact, (_, group), some in zip(facts, flat, copies, strict=True)
    ]
    names = [name for fact in facts if isinstance(fact, dict) for name in numbers_in(fact["reward_breakdown"])]
    count = len(items) - items.count(REJECTED)
    size = copier.bytes + sum(tensor.nbytes for some in copies for tensor in some.values())
    return Taken(lambda: each(_found, items), count, bytes_of(count, size), tuple(dict.fromkeys(names)))


def _flat(episodes: Sequence[Any]) -> Iterator[tuple[Any, int | None]]:
    """Each episode, with the number of its group if it is in one."""
    for place, some in enumerate(episodes):
        if isinstance(some, (list, tuple)):
            yield from ((one, place) for one in some)
        else:
            yield some, None


def _facts(episode: Any, copier: Snapshot, asked: Asked) -> dict[str, Any] | Lost:
    """What is read of an episode, apart from its tensors."""
    if episode is None:
        return REJECTED
    facts = {name: copier.copy(_get(episode, name)) for name in (*READ, *KEPT)}
    if facts["response"] is None and facts["request"] is None and facts["prompt"] is None:
        if asked.checked:
            raise SetupError(f"an episode, of type {type(episode).__name__}, is without request and response")
        return UNREADABLE
    completion = _get(episode, "completion")
    ids = {name: _get(completion, name) for name in ("prompt_ids", "token_ids")}
    lengths = {name: len(some) for name, some in ids.items() if some is not None}
    return {**facts, "lengths": lengths, "stop_reason": _get(completion, "stop_reason")}


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _on_host(episodes: Sequence[Any]) -> list[dict[str, Any]]:
    """Each episode's tensors, copied all at once."""
    wanted = [
        (place, name, value)
        for place, episode in enumerate(episodes)
        for owner, names in ((_get(episode, "completion"), PER_TOKEN), (episode, ("ref_logprobs",)))
        for name in names
        if (value := _get(owner, name)) is not None
    ]
    copies: list[dict[str, Any]] = [{} for _ in episodes]
    for (place, name, _), tensor in zip(wanted, to_host([value for *_, value in wanted]), strict=True):
        copies[place][name] = tensor
    return copies


def _found(item: tuple[dict[str, Any], Any, dict[str, Any]]) -> Found:
    facts, group, tensors = item
    request = facts["request"] if facts["request"] is not None else facts["prompt"]
    prompt, prompt_is_text = as_messages(request if request is not None else (), "user")
    completion, completion_is_text = as_messages(
        facts["response"] if facts["response"] is not None else (), "assistant"
    )
    version = facts["policy_version"]
    rollout = Rollout(
        id="",
        policy_step=int(version) if version is not None else None,
        prompt=prompt,
        completion=completion,
        prompt_is_text=prompt_is_text,
        completion_is_text=completion_is_text,
        tool_calls=tool_calls(completion),
        rewards=numbers_in(facts["reward_breakdown"]),
        reward=number(facts["reward"]),
        advantage=number(facts["advantage"]),
        prompt_tokens=facts["lengths"].get("prompt_ids"),
        completion_tokens=facts["lengths"].get("token_ids"),
        finish=_FINISH.get(str(facts["stop_reason"]), "unknown"),
        columns={"target": facts["target"]} if facts["target"] is not None else {},
        extra={name: facts[name] for name in KEPT if facts[name] is not None},
        tokens=_tokens(tensors),
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
