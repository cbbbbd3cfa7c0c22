"""Rollouts on their way in: as another framework's objects or files hold them, before they have an id and a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.message_columns import Talk
from rollout_plugins.content.messages import as_messages
from rollout_plugins.content.rollout_columns import Drafts
from rollout_plugins.content.tool_calls import tool_calls

_BYTES_EACH = 256


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A rollout as a format holds it; its id and its place in the run are decided later, unless it has them."""

    rollout: Rollout
    group: Any = None
    """What all answers to the same prompt of the same generation have in common; None where that is the prompt."""
    generation: Any = None
    """What all rollouts of the same generation have in common; None where that is the step."""
    has_place: bool = False
    """Whether its id, attempt, generation, rank, index and group stay as they are."""


@dataclass(frozen=True, slots=True)
class Unsorted:
    """Rollouts as columns, whose ids and places are decided later."""

    drafts: Drafts
    groups: Sequence[Any]
    """For each what it has in common with all answers to the same prompt; None where that is the prompt."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Why some places of the batch hold none."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands where a rollout would be that cannot be kept, or never was one."""

    reason: str


REJECTED = Lost("rejected")
UNREADABLE = Lost("unreadable")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the recorder wants of a framework's rollouts."""

    tokens: bool = False
    """Whether token ids, masks and log-probabilities are kept."""
    checked: bool = False
    """Whether what looks like a mistake is raised, as a SetupError; later it costs only what it spoils."""


@dataclass(frozen=True, slots=True)
class Held:
    """One batch, safe from what the framework does with its objects next."""

    build: Callable[[], Unsorted]
    """Makes the rollouts, on the worker thread."""
    count: int
    """How many it will make."""
    bytes: int = 0
    """Rough size of what is held until then."""
    reward_names: tuple[str, ...] = ()
    """Names of the rewards, for columns of their own."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A framework's rollouts, not looked at yet: what the functions named `rollouts` return."""

    take: Callable[[Wanted], Held]
    """Copies what may change, on the thread that records."""


def held(
    convert: Callable[[Any], Unplaced | Lost], items: Sequence[Any], size: int, reward_names: Iterable[str]
) -> Held:
    """A batch of copied items, `size` bytes in all, that `convert` makes rollouts of."""
    made = sum(item is not REJECTED for item in items)
    return Held(lambda: unsorted(each(convert, items)), made, size + _BYTES_EACH * made, tuple(reward_names))


def each(
    convert: Callable[[Any], Unplaced | Lost], items: Iterable[Any], broken: Lost = UNREADABLE
) -> Iterator[Unplaced | Lost]:
    """What each item becomes. One that breaks the conversion costs itself alone: `broken` stands in its place."""
    for item in items:
        if isinstance(item, Lost):
            yield item
            continue
        try:
            made = convert(item)
        except (Exception, SystemExit):
            made = broken
        yield made


def spoken(prompt: Any, completion: Any, tools: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a rollout that say what was said: messages, whether they were plain text, and tool calls.

    tools: their names, where they are known.
    """
    asked, prompt_is_text = as_messages(prompt, "user")
    said, completion_is_text = as_messages(completion, "assistant")
    return {
        "prompt": asked,
        "completion": said,
        "prompt_is_text": prompt_is_text,
        "completion_is_text": completion_is_text,
        "tool_calls": tool_calls(said, known=tools),
    }


def unsorted(found: Iterable[Unplaced | Lost]) -> Unsorted:
    """Columns of rollouts that were found one by one."""
    kept: list[Unplaced] = []
    lost: dict[int, str] = {}
    for place, one in enumerate(found):
        if isinstance(one, Lost):
            lost[place] = one.reason
        else:
            kept.append(one)
    return Unsorted(Drafts.of([one.rollout for one in kept]), [one.group for one in kept], lost)


def sort(found: Unsorted, group_size: int | None = None) -> Drafts:
    """The rollouts of one generation with their places.

    `group_size` items in a row are a group; without it, those with an equal `group`, or else an equal prompt.
    """
    drafts, prompts = found.drafts, found.drafts.talk("prompt")
    places = (place for place in count() if place not in found.lost)
    keys = [
        place // group_size if group_size else _key(prompts, index) if group is None else content_hash(group)
        for index, (group, place) in enumerate(zip(found.groups, places, strict=False))
    ]
    sizes = Counter(keys)
    numbers = {key: number for number, key in enumerate(sizes)}
    drafts.put(
        index=list(range(len(keys))),
        group=[numbers[key] for key in keys],
        group_size=[sizes[key] for key in keys],
    )
    return drafts


def _key(prompts: Talk, place: int) -> Hashable:
    """What equal prompts have in common: their texts, where there is nothing else in them."""
    messages = slice(prompts.starts[place], prompts.starts[place + 1])
    shapes = tuple(map(frozenset, prompts.shapes[messages]))
    if not all(shapes) or any("tool_calls" in shape for shape in shapes):
        return content_hash(prompts[place])
    return shapes, tuple(tuple(column[messages]) for column in prompts.columns.values())
