"""Store conversations as columns: a few long lists instead of a dict for each message.

Nearly all messages are dicts of texts, perhaps with tool calls of the usual shape. Taking these apart is several times
faster than copying them, leaves nothing for the garbage collector to traverse, and yields what files and statistics
need. Other messages are irregular, and are stored unmodified beside the columns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, chain, repeat
from operator import is_
from sys import getsizeof
from typing import Any, Final, overload

from rollout_plugins.content.messages import as_messages

_KEYS: Final = (
    "role", "content", "name", "reasoning_content", "tool_call_id", "tool_calls",
    "reasoning", "thinking", "refusal", "function_call", "audio",
)  # fmt: skip
_KNOWN_KEYS: Final = frozenset(_KEYS)
_TEXTS: Final = frozenset({str, type(None)})
_SHORT: Final = frozenset({"role", "name"})
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_SIMPLE: Final = frozenset({str, list, tuple, type(None)})
_MISSING: Final = object()
#: Estimated bytes of a message without its texts, and of a value that is not a text.
_MESSAGE_BYTES, _VALUE_BYTES = 100, 64
_CHUNK = 512
Copy = Callable[[Any], Any]
Shape = tuple[str, ...]


def no_copy(value: Any) -> Any:
    """Return the value itself: the `copy` for values that nobody changes."""
    return value


class MessageColumns(Sequence[tuple[Any, ...]]):
    """The messages of many conversations, field by field.

    `conversations[i]` creates the messages of conversation i exactly as they were.
    """

    def __init__(self, conversations: Iterable[Any], role: str, copy: Copy = no_copy) -> None:
        """Split conversations into columns.

        `role` is the role of a conversation that is a plain text. `copy` copies values other than texts, which others
        may change. A conversation with irregular messages is copied as a whole, so that `copy` notices endless ones.
        """
        values = list(conversations)
        if not _all_of(_SIMPLE, values):
            values = [conversation if type(conversation) in _SIMPLE else copy(conversation) for conversation in values]
        self._flatten(values, role, copy)
        if self.irregular and copy is not no_copy:
            for i in self.irregular_conversations():
                values[i] = copy(values[i])
            self._flatten(values, role, copy)

    def _flatten(self, values: Sequence[Any], role: str, copy: Copy) -> None:
        lists = values if _all_of({list}, values) else [as_messages(conversation, role)[0] for conversation in values]
        self.is_text = [type(conversation) is not list and isinstance(conversation, str) for conversation in values]
        """Whether each conversation was a plain text instead of a list of messages."""
        self.starts = list(accumulate(map(len, lists), initial=0))
        """Position of the first message of each conversation in the columns, and the end of the last one."""
        flat = list(chain.from_iterable(lists))
        self.shapes: list[Shape] = []
        """The keys of each message, in order; empty for an irregular message."""
        self.irregular: dict[int, Any] = {}
        """Messages that the columns cannot represent, by position."""
        self.columns: dict[str, list[Any]] = {}
        """The texts of all messages, by key; None for a message that lacks the key."""
        self.calling: list[int] = []
        """Positions of the messages that call tools."""
        self.call_starts = [0]
        """Position of the first call of each of these messages, and the end of the last ones."""
        self.call_ids: list[str | None] = []
        self.call_names: list[str] = []
        self.arguments: list[Any] = []
        self._bytes = _MESSAGE_BYTES * len(flat)
        for start in range(0, len(flat), _CHUNK):
            self._add(flat[start : start + _CHUNK], copy)
        for at in self.irregular:
            self.shapes[at] = ()
            for column in self.columns.values():
                column[at] = None

    def _add(self, messages: Sequence[Any], copy: Copy) -> None:
        """Append messages: few enough that they stay in the processor's cache between the steps.

        Each step is one call for all messages, because a step of Python code for each would be several times slower.
        """
        start, shape_by_keys = len(self.shapes), _Shapes()
        shapes = _shapes(messages, shape_by_keys)
        self.shapes += shapes
        kinds = set(shape_by_keys.values())
        if () in kinds:
            self.irregular.update((start + i, messages[i]) for i, shape in enumerate(shapes) if not shape)
            messages = [message if shape else {} for message, shape in zip(messages, shapes, strict=True)]
        keys = set().union(*kinds)
        for key in keys - self.columns.keys() - {"tool_calls"}:
            self.columns[key] = [None] * start
        for key, column in self.columns.items():
            values = _values_at(key, messages, None)
            if not _all_of(_TEXTS, values):
                self.irregular.update(
                    (start + i, messages[i]) for i, value in enumerate(values) if type(value) not in _TEXTS
                )
            elif key not in _SHORT:
                self._bytes += sum(map(str.__sizeof__, filter(None, values)))
            column.extend(values)
        if "tool_calls" in keys:
            self._add_calls(start, messages, copy)

    def _add_calls(self, start: int, messages: Sequence[Any], copy: Copy) -> None:
        calls_of_messages = _values_at("tool_calls", messages, None)
        indices = [
            i for i, value in enumerate(calls_of_messages) if value is not None and start + i not in self.irregular
        ]
        calls = _read_usual_calls([calls_of_messages[i] for i in indices])
        if calls is None:
            regular = [i for i in indices if _read_usual_calls([calls_of_messages[i]]) is not None]
            self.irregular.update((start + i, messages[i]) for i in set(indices).difference(regular))
            indices, calls = regular, _read_usual_calls([calls_of_messages[i] for i in regular]) or ([], [], [])
        ids, names, arguments = calls
        self.calling += [start + i for i in indices]
        self.call_starts += accumulate([len(calls_of_messages[i]) for i in indices], initial=self.call_starts.pop())
        self.call_ids += ids
        self.call_names += names
        copies, size = _copy_arguments(arguments, copy)
        self.arguments += copies
        self._bytes += size

    def bytes(self, *, are_shared: bool = False) -> int:
        """Return the approximate size in memory, without what `copy` copied.

        With `are_shared`, texts that several messages share count distinct.
        """
        if not are_shared:
            return self._bytes
        texts = list(chain.from_iterable(self.columns[key] for key in self.columns.keys() - _SHORT))
        distinct = dict(zip(map(id, texts), texts, strict=True)).values()
        return self._bytes - size_of(texts) + size_of(distinct)

    # --- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.is_text)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, ...]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        return tuple(map(self.message, range(self.starts[index], self.starts[index + 1])))

    def message(self, position: int) -> Any:
        """Return the message at `position`."""
        shape = self.shapes[position]
        if not shape:
            return self.irregular[position]
        message = {key: None if key == "tool_calls" else self.columns[key][position] for key in shape}
        if calls := self.calls(position) if "tool_calls" in message else None:
            message["tool_calls"] = [_call(*call) for call in calls]
        return message

    def calls(self, position: int) -> list[tuple[str | None, str, Any]]:
        """Return id, name and arguments of each call of the message at `position`."""
        index = bisect_left(self.calling, position)
        if index == len(self.calling) or self.calling[index] != position:
            return []
        span = slice(*self.call_starts[index : index + 2])
        return list(zip(self.call_ids[span], self.call_names[span], self.arguments[span], strict=True))

    def calls_by_message(self) -> Iterator[tuple[int, slice]]:
        """Yield the position of each message that calls tools, with the positions of its calls."""
        return zip(self.calling, map(slice, self.call_starts, self.call_starts[1:]), strict=False)

    def set_arguments(self, index: int, messages: Sequence[Any]) -> None:
        """Replace the arguments of a conversation's calls by those in `messages`, which `self[index]` created."""
        start, end = self.starts[index : index + 2]
        for i in range(bisect_left(self.calling, start), bisect_left(self.calling, end)):
            span = slice(*self.call_starts[i : i + 2])
            calls = messages[self.calling[i] - start]["tool_calls"]
            self.arguments[span] = [call["function"]["arguments"] for call in calls]

    def column(self, key: str) -> list[Any]:
        """Return the texts of all messages under `key`."""
        return self.columns.get(key) or [None] * len(self.shapes)

    def irregular_conversations(self) -> set[int]:
        """Return the indices of the conversations that have irregular messages."""
        return set(map(self.conversation_of, self.irregular))

    def conversation_of(self, position: int) -> int:
        """Return the index of the conversation that has the message at `position`."""
        return bisect_right(self.starts, position) - 1

    def message_of_call(self, call: int) -> int:
        """Return the position of the message that has the call at position `call`."""
        return self.calling[bisect_right(self.call_starts, call) - 1]

    def replace_conversations(self, changes: Mapping[int, Any]) -> MessageColumns:
        """Return a copy with other messages for the conversations in `changes`."""
        changed = MessageColumns([changes.get(i, messages) for i, messages in enumerate(self)], "")
        changed.is_text = [is_text and i not in changes for i, is_text in enumerate(self.is_text)]
        return changed

    def take(self, rows: Sequence[int]) -> MessageColumns:
        """Return the conversations with the indices `rows`."""
        taken = MessageColumns([self[i] for i in rows], "")
        taken.is_text = [self.is_text[i] for i in rows]
        return taken


