"""Calling hooks: pluggy's own order on every pluggy, and each plugin by itself."""

import inspect
import math
import threading

import pluggy
import pytest
from rollout_hookspecs import hooks
from store_rig import rollouts

from rollout_plugins import Drop, Rollout, Step, ToolCall, Trace, hookimpl
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.isolation import Abandoned
from rollout_plugins.engine.plugin_checks import HOOKS

STEP = Step()
ARGUMENTS = {
    "run": None, "tool_call": None, "rollout": None, "step": None, "rollouts": (), "traces": (), "columns": None,
    "seconds": 30.0, "table": None, "values": {}, "finding": None,
}  # fmt: skip


def dispatcher(*plugins, strict=False):
    return Dispatcher(Plugins(plugins, autoload=False).manager, Counters(), strict=strict)


def plugin(name="mine", *, tryfirst=False, trylast=False, **functions):
    mark = hookimpl(tryfirst=tryfirst, trylast=trylast)
    return type("Mine", (), {"name": name, **{hook: mark(function) for hook, function in functions.items()}})()


def noting(name, calls, hook, **bands):
    """Return a plugin whose only hook takes the hook's first argument and notes the plugin's name."""
    argument = next(iter(inspect.signature(getattr(hooks, hook)).parameters), "")
    scope = {"calls": calls, "name": name}
    exec(f"def function(self{', ' + argument if argument else ''}): calls.append(name)", scope)
    return plugin(name, **bands, **{hook: scope["function"]})


@pytest.mark.parametrize("hook", HOOKS)
def test_the_order_is_pluggys_own(hook):
    calls = []
    bands = [{}, {"trylast": True}, {"tryfirst": True}, {}, {"tryfirst": True}, {"trylast": True}, {}]
    one = dispatcher(*(noting(f"p{n}", calls, hook, **band) for n, band in enumerate(bands)))
    spec = getattr(one.manager.hook, hook).spec
    getattr(one.manager.hook, hook)(**{name: ARGUMENTS[name] for name in spec.argnames})
    by_pluggy = calls.copy()
    assert sorted(by_pluggy) == [f"p{n}" for n in range(7)]
    assert [impl.plugin_name for impl in one.implementations(hook)] == by_pluggy
    calls.clear()
    for impl in one.implementations(hook):
        one.call(impl, hook, ARGUMENTS)
    assert calls == by_pluggy


def test_it_works_with_the_pluggy_that_is_installed():
    assert tuple(map(int, pluggy.__version__.split(".")[:2])) >= (1, 5)


def test_a_chain_passes_each_result_to_the_next_plugin():
    def add(letter):
        return lambda self, rollout: Rollout(id=rollout.id, error=(rollout.error or "") + letter)

    one = dispatcher(
        *(plugin(f"p{letter}", on_rollout=add(letter)) for letter in "abc"), plugin(on_rollout=lambda self: None)
    )
    assert one.rollout(Rollout(id="x"), STEP).error == "abc"


def test_tool_calls_are_a_chain_of_their_own_and_can_be_dropped():
    def keep(self, tool_call, rollout, step):
        if tool_call.name == "b":
            raise Drop("no")
        return ToolCall(name=tool_call.name + "!", arguments=len(rollout.tool_calls))

    one = dispatcher(plugin(on_tool_call=keep))
    made = Rollout(id="x", tool_calls=tuple(ToolCall(name=name, arguments=0) for name in "abc"))
    assert [(c.name, c.arguments) for c in one.rollout(made, STEP).tool_calls] == [("a!", 3), ("c!", 3)]
    assert one.counters.drops == {"tool_calls_dropped_by:mine": 1}


def test_a_drop_is_not_a_failure_and_passes_through_except_exception():
    def on_rollout(self, rollout):
        try:
            raise Drop("boring")  # noqa: TRY301 - as careless plugins do
        except Exception:
            return

    one = dispatcher(plugin(on_rollout=on_rollout))
    assert [one.rollout(Rollout(id="x"), STEP) for _ in range(5)] == [None] * 5
    assert one.counters.drops == {"dropped_by:mine": 5}
    assert not one.counters.errors
    assert not one.removed


