"""What became of each tool call: watch the calls while they run, pair them with messages afterwards."""

from __future__ import annotations

import ast
import time
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_hookspecs import ToolCall

from rollout_plugins.hosts.wrapping import StandIn
from rollout_plugins.messages import Call, calls_of, role_of, text_of
from rollout_plugins.snapshot import Snapshot


@dataclass(slots=True)
class Seen:
    """One tool call that really ran."""

    name: str
    arguments: Mapping[str, Any]
    """As they were when the call was made: the tool may change them."""
    error: str | None = None
    seconds: float = 0.0
    blocks: list[Any] | None = None
    """The content blocks it returned, as they were then; other results become text at once."""
    deferred: bool = False
    """An async call: its result is appended after the results of all calls that ran at once."""


@dataclass(slots=True)
class Watch:
    """The calls of one rollout, in the order they were made."""

    tools: Collection[str] = ()
    seen: list[Seen] = field(default_factory=list)
    bytes: int = 0

    def watched(self, name: str, tool: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """The tool, noting each call. Same result, same exception."""
        clock = time.perf_counter

        def call(tool: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            seen = Seen(name, self._kept(kwargs))
            self.seen.append(seen)
            started = clock()
            try:
                result = tool(*args, **kwargs)
            except BaseException as error:
                seen.error = _describe(error)
                raise
            finally:
                seen.seconds = clock() - started
            if is_async:
                seen.deferred = True
                return self._timed(result, seen)
            self._answered(seen, result)
            return result

        return StandIn(tool, call)

    async def _timed(self, coroutine: Any, seen: Seen) -> Any:
        started = time.perf_counter()
        try:
            result = await coroutine
        except BaseException as error:
            seen.error = _describe(error)
            raise
        finally:
            seen.seconds = time.perf_counter() - started
        self._answered(seen, result)
        return result

    def _answered(self, seen: Seen, result: Any) -> None:
        if isinstance(result, list):
            seen.blocks = self._kept(result)

    def _kept(self, value: Any) -> Any:
        copier = Snapshot()
        try:
            return copier.copy(value)
        except Exception:  # what objects to being copied is kept as it is
            return value
        finally:
            self.bytes += copier.bytes


class WatchedTools(UserDict[str, Any]):
    """A rollout's tools; one that is asked for is watched. Most rollouts call few of theirs."""

    def __init__(self, tools: MutableMapping[str, Any], watch: Watch, *, is_async: bool) -> None:
        self.data = tools  # type: ignore[assignment]  # the trainer's own: what is added here is added there
        self._watch, self._is_async = watch, is_async

    def __getitem__(self, name: str) -> Any:
        return self._watch.watched(name, super().__getitem__(name), is_async=self._is_async)

    def __reduce__(self) -> Any:
        return dict, (self.data,)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # an exception whose str fails is still an exception with a type
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def tool_calls(completion: Sequence[Any], watch: Watch | None, tools: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """Every call in the completion with its outcome. Without a watch, outcomes are read off the messages alone."""
    known = watch.tools if watch is not None else frozenset(tools)
    waiting = list(watch.seen) if watch is not None else []
    found: list[ToolCall] = []
    for turn, message in enumerate(completion):
        calls = calls_of(message)
        ran = [_take(waiting, call) for call in calls]
        calls = [_as_made(message, i, call, seen) for i, (call, seen) in enumerate(zip(calls, ran, strict=True))]
        replies = _pair(calls, ran, _replies(completion, turn)) if calls else []
        for position, (call, seen, reply) in enumerate(zip(calls, ran, replies, strict=True)):
            result = _as_returned(completion[reply], seen) if reply is not None else None
            if reply is None:
                status, error = "not_run", _ROLLED_BACK if seen is not None else None
            elif seen is not None:
                status, error = ("error" if seen.error is not None else "ok"), seen.error
            else:
                status, error = _read_outcome(call, result, known, is_watched=watch is not None)
            found.append(
                ToolCall(
                    turn=turn,
                    position=position,
                    reply=reply,
                    name=call.name,
                    arguments=call.arguments,
                    result=result,
                    error=error,
                    status=status,  # type: ignore[arg-type]
                    seconds=seen.seconds if seen is not None else None,
                )
            )
    return tuple(found)


_ROLLED_BACK = "rolled back: its result did not fit into the completion"


def _read_outcome(call: Call, result: Any, known: Collection[str], *, is_watched: bool) -> tuple[str, str | None]:
    """Status and error of a call that no tool saw, from its name and the message that answered it."""
    error = _error_in(result)
    if isinstance(call.name, str) and known and call.name not in known:
        return "unknown", error or "no such tool"
    if error is None and not is_watched:
        return "ok", None
    return "error", error or "it was not called"


def shared_out(together: Watch, completions: Sequence[Any]) -> list[Watch]:
    """One watch for each rollout, of calls that all rollouts made to the same tools.

    The trainer runs the calls of all first turns, rollout after rollout, then those of all second turns, and so on.
    """
    asking = [[calls for message in one if (calls := calls_of(message))] for one in completions]
    waiting, watches = list(together.seen), [Watch(together.tools) for _ in completions]
    for turn in range(max(map(len, asking), default=0)):
        for turns, watch in zip(asking, watches, strict=True):
            ran = [_take(waiting, call) for call in (turns[turn] if turn < len(turns) else ())]
            watch.seen += [seen for seen in ran if seen is not None]
    return watches


def _take(seen: list[Seen], call: Call) -> Seen | None:
    """The next call that ran, if it is this one. Calls run in the order they were asked for."""
    if seen and seen[0].name == call.name and _may_have_become(seen[0].arguments, call.arguments):
        return seen.pop(0)
    return None


def _may_have_become(made: Mapping[str, Any], now: Any) -> bool:
    """Whether a call's arguments are these, apart from what the tool may have done inside them."""
    if not isinstance(now, Mapping) or now.keys() != made.keys():
        return False
    return all(isinstance(value, (dict, list)) or _equal(value, now[name]) for name, value in made.items())


def _as_made(message: Any, position: int, call: Call, seen: Seen | None) -> Call:
    """The call with the arguments that the model wrote, in our copy of its message, too."""
    if seen is None:
        return call
    asked = message["tool_calls"][position]
    function = asked.get("function")
    inner = function if isinstance(function, Mapping) else asked
    if isinstance(inner, dict):
        inner["arguments"] = seen.arguments
    return call._replace(arguments=seen.arguments)


def _as_returned(message: Any, seen: Seen | None) -> Any:
    """What a tool's message says; our copy of it, too, says what the tool returned, whatever it made of that later."""
    if seen is not None and seen.blocks is not None and isinstance(message.get("content"), list):
        message["content"] = seen.blocks
    return message.get("content")


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or repr(one) == repr(other)  # NaN is not equal to itself
    except Exception:
        return False


def _replies(completion: Sequence[Any], turn: int) -> list[int]:
    """Indices of the tool messages right after a turn."""
    found = []
    for index in range(turn + 1, len(completion)):
        if role_of(completion[index]) != "tool":
            break
        found.append(index)
    return found


def _pair(calls: Sequence[Call], ran: Sequence[Seen | None], replies: Sequence[int]) -> list[int | None]:
    """Which message answers which call. Results of async calls come after all others."""
    if len(replies) != len(calls):
        return [replies[i] if i < len(replies) else None for i in range(len(calls))]
    deferred = [seen is not None and seen.deferred for seen in ran]
    order = sorted(range(len(calls)), key=lambda i: deferred[i])
    paired: list[int | None] = [None] * len(calls)
    for call, reply in zip(order, replies, strict=True):
        paired[call] = reply
    return paired


def _error_in(content: Any) -> str | None:
    """The error text in TRL's `{'error': …}` result."""
    text = text_of(content)
    if not text.startswith("{'error': "):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return str(value.get("error")) if isinstance(value, dict) else text
