"""Running hooks so that each plugin can only hurt itself.

The order is pluggy's own. An exception, or a result of the wrong kind, leaves the value as it was, is logged once
for each plugin and hook, and counted; after three in a row the plugin is taken out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import pluggy
from rollout_hookspecs import Drop, Host, Rollout, Run, Step, ToolCall, Trace

from rollout_plugins.content.fit import unfit
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.telling import is_required, shown

logger = logging.getLogger("rollout_plugins")

FAILURES_ALLOWED = 3
_MAY_DROP = ("on_tool_call", "on_rollout")
_BESIDE_MARKS = tuple(field.name for field in fields(Rollout) if field.name != "marks")
T = TypeVar("T")


class Abandoned(BaseException):
    """Raised in a hook thread that hung and came back after it had been replaced."""


@dataclass(frozen=True, eq=False)
class Running:
    """A plugin's code that is running now."""

    plugin_name: str
    hook: str
    started: float


class _Method(NamedTuple):
    """A method of a plugin that is not a hook, to be called like one."""

    plugin: Any
    plugin_name: str
    function: Callable[..., Any]
    argnames: tuple[str, ...]
    kwargnames: tuple[str, ...] = ()


class Dispatcher:
    """Typed calls to every hook, isolating each plugin."""

    def __init__(self, manager: pluggy.PluginManager, counters: Counters, *, strict: bool = False) -> None:
        self.manager = manager
        self.counters = counters
        self.strict = strict
        self.removed: dict[str, str] = {}
        self.lacking = ""
        self._now: Running | None = None
        self._turn = threading.RLock()
        self._dropped_by = ""
        self._required: dict[str, bool] = {}
        self._failures: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Before a run or an attempt: plugins that were taken out of the one before get another chance."""
        self.removed.clear()
        self.lacking = ""
        self._failures.clear()
        self._told.clear()

    def name_of(self, plugin: Any) -> str:
        return self.manager.get_name(plugin) or type(plugin).__name__

    def implementations(self, hook: str) -> list[Any]:
        """Implementations in calling order, without those of plugins that were taken out.

        Of a rollout, `required` plugins see what all others made.
        """
        found = reversed(getattr(self.manager.hook, hook).get_hookimpls())
        alive = [impl for impl in found if impl.plugin_name not in self.removed]
        return sorted(alive, key=self._is_last) if hook == "on_rollout" else alive

    def _is_last(self, impl: Any) -> bool:
        known = self._required.get(impl.plugin_name)
        if known is None:
            known = self._required[impl.plugin_name] = is_required(impl.plugin)
        return known

    def plugins_with(self, hook: str) -> list[Any]:
        return [impl.plugin for impl in self.implementations(hook)]

    def give_up_after(self, seconds: float) -> Running | None:
        """The call that has been running for longer than that, from now on not waited for; it can't go on."""
        with self._turn:
            call = self._now
            if call is None or time.monotonic() - call.started <= seconds:
                return None
            self._now = None
        return call

    def _leave(self, call: Running) -> None:
        """Back from a plugin's code. A thread that was given up on ends here: another one does its work."""
        with self._turn:
            if self._now is not call:
                raise Abandoned
            self._now = None

    def call(
        self, impl: Any, hook: str, arguments: Mapping[str, Any], read: Callable[[Any], Any] = lambda result: result
    ) -> tuple[bool, Any]:
        """Running one implementation with the arguments it asks for. `read` checks and converts what it returned."""
        names = (*impl.argnames, *(name for name in impl.kwargnames if name in arguments))
        call = self._now = Running(impl.plugin_name, hook, time.monotonic())
        failure: BaseException | None = None
        result = None
        try:
            result = read(impl.function(**{name: arguments[name] for name in names}))
        except BaseException as error:  # plugins, and what they depend on, raise more than Exception
            failure = error
        self._leave(call)
        is_drop = isinstance(failure, Drop) and hook in _MAY_DROP
        if failure is not None and not is_drop:
            self.failed(impl.plugin, hook, failure)
            return False, None
        self._failures.pop(impl.plugin_name, None)
        if failure is not None:
            self._dropped_by = impl.plugin_name
            raise failure
        return True, result

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        """Count and tell of a failure; take the plugin out when it keeps failing."""
        name = self.name_of(plugin)
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        self.counters.error(name)
        if self.strict:
            raise error
        if (name, hook) not in self._told:
            self._told.add((name, hook))
            logger.warning("plugin %r failed in %s and was skipped: %s", name, hook, shown(error), exc_info=error)
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= FAILURES_ALLOWED:
            self.remove(name, f"failed {FAILURES_ALLOWED} times in a row, last in {hook}: {shown(error)}")

    def remove(self, name: str, why: str) -> None:
        """Take a plugin out for the rest of the run. It stays registered: the next run begins with all of them."""
        plugin = self.manager.get_plugin(name)
        if plugin is not None and name not in self.removed:
            self.removed[name] = why
            logger.warning("plugin %r is off for the rest of the run: it %s", name, why)
            if is_required(plugin):
                self.lacking = name
                logger.warning("nothing is recorded without plugin %r; rollouts are counted as dropped by it", name)

    @property
    def has_required(self) -> bool:
        """Whether a rollout that plugins have not seen must not be stored."""
        return bool(self.lacking) or any(is_required(plugin) for _, plugin in self.manager.list_name_plugin())

    def _results(
        self, hook: str, arguments: Mapping[str, Any], read: Callable[[Any], Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Each implementation with what it returned, unless that was None; failures are dealt with and left out."""
        for impl in self.implementations(hook):
            if impl.plugin_name not in self.removed:
                worked, result = self.call(impl, hook, arguments, read)
                if worked and result is not None:
                    yield impl, result
                if not worked and hook == "on_rollout" and is_required(impl.plugin):
                    self._dropped_by = impl.plugin_name
                    raise Drop("the plugin failed, and is required")

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        """Fold `on_tool_call`, then `on_rollout`; None when a plugin dropped it, or one that must see it is off."""
        if self.lacking:
            self.counters.drop(f"dropped_by:{self.lacking}")
            return None
        return self._fold_rollout(self._fold_tool_calls(rollout, step), step)

    def _fold_tool_calls(self, rollout: Rollout, step: Step) -> Rollout:
        if not rollout.tool_calls or not self.implementations("on_tool_call"):
            return rollout
        calls = [self._fold_tool_call(call, rollout, step) for call in rollout.tool_calls]
        return replace(rollout, tool_calls=tuple(call for call in calls if call is not None))

    def _fold_tool_call(self, call: ToolCall, rollout: Rollout, step: Step) -> ToolCall | None:
        arguments = {"tool_call": call, "rollout": rollout, "step": step}
        try:
            for _, result in self._results("on_tool_call", arguments, _one(ToolCall)):
                arguments["tool_call"] = call = result
        except Drop as drop:
            self._count_drop("tool_calls_dropped_by", drop)
            return None
        return call

    def _fold_rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        arguments = {"rollout": rollout, "step": step}
        kept = rollout
        try:
            for _, result in self._results("on_rollout", arguments, _replacement(rollout.id)):
                arguments["rollout"] = kept = result
        except Drop as drop:
            self._count_drop("dropped_by", drop)
            return None
        return kept

    def _count_drop(self, what: str, drop: Drop) -> None:
        self.counters.drop(f"{what}:{self._dropped_by}")
        logger.debug("dropped by %s: %s", self._dropped_by, drop)

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        """Fold `select_rollouts`. Also who left each of the others out, and why."""
        chosen = list(rollouts)
        skipped: dict[str, tuple[str, str]] = {}

        def read(result: Any) -> list[Rollout] | None:
            return None if result is None else _selection(result, chosen)

        arguments = {"rollouts": tuple(chosen), "step": step}
        for impl, kept in self._results("select_rollouts", arguments, read):
            ids = {r.id for r in kept}
            gone = [r.id for r in chosen if r.id not in ids]
            reasons = _skip_reasons(impl.plugin) if gone else {}
            skipped.update((ident, (impl.plugin_name, reasons.get(ident, "not selected"))) for ident in gone)
            arguments["rollouts"], chosen = tuple(kept), kept
        for name, _ in skipped.values():
            self.counters.drop(f"skipped_by:{name}")
        return chosen, {ident: f"skipped by {name}: {why}" for ident, (name, why) in skipped.items()}

    # --- what leaves the process --------------------------------------------------------------------------------

    def clean(self, value: T, instead: T) -> T:
        """The value as `required` plugins let it leave the process; `instead` where one of them cannot say."""
        if self.lacking:
            return instead
        kind = type(value)
        for name, plugin in self.manager.list_name_plugin():
            method = getattr(plugin, "clean", None) if is_required(plugin) else None
            if callable(method):
                impl = _Method(plugin, name, method, ("value",))
                worked, result = self.call(impl, "clean", {"value": value}, _one(kind))
                if not worked:
                    return instead
                value = value if result is None else result
        return value

    def cleaned_texts(self, texts: Iterable[str], instead: str) -> dict[str, str]:
        """Each text as it may leave."""
        given = list(dict.fromkeys(texts))
        return dict(zip(given, self.clean(given, [instead] * len(given)), strict=True)) if given else {}

    def cleaned_changes(self, seen: Sequence[Rollout], now: Sequence[Rollout], step: Step) -> list[Rollout]:
        """Rollouts as they may leave, where plugins changed them after `required` ones had seen them."""
        before = {rollout.id: rollout for rollout in seen}
        if not self.has_required or all(rollout is before[rollout.id] for rollout in now):
            return list(now)
        again = [self._seen_again(before[rollout.id], rollout, step) for rollout in now]
        marks = self.clean([dict(rollout.marks) for rollout in again], [dict(before[r.id].marks) for r in now])
        return [
            rollout if rollout is before[rollout.id] else replace(rollout, marks=said)
            for rollout, said in zip(again, marks, strict=True)
        ]

    def _seen_again(self, seen: Rollout, now: Rollout, step: Step) -> Rollout:
        """With more than new marks, it goes through `required` plugins once more; else as they saw it."""
        if all(getattr(now, name) is getattr(seen, name) for name in _BESIDE_MARKS):
            return now
        if self.lacking:
            return seen
        return self._through_required(now, step) or seen

    def _through_required(self, rollout: Rollout, step: Step) -> Rollout | None:
        """As `required` plugins let it leave; None where one of them drops it, or fails."""
        arguments = {"rollout": rollout, "step": step}
        try:
            for impl in filter(self._is_last, self.implementations("on_rollout")):
                worked, result = self.call(impl, "on_rollout", arguments, _replacement(rollout.id))
                if not worked:
                    return None
                arguments["rollout"] = rollout = result or rollout
        except Drop:
            return None
        return rollout

    def stored(self, rollout: Rollout, step: Step) -> Rollout | None:
        """A rollout from the store, which plugins have changed before, as it may leave; None where it may not."""
        return None if self.lacking else self._through_required(rollout, step)

    def cleaned_run(self, run: Run) -> Run:
        """The run's facts as they may leave; without what explains them where that cannot be said."""
        if not self.has_required:
            return run
        kept = {name: getattr(run, name) for name in ("id", "attempt", "dir", "rank", "world_size", "resumed_from")}
        facts = {field.name: getattr(run, field.name) for field in fields(Run) if field.name not in kept}
        facts["reward_names"] = dict.fromkeys(run.reward_names)  # names that become equal stay apart, as in rollouts
        clean = self.clean(facts, {})
        names = {"reward_names": tuple(clean["reward_names"])} if "reward_names" in clean else {}
        return Run(**kept, **{**clean, **names})

    def cleaned_names(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Numbers under names that may leave."""
        return dict(self.clean(dict(numbers), {})) if numbers and self.has_required else dict(numbers)

    def _cleaned_trace(self, trace: Trace, name: str) -> Trace | None:
        """What another plugin made of a rollout may hold more than the rollout did."""
        if not self.has_required:
            return trace
        parts = {field.name: getattr(trace, field.name) for field in fields(Trace)}
        clean = self.clean(parts, {})
        if clean and all(isinstance(clean[part], type(value)) for part, value in parts.items()):
            return Trace(**clean)
        self.counters.drop(f"skipped_by:{name}")
        return None

    def trace(self, rollout: Rollout) -> Trace | None:
        """The first `Trace` that a plugin makes of it."""
        for impl, trace in self._results("format_trace", {"rollout": rollout}, _one(Trace)):
            return trace if type(impl.plugin) is DefaultTrace else self._cleaned_trace(trace, impl.plugin_name)
        return None

    def hosts(self) -> list[Host]:
        """Adapters of all plugins that have some."""

        def read(result: Any) -> list[Any] | None:
            found = None if result is None else list(result)
            for host in found or ():
                if not all(hasattr(host, name) for name in ("name", "matches", "attach", "describe")):
                    raise TypeError(f"returned {type(host).__name__}, which is no Host")
            return found

        return [host for _, hosts in self._results("register_hosts", {}, read) for host in hosts]

    def metrics(self, rollouts: Sequence[Rollout], step: Step) -> dict[str, float]:
        """Numbers of all plugins; what is no number is left out, as that plugin's failure."""
        numbers: dict[str, float] = {}
        given = tuple(rollouts)
        arguments = {"rollouts": given, "step": step}
        for impl, (found, odd) in self._results("rollout_metrics", arguments, _numbers):
            numbers |= found
            if odd:
                self.failed(impl.plugin, "rollout_metrics", TypeError(f"no numbers: {', '.join(odd)}"))
        return numbers


def _one(kind: type) -> Callable[[Any], Any]:
    """Accepts None or a value of this kind."""

    def read(result: Any) -> Any:
        if result is not None and not isinstance(result, kind):
            raise TypeError(f"returned {type(result).__name__}, expected {kind.__name__} or None")
        return result

    return read


def _replacement(ident: str) -> Callable[[Any], Any]:
    """Accepts None or a rollout that replaces the one of this id."""

    def read(result: Any) -> Any:
        if _one(Rollout)(result) is not None:
            _check(result, ident)
        return result

    return read


def _check(rollout: Rollout, ident: str) -> None:
    """A rollout that replaces another one has its id, and fields that hold what the contract says."""
    if rollout.id != ident:
        raise ValueError(f"changed the id to {rollout.id!r}")
    for name, kind in unfit(rollout).items():
        raise TypeError(f"returned a rollout whose {name} is of type {kind}")


def _selection(result: Any, given: Sequence[Rollout]) -> list[Rollout]:
    """What `select_rollouts` returned: some of the rollouts it was given, each once."""
    if isinstance(result, (str, Mapping)) or not isinstance(result, Sequence):
        raise TypeError(f"returned {type(result).__name__}, expected a list of rollouts or None")
    kept = list(result)
    known = {r.id for r in given}
    if not all(isinstance(r, Rollout) and r.id in known for r in kept):
        raise TypeError("returned something else than some of its rollouts")
    for rollout in kept:
        _check(rollout, rollout.id)
    return list({r.id: r for r in kept}.values())


def _numbers(result: Any) -> tuple[dict[str, float], list[str]] | None:
    """What `rollout_metrics` returned, and the names under which there was no number."""
    if result is None:
        return None
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}, expected a dict of numbers or None")
    numbers, odd = {}, []
    for name, value in result.items():
        try:
            numbers[str(name)] = float(value)
        except Exception:
            odd.append(str(name))
    return numbers, odd


def _skip_reasons(plugin: Any) -> dict[str, str]:
    """Why a plugin left rollouts out, when it says so."""
    try:
        return {str(ident): str(why) for ident, why in plugin.skip_reasons.items()}
    except Exception:  # it may say so, it need not
        return {}
