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
class ExecutedCall(ObservedCall):
    """One tool call that was executed."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """A copy from before the call, because the tool may change them."""
    blocks: list[Any] | None = None
    """The content blocks that it returned, copied at once; a result of another type becomes text at once."""


#: The fields of a call, and the offsets of some of them in its notes.
_NAMES: Final = tuple(field.name for field in fields(ExecutedCall))
_SIZE: Final = len(_NAMES)
_ERROR, _SECONDS, _ARGUMENTS, _BLOCKS = map(_NAMES.index, ("error", "seconds", "arguments", "blocks"))


class Watch:
    """The executed calls of one rollout, in order."""

    __slots__ = ("bytes", "notes", "tools")

    def __init__(self, tools: Collection[str] = ()) -> None:
        self.tools = tools
        self.notes: list[Any] = []
        """The fields of all calls in one flat list, because an object per call would keep the garbage
        collector busy.
        """
        self.bytes = 0

    @property
    def count(self) -> int:
        """The number of executed calls."""
        return len(self.notes) // _SIZE

    def calls(self) -> list[ExecutedCall]:
        """Return the calls, on the worker thread."""
        return [ExecutedCall(*self.notes[start : start + _SIZE]) for start in range(0, len(self.notes), _SIZE)]

    def copied(self, value: Any) -> Any:
        copier = Snapshot()
        try:
            return copier.copy(value)
        except Exception:  # a value that cannot be copied is stored itself
            return value
        finally:
            self.bytes += copier.bytes

    async def awaited(self, coroutine: Any, at: int) -> Any:
        started = perf_counter()
        try:
            result = await coroutine
        except BaseException as error:
            self.notes[at + _ERROR] = describe_error(error)
            raise
        finally:
            self.notes[at + _SECONDS] = perf_counter() - started
        if isinstance(result, list):
            self.notes[at + _BLOCKS] = self.copied(result)
        return result


class WatchedTool(StandIn):
    """A stand-in for a tool that records each call and passes on its result or exception."""

    __slots__ = ("_stand_in_is_async", "_stand_in_name")

    def __init__(self, tool: Any, watch: Watch, name: str, is_async: bool) -> None:
        keep = object.__setattr__  # a stand-in passes its attributes on to the tool
        keep(self, "_stands_for", tool)
        keep(self, "_stand_in_around", watch)
        keep(self, "_stand_in_name", name)
        keep(self, "_stand_in_is_async", is_async)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        watch, is_async, given = self._stand_in_around, self._stand_in_is_async, kwargs
        for value in kwargs.values():
            if type(value) not in _ATOMS:
                given = watch.copied(kwargs)
                break
        notes = watch.notes
        notes += (None, 0.0, is_async, self._stand_in_name, given, None)
        at = len(notes) - _SIZE
        while notes[at + _ARGUMENTS] is not given:  # another thread called a tool meanwhile
            at -= _SIZE
        started = perf_counter()
        try:
            result = self._stands_for(*args, **kwargs)
        except BaseException as error:
            notes[at + _ERROR] = describe_error(error)
            raise
        finally:
            notes[at + _SECONDS] = perf_counter() - started
        if is_async:
            return watch.awaited(result, at)
        if isinstance(result, list):
            notes[at + _BLOCKS] = watch.copied(result)
        return result


class WatchedTools(UserDict[str, Any], Standing):
    """A rollout's tools, each replaced by a stand-in on first access. Most rollouts call few of their tools."""

    def __init__(self, tools: MutableMapping[str, Any], watch: Watch, *, is_async: bool) -> None:
        self.data = tools  # type: ignore[assignment]  # the trainer's own dictionary, so that additions reach it
        self._watch, self._is_async = watch, is_async
        self._cache: dict[str, tuple[Any, WatchedTool]] = {}

    def __getitem__(self, name: str) -> Any:
        tool, cached = self.data[name], self._cache.get(name)
        if cached is None or cached[0] is not tool:
            cached = self._cache[name] = tool, WatchedTool(tool, self._watch, name, self._is_async)
        return cached[1]

    @property
    def _stands_for(self) -> Any:
        return self.data

    def __reduce__(self) -> Any:
        return dict, (self.data,)


