"""Convert rollouts of other frameworks, from objects or files, before they have an id and a position in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.messages import as_messages
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.tool_calls import read_tool_calls

_BYTES_EACH = 256


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A converted rollout whose id and position in the run are assigned later, unless `has_place` is set."""

    rollout: Rollout
    group: Any = None
    """A value that all completions of one prompt in one generation share; None if they share only the prompt."""
    generation: Any = None
    """A value that all rollouts of one generation share; None if they share only the step."""
    has_place: bool = False
    """Whether id, attempt, generation, rank, index and group are final."""


@dataclass(frozen=True, slots=True)
class Unsorted:
    """The rollouts of one batch as columns; their ids and positions are assigned later."""

    drafts: RolloutColumns
    groups: Sequence[Any]
    """For each rollout, a value that all completions of its prompt share; None if they share only the prompt."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Why positions of the batch have no rollout, by position."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Replaces an item that is not a rollout, or cannot be converted to one."""

    reason: str


REJECTED = Lost("rejected")
UNREADABLE = Lost("unreadable")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How the recorder wants a framework's rollouts to be copied."""

    tokens: bool = False
    """Whether to copy token ids, masks and log-probabilities."""
    checked: bool = False
    """Whether a likely mistake of the user raises a `SetupError`. Later it only affects the values that it spoils."""


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A copy of one batch, which the framework cannot change any more."""

    build: Callable[[], Unsorted]
    """Converts the copy to rollouts; called on the worker thread."""
    count: int
    """Number of rollouts that `build` returns."""
    bytes: int = 0
    """Approximate size of the copy."""
    reward_names: tuple[str, ...] = ()
    """Names of the rewards, each of which has a column."""


@dataclass(frozen=True, slots=True)
class ForeignRollouts:
    """A framework's rollouts before they are read. The functions named `rollouts` return this."""

    take: Callable[[CopyOptions], CopiedBatch]
    """Copies everything that the framework may change, on the thread that records."""


def copied_batch(
    convert: Callable[[Any], Unplaced | Lost], items: Sequence[Any], size: int, reward_names: Iterable[str]
) -> CopiedBatch:
    """Return a batch of copied items, which have `size` bytes and which `convert` converts."""
    count = sum(item is not REJECTED for item in items)
    return CopiedBatch(
        lambda: collect_batch(convert_each(convert, items)), count, size + _BYTES_EACH * count, tuple(reward_names)
    )


def convert_each(
    convert: Callable[[Any], Unplaced | Lost], items: Iterable[Any], broken: Lost = UNREADABLE
) -> Iterator[Unplaced | Lost]:
    """Convert each item. One that cannot be converted is replaced by `broken` and affects no other."""
    for item in items:
        if isinstance(item, Lost):
            yield item
            continue
        try:
            result = convert(item)
        except (Exception, SystemExit):
            result = broken
        yield result


def conversation_fields(prompt: Any, completion: Any, tools: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a rollout with its messages, tool calls, and whether its messages were plain texts.

    `tools` has the names of its tools, if they are known.
    """
    prompt_messages, prompt_is_text = as_messages(prompt, "user")
    completion_messages, completion_is_text = as_messages(completion, "assistant")
    return {
        "prompt": prompt_messages,
        "completion": completion_messages,
        "prompt_is_text": prompt_is_text,
        "completion_is_text": completion_is_text,
        "tool_calls": read_tool_calls(completion_messages, tool_names=tools),
    }


def collect_batch(results: Iterable[Unplaced | Lost]) -> Unsorted:
    """Collect the columns of rollouts that were converted one by one."""
    rollouts: list[Unplaced] = []
    lost: dict[int, str] = {}
    for position, result in enumerate(results):
        if isinstance(result, Lost):
            lost[position] = result.reason
        else:
            rollouts.append(result)
    return Unsorted(
        RolloutColumns.from_rollouts([result.rollout for result in rollouts]),
        [result.group for result in rollouts],
        lost,
    )


def assign_groups(batch: Unsorted, group_size: int | None = None) -> RolloutColumns:
    """Set index, group and group size of the rollouts of one generation.

    Each `group_size` consecutive items are a group. Without it, rollouts with an equal `group` are a group, or else
    those with an equal prompt.
    """
    rollouts, prompts = batch.drafts, batch.drafts.messages("prompt")
    places = (place for place in count() if place not in batch.lost)
    keys = [
        place // group_size if group_size else _key(prompts, index) if group is None else content_hash(group)
        for index, (group, place) in enumerate(zip(batch.groups, places, strict=False))
    ]
    sizes = Counter(keys)
    numbers = {key: number for number, key in enumerate(sizes)}
    rollouts.set_columns(
        index=list(range(len(keys))),
        group=[numbers[key] for key in keys],
        group_size=[sizes[key] for key in keys],
    )
    return rollouts


def _key(prompts: MessageColumns, place: int) -> Hashable:
    """Return a value that is equal for equal prompts: the texts of the messages if they contain nothing else."""
    messages = slice(prompts.starts[place], prompts.starts[place + 1])
    shapes = tuple(map(frozenset, prompts.shapes[messages]))
    if not all(shapes) or any("tool_calls" in shape for shape in shapes):
        return content_hash(prompts[place])
    return shapes, tuple(tuple(column[messages]) for column in prompts.columns.values())
