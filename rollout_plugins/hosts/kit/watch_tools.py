"""Record tool calls while they run, and match them to the calls in the messages afterwards."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain
from time import perf_counter
from typing import Any, Final

from rollout_hookspecs import ToolCall

from rollout_plugins.content.call_columns import CallColumns, CallReader, ObservedCalls
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.messages import Call, calls_of
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.content.tool_calls import ObservedCall, Place, pair_calls, read_tool_calls
from rollout_plugins.hosts.kit.stand_ins import StandIn, Standing

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


@dataclass(slots=True)
class Seen(ObservedCall):
    """One tool call that was executed."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """A copy from before the call, because the tool may change them."""
    blocks: list[Any] | None = None
    """The content blocks it returned, as they were then; other results become text at once."""


#: The fields of a call, and where some of them stand among its notes.
_NAMES: Final = tuple(one.name for one in fields(Seen))
_SIZE: Final = len(_NAMES)
_ERROR, _SECONDS, _ARGUMENTS, _BLOCKS = map(_NAMES.index, ("error", "seconds", "arguments", "blocks"))


class Watch:
    """The executed calls of one rollout, in order."""

    __slots__ = ("bytes", "notes", "tools")

    def __init__(self, tools: Collection[str] = ()) -> None:
        self.tools = tools
        self.notes: list[Any] = []
        """The fields of each call, one after the other: an object for each would keep the garbage collector busy."""
        self.bytes = 0

    @property
    def count(self) -> int:
        """The number of executed calls."""
        return len(self.notes) // _SIZE

    def seen(self) -> list[Seen]:
        """The calls, on the worker thread."""
        return [Seen(*self.notes[at : at + _SIZE]) for at in range(0, len(self.notes), _SIZE)]

    def kept(self, value: Any) -> Any:
        copier = Snapshot()
        try:
            return copier.copy(value)
        except Exception:  # what cannot be copied is kept as it is
            return value
        finally:
            self.bytes += copier.bytes

    async def awaited(self, coroutine: Any, at: int) -> Any:
        started = perf_counter()
        try:
            result = await coroutine
        except BaseException as error:
            self.notes[at + _ERROR] = described(error)
            raise
        finally:
            self.notes[at + _SECONDS] = perf_counter() - started
        if isinstance(result, list):
            self.notes[at + _BLOCKS] = self.kept(result)
        return result


class WatchedTool(StandIn):
    """A stand-in for a tool that records each call and passes on its result or exception."""

    __slots__ = ("_stand_in_is_async", "_stand_in_name")

    def __init__(self, tool: Any, watch: Watch, name: str, is_async: bool) -> None:
        keep = object.__setattr__  # a stand-in passes attributes on to its tool
        keep(self, "_stands_for", tool)
        keep(self, "_stand_in_around", watch)
        keep(self, "_stand_in_name", name)
        keep(self, "_stand_in_is_async", is_async)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        watch, is_async, given = self._stand_in_around, self._stand_in_is_async, kwargs
        for value in kwargs.values():
            if type(value) not in _ATOMS:
                given = watch.kept(kwargs)
                break
        notes = watch.notes
        notes += (None, 0.0, is_async, self._stand_in_name, given, None)
        at = len(notes) - _SIZE
        while notes[at + _ARGUMENTS] is not given:  # another thread called one meanwhile
            at -= _SIZE
        started = perf_counter()
        try:
            result = self._stands_for(*args, **kwargs)
        except BaseException as error:
            notes[at + _ERROR] = described(error)
            raise
        finally:
            notes[at + _SECONDS] = perf_counter() - started
        if is_async:
            return watch.awaited(result, at)
        if isinstance(result, list):
            notes[at + _BLOCKS] = watch.kept(result)
        return result


class WatchedTools(UserDict[str, Any], Standing):
    """A rollout's tools; one that is asked for is watched. Most rollouts call few of theirs."""

    def __init__(self, tools: MutableMapping[str, Any], watch: Watch, *, is_async: bool) -> None:
        self.data = tools  # type: ignore[assignment]  # the trainer's own: what is added here is added there
        self._watch, self._is_async = watch, is_async
        self._made: dict[str, tuple[Any, WatchedTool]] = {}

    def __getitem__(self, name: str) -> Any:
        tool, known = self.data[name], self._made.get(name)
        if known is None or known[0] is not tool:
            known = self._made[name] = tool, WatchedTool(tool, self._watch, name, self._is_async)
        return known[1]

    @property
    def _stands_for(self) -> Any:
        return self.data

    def __reduce__(self) -> Any:
        return dict, (self.data,)