def test_the_first_trace_wins_and_none_asks_the_next_plugin():
    one = dispatcher(
        plugin("a", format_trace=lambda self, rollout: None),
        plugin("b", format_trace=lambda self, rollout: Trace(rollout_id="b", messages=())),
        plugin("c", format_trace=lambda self, rollout: Trace(rollout_id="c", messages=())),
    )
    assert one.trace(Rollout(id="x")).rollout_id == "b"


def test_selections_are_chained_and_each_skip_names_one_plugin():
    made = [Rollout(id=str(n)) for n in range(4)]
    one = dispatcher(
        plugin("half", select_rollouts=lambda self, rollouts: rollouts[::2]),
        plugin("asks", select_rollouts=lambda self, rollouts: None),
        plugin("one", select_rollouts=lambda self, rollouts: [rollouts[0], rollouts[0]]),
        plugin("wrong", select_rollouts=lambda self, rollouts: rollouts[0]),
    )
    chosen, skipped = one.select(made, STEP)
    assert [r.id for r in chosen] == ["0"]
    assert skipped == {
        "1": "skipped by half: not selected",
        "2": "skipped by one: not selected",
        "3": "skipped by half: not selected",
    }
    assert (one.counters.drops, one.counters.skipped) == ({}, {"half": 2, "one": 1})
    assert one.counters.errors == {"wrong": 1}


def test_a_metric_that_is_not_a_number_is_a_failure_of_its_plugin():
    one = dispatcher(
        plugin("a", rollout_metrics=lambda self, rollouts: {"n": len(rollouts), "bad": "x", "none": None}),
        plugin("b", rollout_metrics=lambda self: {"m": True}),
        plugin("c", rollout_metrics=lambda self: None),
    )
    assert one.metrics(rollouts(3), STEP) == {"n": 3.0, "m": 1.0}
    assert one.counters.errors == {"a": 1}


def test_three_failures_in_a_row_disable_a_plugin_and_a_success_resets_the_count():
    answers = iter("ffsffsfff")

    def on_rollout(self, rollout):
        if next(answers) == "f":
            raise ValueError("no")

    one = dispatcher(plugin(on_rollout=on_rollout))
    for _ in range(8):
        one.rollout(Rollout(id="x"), STEP)
    assert not one.removed
    one.rollout(Rollout(id="x"), STEP)
    assert "failed 3 times in a row, last in on_rollout: ValueError('no')" in one.removed["mine"]
    one.rollout(Rollout(id="x"), STEP)
    assert one.counters.errors == {"mine": 7}


def test_a_plugin_that_is_disabled_during_a_chain_is_not_called_again_in_it():
    calls = []
    late = plugin("late", on_rollout=lambda self: calls.append("late"))
    early = plugin("early", on_rollout=lambda self: one.remove("late", "was told to"))
    one = dispatcher(early, late)
    one.rollout(Rollout(id="x"), STEP)
    assert calls == []


def test_with_strict_the_first_failure_is_raised():
    def on_rollout(self):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        dispatcher(plugin(on_rollout=on_rollout), strict=True).rollout(Rollout(id="x"), STEP)


def test_an_abandoned_call_cannot_continue():
    entered, let_go, ended = threading.Event(), threading.Event(), []

    def on_rollout(self):
        entered.set()
        let_go.wait(600)

    one = dispatcher(plugin(on_rollout=on_rollout))

    def work():
        try:
            one.rollout(Rollout(id="x"), STEP)
        except Abandoned:
            ended.append("abandoned")

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(600)
    assert one.give_up_after(math.inf) is None
    assert (one.give_up_after(0).plugin_name, one.give_up_after(0)) == ("mine", None)
    let_go.set()
    thread.join(600)
    assert ended == ["abandoned"]
    assert not one.counters.errors
