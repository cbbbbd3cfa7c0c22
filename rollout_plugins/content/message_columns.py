"""Conversations as columns: a few long lists instead of a dict for each message.

Nearly all messages are dicts of texts, perhaps with tool calls of the usual shape. Taking those apart costs a fraction
of copying them, leaves nothing for the garbage collector to walk, and is what files and statistics want anyway. Any
other message is kept as it is, beside the columns.
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
_KNOWN: Final = frozenset(_KEYS)
_TEXTS: Final = frozenset({str, type(None)})
_SHORT: Final = frozenset({"role", "name"})
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_SIMPLE: Final = frozenset({str, list, tuple, type(None)})
_NONE: Final = object()
#: Bytes of a message beside its texts, and of a value that is not a text.
_EACH, _OTHER = 100, 64
_AT_ONCE = 512
Copy = Callable[[Any], Any]
Shape = tuple[str, ...]


def as_it_is(value: Any) -> Any:
    """For values that nobody else changes."""
    return value


class Talk(Sequence[tuple[Any, ...]]):
    """The messages of many conversations; `talk[i]` makes those of one, as they were."""

    def __init__(self, conversations: Iterable[Any], role: str, copy: Copy = as_it_is) -> None:
        """`role` says a conversation that is a plain text. `copy` copies what is not a text, as others may change it.

        A conversation that is not all plain messages is copied as a whole, so that one without end is noticed.
        """
        given = list(conversations)
        if not _are(_SIMPLE, given):
            given = [one if type(one) in _SIMPLE else copy(one) for one in given]
        self._flatten(given, role, copy)
        if self.odd and copy is not as_it_is:
            for i in self.odd_ones():
                given[i] = copy(given[i])
            self._flatten(given, role, copy)

    def _flatten(self, given: Sequence[Any], role: str, copy: Copy) -> None:
        lists = given if _are({list}, given) else [as_messages(one, role)[0] for one in given]
        self.is_text = [type(one) is not list and isinstance(one, str) for one in given]
        """Whether each was a plain text, and not a list of messages."""
        self.starts = list(accumulate(map(len, lists), initial=0))
        """Where each conversation begins in the columns; and their end."""
        flat = list(chain.from_iterable(lists))
        self.shapes: list[Shape] = []
        """The keys of each message, in their order; none where it is an odd one."""
        self.odd: dict[int, Any] = {}
        """Messages that the columns cannot hold, by their place."""
        self.columns: dict[str, list[Any]] = {}
        """The texts of all messages, by key; None where a message has none."""
        self.asking: list[int] = []
        """Places of the messages that call tools."""
        self.call_starts = [0]
        """Where the calls of each of those begin; and their end."""
        self.call_ids: list[str | None] = []
        self.call_names: list[str] = []
        self.arguments: list[Any] = []
        self._bytes = _EACH * len(flat)
        for start in range(0, len(flat), _AT_ONCE):
            self._add(flat[start : start + _AT_ONCE], copy)
        for at in self.odd:
            self.shapes[at] = ()
            for column in self.columns.values():
                column[at] = None

    def _add(self, some: Sequence[Any], copy: Copy) -> None:
        """Some more messages: so few that they are still in the processor's cache when they are looked at again.

        Each step is one call for all of them, as a step of Python for each would take several times as long.
        """
        start, known = len(self.shapes), _Shapes()
        shapes = _shapes(some, known)
        self.shapes += shapes
        kinds = set(known.values())
        if () in kinds:
            self.odd.update((start + at, some[at]) for at, shape in enumerate(shapes) if not shape)
            some = [message if shape else {} for message, shape in zip(some, shapes, strict=True)]
        keys = set().union(*kinds)
        for key in keys - self.columns.keys() - {"tool_calls"}:
            self.columns[key] = [None] * start
        for key, column in self.columns.items():
            values = _under(key, some, None)
            if not _are(_TEXTS, values):
                self.odd.update((start + at, some[at]) for at, value in enumerate(values) if type(value) not in _TEXTS)
            elif key not in _SHORT:
                self._bytes += sum(map(str.__sizeof__, filter(None, values)))
            column.extend(values)
        if "tool_calls" in keys:
            self._add_calls(start, some, copy)

    def _add_calls(self, start: int, some: Sequence[Any], copy: Copy) -> None:
        asked = _under("tool_calls", some, None)
        places = [at for at, given in enumerate(asked) if given is not None and start + at not in self.odd]
        calls = _usual([asked[at] for at in places])
        if calls is None:
            usual = [at for at in places if _usual([asked[at]]) is not None]
            self.odd.update((start + at, some[at]) for at in set(places).difference(usual))
            places, calls = usual, _usual([asked[at] for at in usual]) or ([], [], [])
        ids, names, arguments = calls
        self.asking += [start + at for at in places]
        self.call_starts += accumulate([len(asked[at]) for at in places], initial=self.call_starts.pop())
        self.call_ids += ids
        self.call_names += names
        copies, size = _copied(arguments, copy)
        self.arguments += copies
        self._bytes += size

    def bytes(self, *, are_shared: bool = False) -> int:
        """Rough size in memory, without what `copy` copied. With `are_shared`, what several share counts once."""
        if not are_shared:
            return self._bytes
        texts = list(chain.from_iterable(self.columns[key] for key in self.columns.keys() - _SHORT))
        once = dict(zip(map(id, texts), texts, strict=True)).values()
        return self._bytes - size_of(texts) + size_of(once)

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

    def message(self, at: int) -> Any:
        """The message at a place of the columns."""
        shape = self.shapes[at]
        if not shape:
            return self.odd[at]
        found = {key: None if key == "tool_calls" else self.columns[key][at] for key in shape}
        if calls := self.calls(at) if "tool_calls" in found else None:
            found["tool_calls"] = [_call(*call) for call in calls]
        return found

    def calls(self, at: int) -> list[tuple[str | None, str, Any]]:
        """Id, name and arguments of each call in a message."""
        number = bisect_left(self.asking, at)
        if number == len(self.asking) or self.asking[number] != at:
            return []
        here = slice(*self.call_starts[number : number + 2])
        return list(zip(self.call_ids[here], self.call_names[here], self.arguments[here], strict=True))

    def calls_by_place(self) -> Iterator[tuple[int, slice]]:
        """Each message that calls tools, and which of all calls are its own."""
        return zip(self.asking, map(slice, self.call_starts, self.call_starts[1:]), strict=False)

    def put_arguments(self, index: int, messages: Sequence[Any]) -> None:
        """What the calls of one conversation were given, from messages that `talk[index]` made."""
        start, end = self.starts[index : index + 2]
        for number in range(bisect_left(self.asking, start), bisect_left(self.asking, end)):
            here = slice(*self.call_starts[number : number + 2])
            calls = messages[self.asking[number] - start]["tool_calls"]
            self.arguments[here] = [call["function"]["arguments"] for call in calls]

    def column(self, key: str) -> list[Any]:
        """The texts of all messages under a key."""
        return self.columns.get(key) or [None] * len(self.shapes)

    def odd_ones(self) -> set[int]:
        """The conversations with messages that the columns cannot hold."""
        return set(map(self.place_of, self.odd))

    def place_of(self, at: int) -> int:
        """The conversation that a message is of."""
        return bisect_right(self.starts, at) - 1

    def message_of(self, call: int) -> int:
        """The message that a call stands in."""
        return self.asking[bisect_right(self.call_starts, call) - 1]

    def replaced(self, changes: Mapping[int, Any]) -> Talk:
        """The same with other messages for some of the conversations."""
        made = Talk([changes.get(i, messages) for i, messages in enumerate(self)], "")
        made.is_text = [is_text and i not in changes for i, is_text in enumerate(self.is_text)]
        return made

    def take(self, rows: Sequence[int]) -> Talk:
        """Some of the conversations."""
        taken = Talk([self[i] for i in rows], "")
        taken.is_text = [self.is_text[i] for i in rows]
        return taken


def _are(kinds: AbstractSet[Any], values: Iterable[Any]) -> bool:
    """Whether all are of these classes, and of no others that extend them."""
    return set(map(type, values)) <= kinds


class _Shapes(dict[Shape, Shape]):
    """What stands for the keys of messages; nothing where one is not known."""

    def __missing__(self, shape: Shape) -> Shape:
        self[shape] = found = shape if _KNOWN.issuperset(shape) else ()
        return found


def _shapes(some: Sequence[Any], known: _Shapes) -> list[Shape]:
    """The keys of each message; none of one that is odd."""
    try:
        keys = map(tuple, some) if _are({dict}, some) else [tuple(m) if type(m) is dict else () for m in some]
        return list(map(known.__getitem__, keys))
    except Exception:  # keys that object to being compared
        known[()] = ()
        return [()] * len(some)


def _usual(asked: Sequence[Any]) -> tuple[list[str | None], list[str], list[Any]] | None:
    """Ids, names and arguments of calls in the shape that all libraries give them; None if one has another."""
    if not _are({list}, asked) or not all(asked):
        return None
    calls = list(chain.from_iterable(asked))
    try:
        return _parts(calls) if _are({dict}, calls) else None
    except Exception:  # keys that object to being compared
        return None


def _parts(calls: Sequence[dict[Any, Any]]) -> tuple[list[str | None], list[str], list[Any]] | None:
    """Dicts that have these keys, and as many keys as these are, have no others."""
    kinds, functions, ids = (_under(key, calls) for key in ("type", "function", "id"))
    if not (_are({str}, kinds) and {"function"}.issuperset(kinds) and _are({dict}, functions)):
        return None
    names, arguments = (_under(key, functions) for key in ("name", "arguments"))
    if not (_are({str, object}, ids) and _are({str}, names)) or any(map(is_, arguments, repeat(_NONE))):
        return None
    if sum(map(len, calls)) + ids.count(_NONE) != 3 * len(calls) or sum(map(len, functions)) != 2 * len(calls):
        return None
    return [None if one is _NONE else one for one in ids], names, arguments


def _under(key: str, values: Sequence[Any], missing: object = _NONE) -> list[Any]:
    return list(map(dict.get, values, repeat(key), repeat(missing)))


def _copied(arguments: list[Any], copy: Copy) -> tuple[list[Any], int]:
    """Arguments of calls, and what they take beside what `copy` copies: most are a dict of a few texts and numbers."""
    if _are({dict}, arguments):
        inside = list(chain.from_iterable(map(dict.values, arguments)))
        if _are(_ATOMS, inside):
            copies = arguments if copy is as_it_is else list(map(dict.copy, arguments))
            return copies, _OTHER * len(arguments) + sum(map(getsizeof, inside))
    copies = [value if type(value) is str else copy(value) for value in arguments]
    return copies, size_of([*arguments, *chain.from_iterable(map(dict.values, filter(_is_dict, arguments)))])


def _call(ident: str | None, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**({} if ident is None else {"id": ident}), "type": "function", "function": function}


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def size_of(values: Collection[Any]) -> int:
    """What values take; texts are most of it, and asking those at once is quicker."""
    texts = [value for value in values if type(value) is str]
    return sum(map(str.__sizeof__, texts)) + _OTHER * (len(values) - len(texts))
