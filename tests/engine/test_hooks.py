"""Each hook as its reference page has it: what it is given, what its answers do, in which order, and when it fails."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rollout_hookspecs import hooks

from rollout_plugins import Drop, Finding, Panel, RolloutRecorder, Trace, Verdict, hookimpl, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.store.findings import read_findings
from rollout_plugins.testing import make_rollout, make_run, make_step, run_plugins, show_panels


def plugin(name, **hooks):
    """An object with these functions as its hooks."""
    marked = {hook: staticmethod(hookimpl(function)) for hook, function in hooks.items()}
    return type(name, (), {"name": name, **marked})()


def run_folder(place):
    return Path(open_run(place).dir)


def fails():
    raise RuntimeError("broken")


def errors(result):
    return [(found.plugin, found.hook, type(found.error)) for found in result.errors]


def test_hook_on_run_start():
    seen = []
    first = plugin("first", on_run_start=lambda run: seen.append(run.model), on_rollout=lambda: seen.append("rollout"))
    sink = plugin("sink", on_run_start=lambda run: seen.append(run.id), export_traces=lambda: None)
    run_plugins([first, sink], [make_rollout()], run=make_run(id="mine", model="m"))
    assert seen.index("m") < seen.index("rollout")
    assert "mine" in seen


def test_hook_on_tool_call():
    def rename(tool_call, rollout, step):
        assert rollout.tool_calls == (tool_call,)
        assert step.step == 1
        return replace(tool_call, name="renamed")

    def see(tool_call):
        seen.append(tool_call.name)

    seen = []
    result = run_plugins([plugin("a", on_tool_call=rename), plugin("b", on_tool_call=see)], [make_rollout()])
    assert seen == ["renamed"]
    assert [call.name for call in result.rollouts[0].tool_calls] == ["renamed"]

    def drop():
        raise Drop("noise")

    result = run_plugins([plugin("a", on_tool_call=drop), plugin("b", on_tool_call=see)], [make_rollout()])
    assert result.rollouts[0].tool_calls == ()
    assert result.rollouts[0].completion == make_rollout().completion
    assert result.drops == {"tool_calls_dropped_by:a": 1}
    assert len(seen) == 1


def test_hook_on_rollout():
    def number(rollout, step):
        assert step.seen == 3
        return replace(rollout, extra={"number": rollout.index})

    def drop(rollout):
        if rollout.extra["number"] == 1:
            raise Drop("unlucky")

    see = []
    chain = [
        plugin("a", on_rollout=number),
        plugin("b", on_rollout=drop),
        plugin("c", on_rollout=lambda rollout: see.append(rollout.extra["number"])),
    ]
    result = run_plugins(chain, [make_rollout() for _ in range(3)])
    assert see == [rollout.extra["number"] for rollout in result.rollouts] == [0, 2]
    assert list(result.dropped.values()) == ["b: unlucky"]
    assert result.drops == {"dropped_by:b": 1}


def test_hook_select_rollouts(tmp_path):
    def best(rollouts, step):
        assert step.gathered
        return sorted(rollouts, key=lambda rollout: -rollout.reward)[:2]

    class Reasons:
        name = "second"

        @hookimpl
        def select_rollouts(self, rollouts):
            self.skip_reasons = {rollouts[1].id: "one is enough"}
            return rollouts[:1]

    rollouts = [make_rollout(reward=float(i)) for i in range(3)]
    result = run_plugins([plugin("best", select_rollouts=best), Reasons()], rollouts, dir=tmp_path)
    low, middle, high = result.rollouts
    assert [rollout.id for rollout in result.selected] == [high.id]
    assert result.skipped == {low.id: "skipped by best: not selected", middle.id: "skipped by second: one is enough"}
    stored = list(open_run(tmp_path).rollouts())
    assert [rollout.reward for rollout in stored] == [0.0, 1.0, 2.0]
    assert [rollout.marks for rollout in stored] == [rollout.marks for rollout in result.rollouts]
    assert low.marks == {"sinks": "skipped by best: not selected"}


def test_hook_format_trace():
    def answers(rollout):
        return Trace(rollout_id=rollout.id, messages=rollout.completion[-1:]) if rollout.reward else None

    never = plugin("b", format_trace=lambda rollout: asked.append(rollout.reward))
    asked = []
    result = run_plugins([plugin("a", format_trace=answers), never], [make_rollout(reward=r) for r in (1.0, 0.0)])
    assert [len(trace.messages) for trace in result.traces] == [1, 4]
    assert asked == [0.0]


def test_hook_export_traces():
    threads, sent = set(), []

    def send(traces, step):
        threads.add(threading.current_thread())
        sent.append((step.step, [trace.rollout_id for trace in traces]))

    rollouts = [make_rollout(step=step) for step in (1, 1, 2)]
    only = plugin("only", select_rollouts=lambda rollouts: [] if rollouts[0].step == 2 else None)
    result = run_plugins([plugin("a", export_traces=send), only], rollouts)
    assert sent == [(1, [rollout.id for rollout in result.rollouts[:2]])]
    assert threading.current_thread() not in threads
    broken = run_plugins([plugin("a", export_traces=fails)], rollouts, strict=False)
    assert (broken.drops, broken.unsent) == ({}, {"a": 3})
    assert len(broken.traces) == 3


def test_hook_rollout_metrics():
    def count(rollouts, step):
        return {"count": len(rollouts), "step": step.step}

    more = plugin("b", rollout_metrics=lambda: {"flag": True})
    rollouts = [make_rollout(step=step) for step in (1, 1, 1, 2)] + [make_rollout(split="eval")]
    result = run_plugins([plugin("a", rollout_metrics=count), more], rollouts)
    assert result.metrics == {
        "rollouts/count": 2.0, "rollouts/step": 1.5, "rollouts/flag": 1.0,
        "eval_rollouts/count": 1.0, "eval_rollouts/step": 1.0, "eval_rollouts/flag": 1.0,
    }  # fmt: skip


def test_hook_check_rollouts(tmp_path):
    def look(rollouts, step, table):
        assert table["id"].to_pylist() == [rollout.id for rollout in rollouts]
        return [Finding(check="mine", title="always", text=f"found at step {step.step}")]

    checks = [plugin("a", check_rollouts=look), plugin("b", check_rollouts=lambda: None)]
    run_plugins(checks, [make_rollout(step=step) for step in (1, 1, 2)], dir=tmp_path)
    assert [found.text for found in read_findings(run_folder(tmp_path))] == ["found at step 1"]
    again = open_run(tmp_path).check(plugins=checks).findings
    assert [found.text for found in again if found.check == "mine"] == ["found at step 1"]


def test_hook_check_log(tmp_path):
    def look(step, values):
        return [Finding(check="mine", title=f"at {step}", text=str(values))] if values["loss"] > 1 else None

    with RolloutRecorder([plugin("a", check_log=look)], dir=tmp_path, autoload=False, sync=True) as recorder:
        for step, loss in ((1, 0.5), (2, 2.0)):
            recorder.record(step, [{"prompt": "a", "completion": "b"}])
            recorder.log(step, {"loss": loss, "name": "text"})
    assert [found.text for found in read_findings(run_folder(tmp_path))] == ["{'loss': 2.0}"]


def test_hook_on_finding(tmp_path):
    seen = []
    found = [Finding(check="mine", title="always", text="wrong")]
    react = plugin("b", on_finding=lambda finding, run: seen.append((finding.text, run.id)))
    steps = [make_rollout(step=step) for step in (1, 2)]
    run_plugins([plugin("a", check_rollouts=lambda: found), react], steps, run=make_run(id="mine"), dir=tmp_path)
    assert seen == [("wrong", "mine")]


def test_hook_check_run(tmp_path):
    def judge(run):
        return Verdict(check="length", verdict="unobserved", rollouts=len(run), why="too short")

    run_plugins([], [make_rollout()], dir=tmp_path)
    verdicts = open_run(tmp_path).check(plugins=[plugin("a", check_run=judge)]).verdicts
    assert [(v.verdict, v.rollouts, v.why) for v in verdicts if v.check == "length"] == [
        ("unobserved", 1, "too short")
    ]


def test_hook_register_hosts():
    from rollout_plugins.engine.discover import Plugins
    from rollout_plugins.hosts import host_for

    class Mine:
        name = "mine"

        def matches(self, trainer):
            return trainer == "my trainer"

    host = Mine()
    hosts = Plugins([plugin("a", register_hosts=lambda: [host])], autoload=False).manager.hook.register_hosts()
    assert host_for("my trainer", [one for some in hosts for one in some]) is host


def test_hook_show_rollout():
    rollout, run = make_rollout(), make_run(id="mine")
    one = plugin("a", show_rollout=lambda rollout, run: [Panel(title=f"{run.id} {rollout.id}", turn=1)])
    other = plugin("b", show_rollout=lambda: None)
    last = plugin("c", show_rollout=lambda: [Panel(table=[("a", "b"), (1, None)], turn=99, replaces=True)])
    first, second = show_panels([one, other, last], rollout, run=run)
    assert (first.title, first.turn) == (f"mine {rollout.id}", 1)
    assert (second.table, second.turn, second.replaces) == ((("a", "b"), (1, None)), None, False)
    with pytest.raises(RuntimeError, match="broken"):
        show_panels([plugin("a", show_rollout=fails)], rollout)


def test_hook_on_run_end():
    seen = []
    sink = plugin("sink", export_traces=lambda: seen.append("traces"), on_run_end=lambda run: seen.append(run.id))
    broken = plugin("broken", on_run_end=fails)
    last = plugin("last", on_run_end=lambda: seen.append("last"))
    result = run_plugins([broken, sink, last], [make_rollout()], run=make_run(id="end"), strict=False)
    assert sorted(seen) == ["end", "last", "traces"]
    assert seen.index("traces") < seen.index("end")
    assert errors(result) == [("broken", "on_run_end", RuntimeError)]


def test_hook_on_run_stored():
    seen = []

    def look(run, seconds):
        (attempt,) = open_run(run.dir).attempts
        journals = list(Path(run.dir).glob("data/*/*.arrows"))
        seen.append((attempt["ended"] is not None, journals, len(open_run(run.dir)), 0 < seconds <= 60))

    broken = plugin("broken", on_run_stored=fails)
    sink = plugin("sink", on_run_stored=look, export_traces=lambda: None, on_run_end=lambda: seen.append("end"))
    result = run_plugins([broken, sink], [make_rollout()], strict=False)
    assert seen == ["end", (True, [], 1, True)]
    assert errors(result) == [("broken", "on_run_stored", RuntimeError)]


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("on_rollout", 1), ("on_rollout", make_rollout(id="other")), ("on_tool_call", "call"), ("format_trace", {}),
        ("select_rollouts", 5), ("select_rollouts", [make_rollout(id="new")]), ("rollout_metrics", [1]),
        ("rollout_metrics", {"x": "many"}),
    ],
)  # fmt: skip
def test_a_result_of_the_wrong_type_affects_only_that_call(hook, answer):
    given = plugin("wrong", **{hook: lambda: answer})
    result = run_plugins([given], [make_rollout()], strict=False)
    assert [(found.plugin, found.hook) for found in result.errors] == [("wrong", hook)]
    assert result.rollouts[0].tool_calls == make_rollout().tool_calls
    assert len(result.rollouts) == len(result.selected) == len(result.traces) == 1


def test_a_plugin_that_fails_three_times_in_a_row_is_disabled():
    calls = []

    def sometimes(rollout):
        calls.append(rollout.index)
        if rollout.index != 2:
            raise ValueError

    run_plugins([plugin("a", on_rollout=sometimes)], [make_rollout() for _ in range(9)], strict=False)
    assert calls == [0, 1, 2, 3, 4, 5]


def test_the_order_is_the_list_then_installed_plugins_and_markers_move_one_to_an_end():
    order = []

    def hook(name, **options):
        def on_rollout():
            order.append(name)

        return type(name, (), {"name": name, "on_rollout": staticmethod(hookimpl(**options)(on_rollout))})()

    run_plugins([hook("a"), hook("z", trylast=True), hook("b"), hook("f", tryfirst=True)], [make_rollout()])
    assert order == ["f", "a", "b", "z"]


def test_a_newer_argument_with_a_default_is_filled_only_where_the_hook_has_it():
    seen = []

    def on_rollout(rollout, step=None, weather="unknown"):
        seen.append((step, weather))

    run_plugins([plugin("a", on_rollout=on_rollout)], [make_rollout()])
    (step, weather), *_ = seen
    assert step == make_step(seen=1)
    assert weather == "unknown"


def test_a_deprecated_hook_warns_with_its_replacement_and_the_plugins_place(monkeypatch):
    warning = DeprecationWarning("on_run_end goes away in 3.0; use on_run_close")
    monkeypatch.setitem(hooks.on_run_end.rollout_plugins_spec, "warn_on_impl", warning)
    with pytest.warns(DeprecationWarning, match="use on_run_close") as caught:
        run_plugins([plugin("old", on_run_end=lambda: None)], [])
    assert Path(caught[0].filename).name == "test_hooks.py"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("@hookimpl\n def on_rolout(self): ...", "did you mean 'on_rollout'"),
        ("def on_rollout(self): ...", "put @hookimpl on it"),
        ("def other(self): ...", "no method marked @hookimpl"),
        ("@hookimpl\n def on_rollout(self, rollouts): ...", "on_rollout offers (rollout, step)"),
        ("@hookimpl\n async def on_rollout(self): ...", "is async"),
        ("@hookimpl(wrapper=True)\n def on_rollout(self): yield", "is a wrapper"),
        ("@hookimpl\n def on_rollout(self, *, rollout): ...", "remove the * before it"),
        ("@hookimpl\n def on_rollout(self, **more): ...", "name the arguments it needs"),
    ],
)
def test_a_plugin_that_cannot_work_is_refused_with_the_fix(body, told):
    namespace = {"hookimpl": hookimpl}
    exec(f"class Mine:\n {body}", namespace)
    with pytest.raises(SetupError) as caught:
        run_plugins([namespace["Mine"]()], [])
    assert "plugin 'mine'" in str(caught.value)
    assert told in str(caught.value)


def test_a_class_that_needs_arguments_and_a_wrong_option_are_refused():
    class Needs:
        def __init__(self, folder): ...

        @hookimpl
        def on_rollout(self): ...

    with pytest.raises(SetupError, match=r"Needs, which needs arguments: pass an instance, Needs\(folder=…\)"):
        run_plugins([Needs], [])
    with pytest.raises(SetupError, match="has no option 'max_per_stp'; did you mean 'max_per_step'"):
        run_plugins(["cap"], [], config={"cap": {"max_per_stp": 3}})
    with pytest.raises(SetupError, match="no plugin named 'capp' is installed; did you mean 'cap'"):
        run_plugins(["capp"], [])