def described(error: BaseException) -> str:
    """Describe an exception by type and text; by type alone if its `str` fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def watched_calls(completion: Sequence[Any], watch: Watch) -> tuple[ToolCall, ...]:
    """The completion's calls with what became of them.

    Our copies of the messages get back what the model wrote and the tool returned: a tool may have changed both since.
    """
    waiting = watch.seen()
    ran: dict[Place, Seen] = {}
    for turn, message in enumerate(completion):
        for position, call in enumerate(calls_of(message)):
            seen = _take(waiting, call)
            if seen is not None:
                ran[turn, position] = seen
                _put_back_arguments(message["tool_calls"][position], seen)
    if any(seen.blocks is not None for seen in ran.values()):
        for place, _, reply in pair_calls(completion, ran):
            if reply is not None and place in ran:
                _put_back_result(completion[reply], ran[place])
    return read_tool_calls(completion, ran, tool_names=watch.tools, is_watched=True)


def watched_outcomes(talk: MessageColumns, watches: Sequence[Watch]) -> CallColumns:
    """The calls of all completions with what became of them."""
    notes = list(chain.from_iterable(watch.notes for watch in watches))
    errors, seconds, deferred, names, given, blocks = (notes[at::_SIZE] for at in range(_SIZE))
    starts = list(accumulate((watch.count for watch in watches), initial=0))
    is_usual = _is_usual(deferred, blocks)

    def ran(i: int, calls: slice) -> ObservedCalls | None:
        """What was watched, where it is just what the messages ask for."""
        here = slice(*starts[i : i + 2])
        now = slice(calls.start, calls.start + here.stop - here.start)
        if now.stop > calls.stop or not (is_usual or _is_usual(deferred[here], blocks[here])):
            return None
        if names[here] != talk.call_names[now] or not _are_equal(given[here], talk.arguments[now]):
            return None
        talk.arguments[now] = given[here]
        not_run = [None] * (calls.stop - now.stop)
        return errors[here] + not_run, seconds[here] + not_run

    def read(i: int) -> tuple[ToolCall, ...]:
        messages = talk[i]
        calls = watched_calls(messages, watches[i])
        talk.set_arguments(i, messages)
        return calls

    return CallReader(talk, tool_names=[watch.tools for watch in watches], read=read).read(ran)


def _is_usual(deferred: Sequence[bool], blocks: Sequence[Any]) -> bool:
    """Return whether all calls were synchronous and none returned content blocks."""
    return not any(deferred) and set(map(type, blocks)) <= {type(None)}


def _are_equal(given: Sequence[Any], asked: Sequence[Any]) -> bool:
    try:
        return given == asked
    except Exception:  # values that object to being compared
        return False


def shared_out(together: Watch, completions: Sequence[Any]) -> list[Watch]:
    """One watch for each rollout, of calls that all rollouts made to the same tools.

    The trainer runs the calls of all first turns, rollout after rollout, then those of all second turns, and so on.
    """
    asking = [[calls for message in one if (calls := calls_of(message))] for one in completions]
    waiting, watches = together.seen(), [Watch(together.tools) for _ in completions]
    for turn in range(max(map(len, asking), default=0)):
        for turns, watch in zip(asking, watches, strict=True):
            ran = [_take(waiting, call) for call in (turns[turn] if turn < len(turns) else ())]
            watch.notes += [getattr(seen, name) for seen in ran if seen is not None for name in _NAMES]
    return watches


def _take(seen: list[Seen], call: Call) -> Seen | None:
    """Take the next executed call if it matches this request; calls run in the order of the requests."""
    if seen and seen[0].name == call.name and _may_have_become(seen[0].arguments, call.arguments):
        return seen.pop(0)
    return None


def _may_have_become(made: Mapping[str, Any], now: Any) -> bool:
    """Return whether a call's arguments match, ignoring containers, which the tool may have changed."""
    if not isinstance(now, Mapping) or now.keys() != made.keys():
        return False
    return all(isinstance(value, (dict, list)) or _equal(value, now[name]) for name, value in made.items())


def _put_back_arguments(asked: Any, seen: Seen) -> None:
    function = asked.get("function")
    inner = function if isinstance(function, Mapping) else asked
    if isinstance(inner, dict):
        inner["arguments"] = seen.arguments


def _put_back_result(message: Any, seen: Seen) -> None:
    if seen.blocks is not None and isinstance(message.get("content"), list):
        message["content"] = seen.blocks


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or repr(one) == repr(other)  # NaN is not equal to itself
    except Exception:
        return False
