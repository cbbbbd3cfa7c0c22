"""Plugins that misbehave cost themselves alone, and go after three faults in a row."""

import threading
import time
from dataclasses import dataclass, replace

import pytest
from faults import HOOKS, exits, plugin_with, raises, says, send, told
from store_rig import Sink, batch, pipeline, record, rollouts, started

from rollout_plugins import Drop, Rollout, ToolCall, hookimpl, open_run
from rollout_plugins.errors import SetupError


class Good:
    """Notes what it sees and changes a little, to show that it still runs."""

    name = "good"

    def __init__(self):
        self.seen = []

    @hookimpl
    def on_run_start(self):
        self.seen.append("start")

    @hookimpl
    def on_rollout(self, rollout):
        return replace(rollout, extra={"good": True})

    @hookimpl
    def rollout_metrics(self, rollouts):
        return {"count": len(rollouts)}

    @hookimpl
    def on_run_end(self):
        self.seen.append("end")


class Cancelled(BaseException):
    """As asyncio's, and what pytest.fail raises."""


class Unshowable(Exception):
    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __repr__


class Nonsense:
    """No answer to any hook, whoever looks at it how."""

    def __repr__(self):
        raise RuntimeError("no")

    __eq__ = __len__ = __iter__ = __bool__ = __float__ = __str__ = __repr__
    __hash__ = None


ACTS = {
    "raises": raises,
    "exits": exits,
    "cancels": says(Cancelled()),
    "interrupts": says(KeyboardInterrupt()),
    "unshowable": says(Unshowable()),
    "a number": lambda: 5,
    "a text": lambda: "kept",
    "an object": Nonsense,
    "a class": lambda: Rollout,
    "a list of nothing": lambda: [None],
    "odd numbers": lambda: {"a": Nonsense(), 1: "x"},
    "somebody else": lambda: Rollout(id="other"),
    "others": lambda: [Rollout(id="other")],
}
RAISE = {"raises", "exits", "cancels", "interrupts", "unshowable"}


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_failing_plugins_affect_only_themselves_and_are_disabled_after_three_failures(tmp_path, caplog, hook):
    good, sink = Good(), Sink()
    call = ToolCall(name="f", arguments={})
    line = started(tmp_path, *(plugin_with(hook, act, name) for name, act in ACTS.items()), good, sink)
    for step in range(3):
        send(line, rollouts(4, tool_calls=(call,)), step)
    metrics = line.pop_metrics("train")
    line.close()
    run = open_run(tmp_path)
    assert len(run) == 12
    assert len(sink.ids) == 12
    assert all(r.extra == {"good": True} and r.tool_calls == (call,) for r in run.rollouts())
    assert metrics["count"] == 4
    assert good.seen == ["start", "end"]
    assert not [reason for reason in run.health.drops if reason != "unserialisable_field"]
    failed = {name for name, count in line.counters.errors.items() if count}
    if hook in {"on_run_start", "on_run_end"}:
        assert failed == RAISE
        return
    assert failed == ACTS.keys()
    bad = ACTS.keys() - ({"odd numbers"} if hook == "rollout_metrics" else set())
    assert line.dispatcher.removed.keys() == bad
    for name in bad:
        assert line.counters.errors[name] == 3, name
        assert len(told(caplog, f"'{name}' failed in {hook}")) == 1, name
        assert len(told(caplog, f"'{name}' is disabled for the rest of the run")) == 1, name


@pytest.mark.parametrize("act", ["raises", "a number"])
def test_strict_raises_plugin_errors_and_still_stores_the_rollouts(tmp_path, act):
    line = started(tmp_path, plugin_with("on_rollout", ACTS[act]), strict=True)
    line.submit(batch(rollouts()))
    line.drain(60)
    with pytest.raises((ValueError, TypeError)):
        line.raise_strict()
    line.raise_strict()
    line.close()
    assert len(open_run(tmp_path)) == 4


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_plugin_that_hangs_is_disabled_and_nothing_is_lost_or_repeated(tmp_path, caplog, monkeypatch, clock, hook):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.2")
    let_go = threading.Event()
    seen = []

    def hangs():
        clock.now += 1
        let_go.wait(600)

    class Counts(Good):
        @hookimpl
        def select_rollouts(self, rollouts):
            seen.append(len(rollouts))

        @hookimpl
        def rollout_metrics(self, rollouts):
            seen.append(-len(rollouts))
            return {"count": len(rollouts)}

    good, sink = Counts(), Sink()
    line = started(tmp_path, good, plugin_with(hook, hangs), sink)
    for step in range(3):
        send(line, rollouts(4, tool_calls=(ToolCall(name="f", arguments={}),)), step)
        if step == 1:
            let_go.set()  # it comes back when nobody waits for it anymore
    line.close()
    run = open_run(tmp_path)
    assert [r.index for r in run.rollouts()] == [0, 1, 2, 3] * 3
    assert all(r.extra == {"good": True} for r in run.rollouts())
    assert sorted(sink.ids) == sorted(r.id for r in run.rollouts())
    assert good.seen == ["start", "end"]
    if hook not in {"select_rollouts", "rollout_metrics"}:
        assert sorted(seen) == [-4, -4, -4, 4, 4, 4]
    if hook != "on_run_end":  # by then it was let go
        assert line.dispatcher.removed["bad"].startswith(f"did not return from {hook} within 0.2 s")
        assert len(told(caplog, "'bad' is disabled for the rest of the run")) == 1
    assert run.health.drops == {}