def describe_error(error: BaseException) -> str:
    """Describe an exception by type and text; by type alone if its `str` fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def watched_calls(completion: Sequence[Any], watch: Watch) -> tuple[ToolCall, ...]:
    """Return the completion's calls with their results.

    Our copies of the messages get back what the model wrote and the tool returned, because a tool may have changed
    both.
    """
    waiting = watch.calls()
    ran: dict[Place, ExecutedCall] = {}
    for turn, message in enumerate(completion):
        for position, call in enumerate(calls_of(message)):
            executed = _take(waiting, call)
            if executed is not None:
                ran[turn, position] = executed
                _put_back_arguments(message["tool_calls"][position], executed)
    if any(executed.blocks is not None for executed in ran.values()):
        for place, _, reply in pair_calls(completion, ran):
            if reply is not None and place in ran:
                _put_back_result(completion[reply], ran[place])
    return read_tool_calls(completion, ran, tool_names=watch.tools, is_watched=True)


def watched_outcomes(talk: MessageColumns, watches: Sequence[Watch]) -> CallColumns:
    """Return the calls of all completions with their results."""
    notes = list(chain.from_iterable(watch.notes for watch in watches))
    errors, seconds, deferred, names, given, blocks = (notes[at::_SIZE] for at in range(_SIZE))
    starts = list(accumulate((watch.count for watch in watches), initial=0))
    is_usual = _is_usual(deferred, blocks)

    def ran(i: int, calls: slice) -> ObservedCalls | None:
        """Return the recorded calls of a rollout if they are exactly the calls in its messages."""
        here = slice(*starts[i : i + 2])
        requested = slice(calls.start, calls.start + here.stop - here.start)
        if requested.stop > calls.stop or not (is_usual or _is_usual(deferred[here], blocks[here])):
            return None
        if names[here] != talk.call_names[requested] or not _are_equal(given[here], talk.arguments[requested]):
            return None
        talk.arguments[requested] = given[here]
        not_run = [None] * (calls.stop - requested.stop)
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


def _are_equal(executed: Sequence[Any], requested: Sequence[Any]) -> bool:
    try:
        return executed == requested
    except Exception:  # values that raise when compared
        return False


def split_watch(shared: Watch, completions: Sequence[Any]) -> list[Watch]:
    """Split the calls that all rollouts made to shared tools into one watch per rollout.

    The trainer runs the calls of all first turns, rollout after rollout, then those of all second turns, and so on.
    """
    requests = [[calls for message in messages if (calls := calls_of(message))] for messages in completions]
    waiting, watches = shared.calls(), [Watch(shared.tools) for _ in completions]
    for turn in range(max(map(len, requests), default=0)):
        for turns, watch in zip(requests, watches, strict=True):
            ran = [_take(waiting, call) for call in (turns[turn] if turn < len(turns) else ())]
            watch.notes += [getattr(call, name) for call in ran if call is not None for name in _NAMES]
    return watches


def _take(executed: list[ExecutedCall], request: Call) -> ExecutedCall | None:
    """Take the next executed call if it matches this request; calls run in the order of the requests."""
    if executed and executed[0].name == request.name and _may_have_become(executed[0].arguments, request.arguments):
        return executed.pop(0)
    return None


def _may_have_become(before: Mapping[str, Any], after: Any) -> bool:
    """Return whether a call's arguments match, ignoring containers, which the tool may have changed."""
    if not isinstance(after, Mapping) or after.keys() != before.keys():
        return False
    return all(isinstance(value, (dict, list)) or _equal(value, after[name]) for name, value in before.items())


def _put_back_arguments(request: Any, call: ExecutedCall) -> None:
    function = request.get("function")
    inner = function if isinstance(function, Mapping) else request
    if isinstance(inner, dict):
        inner["arguments"] = call.arguments


def _put_back_result(message: Any, call: ExecutedCall) -> None:
    if call.blocks is not None and isinstance(message.get("content"), list):
        message["content"] = call.blocks


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right) or repr(left) == repr(right)  # NaN is not equal to itself
    except Exception:
        return False