def _all_of(kinds: AbstractSet[Any], values: Iterable[Any]) -> bool:
    """Return whether the types of all values are in `kinds`, without subclasses."""
    return set(map(type, values)) <= kinds


class _Shapes(dict[Shape, Shape]):
    """Caches the shape of each combination of keys; it is empty if a key is unknown."""

    def __missing__(self, shape: Shape) -> Shape:
        self[shape] = result = shape if _KNOWN_KEYS.issuperset(shape) else ()
        return result


def _shapes(messages: Sequence[Any], shape_by_keys: _Shapes) -> list[Shape]:
    """Return the keys of each message; empty for an irregular one."""
    try:
        keys = (
            map(tuple, messages)
            if _all_of({dict}, messages)
            else [tuple(m) if type(m) is dict else () for m in messages]
        )
        return list(map(shape_by_keys.__getitem__, keys))
    except Exception:  # a key raises when it is compared
        shape_by_keys[()] = ()
        return [()] * len(messages)


def _read_usual_calls(calls_of_messages: Sequence[Any]) -> tuple[list[str | None], list[str], list[Any]] | None:
    """Return ids, names and arguments of calls in the usual shape; None if a call has another shape."""
    if not _all_of({list}, calls_of_messages) or not all(calls_of_messages):
        return None
    calls = list(chain.from_iterable(calls_of_messages))
    try:
        return _split_calls(calls) if _all_of({dict}, calls) else None
    except Exception:  # a key raises when it is compared
        return None


