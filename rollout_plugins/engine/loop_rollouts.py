"""Read the rollouts of a custom loop: `Rollout` records, or dicts with the fields of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, get_args

from rollout_hookspecs import Rollout, Tokens, ToolCall
from rollout_hookspecs._records import Finish

from rollout_plugins.content.call_columns import CallReader
from rollout_plugins.content.foreign_values import (
    REJECTED,
    UNREADABLE,
    CopiedBatch,
    CopyOptions,
    ForeignRollouts,
    Lost,
    Unplaced,
    Unsorted,
    conversation_fields,
    copied_batch,
)
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.rewards import to_float
from rollout_plugins.content.rollout_columns import DEFAULTS, RolloutColumns
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.content.tokens import CODES, TokenColumn, pack
from rollout_plugins.errors import SetupError, suggest

_SET_BY_RECORDER = ("id", "run_id", "attempt", "split", "step", "generation", "rank", "index")
KEYS = tuple(field.name for field in fields(Rollout) if field.name not in _SET_BY_RECORDER)
_CONVERSATIONS = ("prompt", "completion")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_CONVERSATIONS, ((str, list, tuple), "text or a list of messages")),
    **dict.fromkeys(("rewards", "columns", "extra", "marks"), ((Mapping,), "a dict, by name")),
    **dict.fromkeys(("tool_calls", "images"), ((list, tuple), "a list")),
    "tokens": ((Tokens, Mapping, type(None)), "Tokens, or a dict of its lists"),
}


def rows(rollouts: Any) -> ForeignRollouts:
    """Return rollouts that were passed one by one. None stands for a rejected rollout, which is counted."""
    return ForeignRollouts(lambda options: _take(rollouts, options))


def _take(rollouts: Any, options: CopyOptions) -> CopiedBatch:
    items = _to_list(rollouts)
    if options.checked:
        _check(items)
    if items and all(map(_is_ordinary, items)):
        return _copy_columns(items, options)
    copier = Snapshot()
    copies = [_copy_item(item, copier, options) for item in items]
    names = dict.fromkeys(name for copy in copies for name in _reward_names(copy))
    return copied_batch(_convert, copies, copier.bytes, names)


# --- ordinary dicts, as columns ------------------------------------------------------------------------------------

_COLUMNS = frozenset(KEYS) - {"tool_calls", "images", "group_size", "prompt_is_text", "completion_is_text"}
_TEXTS = frozenset({str})


def _is_ordinary(item: Any) -> bool:
    """Return whether the item is a dict of fields that need no individual conversion."""
    return (
        type(item) is dict
        and _TEXTS.issuperset(map(type, item))
        and _COLUMNS.issuperset(item)
        and _has_ordinary_tokens(item)
    )


def _has_ordinary_tokens(item: dict[str, Any]) -> bool:
    tokens = item.get("tokens")
    return tokens is None or _fields(tokens) is not None


def _copy_columns(items: Sequence[dict[str, Any]], options: CopyOptions) -> CopiedBatch:
    """Copy a batch as columns. Derived fields are left to the worker thread."""
    copier = Snapshot()
    names = dict.fromkeys(key for item in items for key in item)
    columns: dict[str, Any] = {}
    for name, role in zip(_CONVERSATIONS, ("user", "assistant"), strict=True):
        names.pop(name, None)
        columns[name] = MessageColumns((item.get(name) for item in items), role, copier.copy)
    size = sum(conversations.bytes(are_shared=True) for conversations in columns.values())
    if "tokens" in names:
        names.pop("tokens")
        if options.tokens:
            columns["tokens"] = tokens = TokenColumn.copied(
                [_fields(item.get("tokens")) for item in items], copier.copy
            )
            size += tokens.nbytes
    for name in names:
        fallback = DEFAULTS[name]
        columns[name] = [copier.copy(item[name]) if name in item else fallback() for item in items]
    rewards = dict.fromkeys(
        name for values in columns.get("rewards", ()) for name in _reward_names({"rewards": values})
    )
    return CopiedBatch(
        partial(_convert_columns, columns), len(items), size + copier.bytes + 256 * len(items), tuple(rewards)
    )


def _convert_columns(columns: dict[str, Any]) -> Unsorted:
    completions = columns["completion"]
    groups = columns.pop("group", None) or [None] * len(completions)
    for name in ("reward", "advantage"):
        if name in columns:
            columns[name] = list(map(to_float, columns[name]))
    if "rewards" in columns:
        columns["rewards"] = [
            {name: to_float(value) for name, value in values.items()} if isinstance(values, dict) else values
            for values in columns["rewards"]
        ]
    is_text = {f"{name}_is_text": columns[name].is_text for name in _CONVERSATIONS}
    calls = CallReader(completions).read()
    return Unsorted(RolloutColumns(len(completions), {**columns, **is_text, "tool_calls": calls}), groups)


def _to_list(rollouts: Any) -> list[Any]:
    if isinstance(rollouts, (Rollout, Mapping)):
        raise SetupError("rollouts is a single rollout; give a list: record(step, [rollout])")
    if isinstance(rollouts, (str, bytes)) or not isinstance(rollouts, Iterable):
        raise SetupError(f"rollouts is of type {type(rollouts).__name__}; give a list of Rollout records or dicts")
    return list(rollouts)


# --- faults --------------------------------------------------------------------------------------------------------


def _check(items: list[Any]) -> None:
    faults = [f"rollouts[{place}] {fault}" for place, item in enumerate(items) for fault in _faults(item)]
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise SetupError("; ".join(faults[:5]) + more)


def _faults(item: Any) -> Iterator[str]:
    if item is None or isinstance(item, Rollout):
        return
    if not isinstance(item, Mapping):
        yield f"is of type {type(item).__name__}; give a Rollout, a dict with its fields, or None for a rejected one"
        return
    for key, value in item.items():
        if key in _SET_BY_RECORDER:
            yield f"has {key!r}, which the recorder sets; leave it out, or use record(step, …, split=…)"
        elif key not in KEYS:
            yield f"has {key!r}, which is not a field; put other values into 'columns'; {suggest(str(key), KEYS)}"
        else:
            yield from _value_faults(key, value)
    if "prompt" not in item and "completion" not in item:
        yield "has neither prompt nor completion"


def _value_faults(key: str, value: Any) -> Iterator[str]:
    if key in _KINDS and not isinstance(value, _KINDS[key][0]):
        yield f"has {key} of type {type(value).__name__}; give {_KINDS[key][1]}"
    elif key == "finish" and value not in get_args(Finish):
        yield f"has finish {value!r}; accepted: {', '.join(get_args(Finish))}"
    elif key in {"reward", "advantage"} and not _is_number(value):
        yield f"has {key} of type {type(value).__name__}; give a number, or None where there is none"
    elif key == "rewards":
        invalid = [name for name, number in value.items() if not _is_number(number)]
        if invalid:
            yield f"has rewards[{invalid[0]!r}] of type {type(value[invalid[0]]).__name__}; give a number or None"


def _is_number(value: Any) -> bool:
    return value is None or (hasattr(value, "__float__") and not getattr(value, "shape", ()))


# --- copies, on the recording thread -------------------------------------------------------------------------------


def _copy_item(item: Any, copier: Snapshot, options: CopyOptions) -> Any:
    if item is None:
        return REJECTED
    try:
        if isinstance(item, Rollout):
            return _copy(item if options.tokens else replace(item, tokens=None), copier)
        if isinstance(item, Mapping):
            return {
                key: _tokens(item[key], copier) if key == "tokens" else _copy(item[key], copier)
                for key in item
                if options.tokens or key != "tokens"
            }
    except (Exception, SystemExit):  # a foreign mapping may raise anything
        return UNREADABLE
    return Lost("no_rollout")


def _copy(value: Any, copier: Snapshot) -> Any:
    """Copy containers, including those in records."""
    if isinstance(value, Tokens):
        return _tokens(value, copier)
    if isinstance(value, (Rollout, ToolCall)):
        return replace(value, **{field.name: _copy(getattr(value, field.name), copier) for field in fields(value)})
    if isinstance(value, (list, tuple)) and any(isinstance(item, ToolCall) for item in value):
        return tuple(_copy(item, copier) for item in value)
    return copier.copy(value)


def _tokens(value: Any, copier: Snapshot) -> Any:
    """Copy the tokens of values rollout, packed if they are lists of numbers."""
    fields = _fields(value)
    if fields is None:
        return copier.copy(value)
    packed = {name: pack(values, CODES[name]) for name, values in fields.items()}
    return Tokens(**{name: copier.copy(fields[name] if values is None else values) for name, values in packed.items()})


def _fields(tokens: Any) -> dict[str, Any] | None:
    """Return the fields of a `Tokens`, or of a dict with the same keys; None for any other value."""
    if type(tokens) is Tokens:
        return {name: getattr(tokens, name) for name in CODES}
    return tokens if type(tokens) is dict and CODES.keys() >= tokens.keys() else None


def _reward_names(copy: Any) -> list[str]:
    rewards = copy.rewards if isinstance(copy, Rollout) else copy.get("rewards") if isinstance(copy, dict) else None
    return [name for name in rewards if isinstance(name, str)] if isinstance(rewards, Mapping) else []


# --- rollouts, on the worker thread --------------------------------------------------------------------------------


def _convert(copy: Any) -> Unplaced:
    return _convert_record(copy) if isinstance(copy, Rollout) else _convert_dict(copy)


def _convert_record(copy: Rollout) -> Unplaced:
    conversation = conversation_fields(copy.prompt, copy.completion)
    texts = [name for name in _CONVERSATIONS if isinstance(getattr(copy, name), str)]
    changes = {key: conversation[key] for name in texts for key in (name, f"{name}_is_text")}
    calls = copy.tool_calls or conversation["tool_calls"]
    return Unplaced(replace(copy, **changes, tool_calls=calls), copy.group if copy.group_size > 1 else None)


def _convert_dict(copy: Mapping[str, Any]) -> Unplaced:
    """Convert a dict. Tool calls are read from the messages unless the loop passed them."""
    values = {name: copy[name] for name in KEYS if name in copy}
    group = values.pop("group", None)
    values |= conversation_fields(copy.get("prompt"), copy.get("completion")) | _numbers(copy)
    if copy.get("tool_calls"):
        values["tool_calls"] = tuple(ToolCall(**call) if type(call) is dict else call for call in copy["tool_calls"])
    if isinstance(copy.get("tokens"), dict):  # raises for an unknown key: the rollout is unreadable
        values["tokens"] = Tokens(**copy["tokens"])
    return Unplaced(_keep_unknown_keys(Rollout(id="", **values), copy), group)


def _numbers(copy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rewards as floats."""
    values = {name: to_float(copy[name]) for name in ("reward", "advantage") if name in copy}
    rewards = copy.get("rewards")
    if isinstance(rewards, dict):
        values["rewards"] = {name: to_float(value) for name, value in rewards.items()}
    return values


def _keep_unknown_keys(rollout: Rollout, copy: Mapping[Any, Any]) -> Rollout:
    """Put keys that are not fields into `extra`, and mark them."""
    unknown = {key: value for key, value in copy.items() if key not in KEYS}
    if not unknown:
        return rollout
    extra = rollout.extra if isinstance(rollout.extra, dict) else {}
    marks = rollout.marks if isinstance(rollout.marks, dict) else {}
    notes = {f"stray:{key}": "not a field of a rollout; it is in extra" for key in unknown}
    return replace(rollout, extra={**unknown, **extra}, marks={**marks, **notes})
