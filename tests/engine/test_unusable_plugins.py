"""Installed plugins that fail in unusual ways, or take a built-in name: training starts, and it is said."""

import asyncio
import logging

import pytest
from loaded import order
from store_rig import record, rollouts

from rollout_plugins import RolloutRecorder, hookimpl, open_run
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.errors import SetupError

SINK = """
    from rollout_plugins import hookimpl

    received = []

    class Sink:
        @hookimpl
        def export_traces(self, traces):
            received.extend(traces)
"""
PANIC = """
    class Panic(BaseException):
        pass
"""
HOOK = """
        @hookimpl
        def on_rollout(self, rollout):
            return None
"""
UNUSABLE = {
    "panics at import": PANIC + "    raise Panic('at import')",
    "is skipped by pytest": "import pytest; pytest.skip('no GPU', allow_module_level=True)",
    "is cancelled at import": "import asyncio; raise asyncio.CancelledError",
    "panics when made": PANIC + "    class Plugin:\n        def __init__(self): raise Panic('when made')",
    "raises for every attribute": SINK.replace("Sink", "Plugin") + "\n        def __getattr__(self, name): raise RuntimeError('no ' + name)",
    "panics for every attribute": PANIC + SINK.replace("Sink", "Plugin") + "\n        def __getattr__(self, name): raise Panic(name)",
    "cannot be compared": SINK.replace("Sink", "Plugin") + "\n        def __eq__(self, other): raise RuntimeError('not comparable')",
    "compares like an array": SINK.replace("Sink", "Plugin") + "\n        def __eq__(self, other): import numpy; return numpy.zeros(2)",
}  # fmt: skip


@pytest.mark.parametrize("how", sorted(UNUSABLE))
def test_an_installed_plugin_that_cannot_be_used_is_skipped_and_named(install, tmp_path, caplog, how):
    install("x-bad", {"bad": "x_bad:Plugin"}, {"x_bad": UNUSABLE[how]})
    install("x-good", {"good": "x_good:Sink"}, {"x_good": SINK})
    run = record(tmp_path, rollouts(4), autoload=True)
    assert (len(run), run.health.drops) == (4, {})
    import x_good

    assert len(x_good.received) == 4
    assert "plugin 'bad' (x-bad) was skipped: " in caplog.text
    with pytest.raises(SetupError, match="'bad'"):
        Plugins(["bad"])


def test_ctrl_c_during_the_import_of_a_plugin_passes(install):
    install("x-bad", {"bad": "x_bad:Plugin"}, {"x_bad": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        Plugins()


@pytest.mark.parametrize("attribute", ["scope", "seal_seconds", "require_redact", "report_to"])
def test_a_property_that_raises_is_replaced_by_its_default_and_named(tmp_path, caplog, attribute):
    class Odd:
        @hookimpl
        def export_traces(self, traces):
            received.extend(traces)

    def panic(self):
        raise asyncio.CancelledError

    setattr(Odd, attribute, property(panic))
    received = []
    with RolloutRecorder([Odd()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "a", "completion": "b"}])
    assert (len(received), open_run(tmp_path).health.drops) == (1, {})
    assert f"Odd.{attribute} raised" in caplog.text


class Trace:
    """A sink whose class has the name of the built-in plugin that formats traces."""

    def __init__(self):
        self.received = []

    @hookimpl
    def export_traces(self, traces):
        self.received.extend(traces)


def test_a_plugin_named_like_the_built_in_trace_disables_no_sink(tmp_path):
    sink = Trace()
    run = record(tmp_path, rollouts(4), plugins=(sink,))
    assert len(sink.received) == 4
    assert order(Plugins([Trace()], autoload=False)) == ["trace-2"]
    other = Trace()
    assert run.export(to=other).sent == 4
    assert len(other.received) == 4


def test_built_in_names_are_reserved_and_a_plugin_that_takes_one_is_refused_with_the_fix(install, tmp_path, caplog):
    install("a-first", {"trace": "x_good:Sink", "metrics": "x_good:Sink", "good": "x_good:Sink"}, {"x_good": SINK})
    record(tmp_path, rollouts(4), autoload=True)
    import x_good

    assert len(x_good.received) == 4
    for name in ("trace", "metrics"):
        assert (
            f"plugin {name!r} of a-first was skipped: {name!r} is the name of a built-in plugin; "
            "give its entry point another name" in caplog.text
        )
    assert Plugins().installed["metrics"].distribution == "rollout-plugins"
    with pytest.raises(
        SetupError, match="'trace' is the name of a built-in plugin; give its entry point another name"
    ):
        Plugins(["trace"])


def test_no_project_is_created_for_a_plugin_with_a_built_in_name(tmp_path):
    from rollout_plugins.scaffold import new_plugin

    with pytest.raises(SetupError, match="rollout-plugins has a plugin named 'trace' already: choose another name"):
        new_plugin("rollout-trace", folder=tmp_path)


def test_an_empty_plugin_is_still_registered_once_when_another_is_added():
    class Empty(list):
        @hookimpl
        def on_rollout(self, rollout):
            return None

    plugins = Plugins([Empty()], autoload=False)
    assert plugins.add("cap")
    assert order(plugins) == ["empty", "cap"]


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "rollout_plugins")