def _split_calls(calls: Sequence[dict[Any, Any]]) -> tuple[list[str | None], list[str], list[Any]] | None:
    """Return ids, names and arguments of calls if each has exactly the usual keys.

    Counting keys is enough: a dict with all of these keys and as many keys has no others.
    """
    kinds, functions, ids = (_values_at(key, calls) for key in ("type", "function", "id"))
    if not (_all_of({str}, kinds) and {"function"}.issuperset(kinds) and _all_of({dict}, functions)):
        return None
    names, arguments = (_values_at(key, functions) for key in ("name", "arguments"))
    if not (_all_of({str, object}, ids) and _all_of({str}, names)) or any(map(is_, arguments, repeat(_MISSING))):
        return None
    if sum(map(len, calls)) + ids.count(_MISSING) != 3 * len(calls) or sum(map(len, functions)) != 2 * len(calls):
        return None
    return [None if call_id is _MISSING else call_id for call_id in ids], names, arguments


def _values_at(key: str, values: Sequence[Any], missing: object = _MISSING) -> list[Any]:
    return list(map(dict.get, values, repeat(key), repeat(missing)))


def _copy_arguments(arguments: list[Any], copy: Copy) -> tuple[list[Any], int]:
    """Return a copy of the arguments of calls, and their size without what `copy` copies.

    Most are a dict of a few texts and numbers.
    """
    if _all_of({dict}, arguments):
        values = list(chain.from_iterable(map(dict.values, arguments)))
        if _all_of(_ATOMS, values):
            copies = arguments if copy is no_copy else list(map(dict.copy, arguments))
            return copies, _VALUE_BYTES * len(arguments) + sum(map(getsizeof, values))
    copies = [value if type(value) is str else copy(value) for value in arguments]
    return copies, size_of([*arguments, *chain.from_iterable(map(dict.values, filter(_is_dict, arguments)))])


def _call(ident: str | None, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**({} if ident is None else {"id": ident}), "type": "function", "function": function}


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def size_of(values: Collection[Any]) -> int:
    """Return the approximate size of values, nearly all of which is texts."""
    texts = [value for value in values if type(value) is str]
    return sum(map(str.__sizeof__, texts)) + _VALUE_BYTES * (len(values) - len(texts))