def test_many_plugins_that_hang_in_turn_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.1")

    class Naps:
        def __init__(self, number):
            self.name = f"nap{number}"

        @hookimpl
        def on_rollout(self, rollout):
            time.sleep(0.1 if rollout.index < 3 else 0.3)  # now just in time, now just too late

    run = record(tmp_path, *[rollouts() for _ in range(2)], plugins=[Naps(n) for n in range(4)])
    assert [r.index for r in run.rollouts()] == [0, 1, 2, 3] * 2


def test_a_limit_for_hanging_that_is_not_a_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "soon")
    with pytest.raises(SetupError, match="ROLLOUT_PLUGINS_HANG_SECONDS is 'soon'; give a number of seconds"):
        pipeline()


def test_a_plain_dataclass_is_a_plugin_like_any_other(tmp_path):
    @dataclass
    class Judge:
        score: float

        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, extra={"score": self.score})

    assert [r.extra for r in record(tmp_path, rollouts(1), plugins=(Judge(0.5),)).rollouts()] == [{"score": 0.5}]


STRANGE = {
    "marks": None,
    "index": "x",
    "rank": None,
    "extra": Nonsense(),
    "completion": None,
    "tool_calls": 5,
    "images": None,
    "columns": [1],
    "rewards": None,
}


@pytest.mark.parametrize("field", sorted(STRANGE))
def test_a_plugin_that_sets_a_field_to_a_wrong_type_is_named(tmp_path, caplog, field):
    class Strange:
        name = "strange"

        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, **{field: STRANGE[field]})

    sink = Sink()
    run = record(tmp_path, rollouts(2), plugins=(Strange(), sink))
    assert len(sink.ids) == len(run) == 2
    assert run.rollouts()[0].completion == ({"role": "assistant", "content": "hi"},)
    assert f"returned a rollout whose {field} is of type" in caplog.text


def test_malformed_rollouts_of_a_host_are_conformed_to_the_contract(tmp_path):
    good, sink = Good(), Sink()
    strange = replace(rollouts(1)[0], prompt="just text", split=7, error=9, **STRANGE)
    run = record(tmp_path, *[[strange, rollouts(2)[1]] for _ in range(4)], plugins=(good, sink))
    assert len(sink.ids) == len(run) == 8
    for rollout in list(run.rollouts())[::2]:
        assert {f"lost:{name}" for name in STRANGE if name not in {"extra", "rank"}} <= set(rollout.marks)
        assert rollout.prompt == ("just text",)
        assert rollout.completion == rollout.tool_calls == rollout.images == ()
    assert not run.health.damaged
    assert run.health.drops["unserialisable_field"] >= 4 * 7


def test_dropped_rollouts_are_counted_by_plugin_and_skipped_ones_stored_with_the_reason(tmp_path):
    class Picky:
        name = "picky"
        skip_reasons = None

        @hookimpl
        def on_tool_call(self, tool_call):
            if tool_call.name == "secret":
                raise Drop("secret")

        @hookimpl
        def on_rollout(self, rollout):
            if rollout.index == 0:
                raise Drop("boring")

        @hookimpl
        def select_rollouts(self, rollouts):
            self.skip_reasons = {rollouts[0].id: "too short"}
            return [replace(rollouts[2], marks={"picky": "best"})]

    sink = Sink()
    calls = tuple(ToolCall(name=name, arguments={}) for name in ("open", "secret"))
    run = record(tmp_path, rollouts(4, tool_calls=calls), plugins=(Picky(), sink))
    marks = [r.marks for r in run.rollouts()]
    assert marks == [
        {"sinks": "skipped by picky: too short"},
        {"sinks": "skipped by picky: not selected"},
        {"picky": "best"},
    ]
    assert sink.ids == [list(run.rollouts())[2].id]
    assert run.health.drops == {"tool_calls_dropped_by:picky": 4, "dropped_by:picky": 1}
    assert run.health.skipped == {"picky": 2}
    assert [c.name for c in run.rollouts()[0].tool_calls] == ["open"]
