"""Plugins that are installed: when they run, in which order, and what the listing says of them."""

import functools
import importlib
import sys
import textwrap

import pytest
from loaded import Fine, order

from rollout_plugins import hookimpl
from rollout_plugins.cli.plugins import listing
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.env_vars import flag
from rollout_plugins.errors import SetupError

GOOD = """
    from rollout_plugins import hookimpl

    class Plugin:
        def __init__(self, level=1):
            self.level = level

        @hookimpl
        def on_rollout(self, rollout):
            return None

    @hookimpl
    def on_rollout(rollout):
        return None

    instance = Plugin(5)
"""


def test_decorated_hooks_and_modules_and_hooks_under_another_name_are_plugins(install):
    def logged(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)

        return inner

    class Mine:
        @hookimpl
        @logged
        def on_rollout(self, rollout):
            return None

        @hookimpl(specname="on_run_end")
        def finish(self):
            pass

    install("x-mod", {}, {"x_mod": GOOD})
    import x_mod

    assert order(Plugins([Mine(), x_mod], autoload=False)) == ["mine", "x_mod"]


def test_an_installed_plugin_runs_whether_class_instance_or_module(install):
    install("x-good", {"klass": "x_good:Plugin", "inst": "x_good:instance", "mod": "x_good"}, {"x_good": GOOD})
    plugins = Plugins()
    assert order(plugins)[:3] == ["inst", "klass", "mod"]
    assert plugins.manager.get_plugin("klass").level == 1
    assert Plugins(config={"klass": {"level": 7}}).manager.get_plugin("klass").level == 7
    assert "which is not a class and takes none" in _raised(lambda: Plugins(["inst"], config={"inst": {"level": 7}}))


def _raised(action):
    with pytest.raises(SetupError) as caught:
        action()
    return str(caught.value)


BROKEN = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "exits": ("import sys; sys.exit('no GPU')", "SystemExit: no GPU"),
    "lacks a module": ("import not_there_at_all", "No module named 'not_there_at_all'"),
    "lacks the attribute": ("x = 1", "has no attribute 'Plugin'"),
    "bad signature": (GOOD.replace("self, rollout", "self, rolout"), "asks for 'rolout', but on_rollout offers"),
    "needs arguments": (
        GOOD.replace("level=1", "level").replace("Plugin(5)", "1"),
        "which needs arguments: pass an instance, Plugin(level=…)",
    ),
    "raises when made": (
        GOOD.replace("self.level = level", "raise OSError('no disk')").replace("Plugin(5)", "1"),
        "no disk",
    ),
}


@pytest.mark.parametrize("how", sorted(BROKEN))
def test_a_broken_installed_plugin_is_skipped_with_the_reason_and_raised_if_named(install, caplog, how):
    text, says = BROKEN[how]
    install("x-bad", {"bad": "x_bad:Plugin"}, {"x_bad": text})
    install("x-good", {"good": "x_good:Plugin"}, {"x_good": GOOD})
    assert order(Plugins())[0] == "good"
    assert "plugin 'bad' (x-bad) was skipped: " in caplog.text
    assert says in caplog.text
    row = next(row for row in listing() if row["name"] == "bad")
    assert row["status"] == "failed"
    assert says in row["reason"]
    raised = _raised(lambda: Plugins(["bad"]))
    assert "'bad'" in raised
    assert says in raised


def test_of_two_distributions_with_one_plugin_name_the_first_runs_with_a_warning(install, caplog):
    install("x-one", {"same": "x_good:Plugin"}, {"x_good": GOOD})
    install("x-two", {"same": "x_good:instance"})
    assert Plugins().installed["same"].distribution == "x-one"
    assert (
        "two installed plugins are named 'same', one of x-one and one of x-two; the first one is used" in caplog.text
    )


@pytest.mark.parametrize("name", ["marked", "x-mark"])
@pytest.mark.parametrize("by", ["disable", "environment"])
def test_a_disabled_plugin_is_not_even_imported(install, monkeypatch, name, by):
    install("x-mark", {"marked": "x_marked:Plugin"}, {"x_marked": GOOD})
    if by == "environment":
        monkeypatch.setenv("ROLLOUT_PLUGINS_DISABLE", f" other, {name} ")
    plugins = Plugins(disable=[name] if by == "disable" else ())
    assert "marked" not in order(plugins)
    assert "x_marked" not in sys.modules
    reason = "by disable=" if by == "disable" else "by ROLLOUT_PLUGINS_DISABLE"
    assert (plugins.installed["marked"].status, plugins.installed["marked"].reason) == ("disabled", reason)
    assert "marked" not in order(Plugins(["marked"], disable=name if by == "disable" else ()))
    assert "x_marked" not in sys.modules


@pytest.mark.needs(part="checks")
def test_the_environment_disables_even_plugins_that_the_code_names(monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_DISABLE", "fine,images")
    assert order(Plugins([Fine()])) == ["checks", "metrics"]


@pytest.mark.needs(part="checks")
def test_an_installed_plugin_that_is_passed_as_an_object_runs_once(install):
    within = textwrap.dedent(GOOD).replace("Plugin", "Judge") + "Judge.__module__ = 'x_top.inner'\n"
    install("x-top", {"judge": "x_top:Judge"}, {"x_top": within})
    judge = importlib.import_module("x_top").Judge()
    assert order(Plugins([judge])) == ["judge", "checks", "images", "metrics"]


def test_without_autoload_only_named_plugins_are_imported_and_run(install, monkeypatch):
    install("x-mark", {"marked": "x_marked:Plugin", "other": "x_other:Plugin"}, {"x_marked": GOOD, "x_other": GOOD})
    assert order(Plugins(["marked"], autoload=False)) == ["marked"]
    monkeypatch.setenv("ROLLOUT_PLUGINS_AUTOLOAD", "0")
    assert order(Plugins(["marked"])) == ["marked"]
    assert "x_other" not in sys.modules


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("true", True), ("0", False), ("no", False), ("OFF", False), ("", None)]
)
def test_yes_and_no_in_the_environment(monkeypatch, text, is_on):
    monkeypatch.setenv("ROLLOUT_PLUGINS_STRICT", text)
    for default in (True, False):
        assert flag("STRICT", default=default) is (default if is_on is None else is_on)


class Named:
    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    @hookimpl
    def on_run_end(self, run):
        self.calls.append(self.name)

    @hookimpl
    def select_rollouts(self, rollouts):
        self.calls.append(self.name)


@pytest.mark.needs(part="checks")
def test_plugins_run_in_the_users_order_then_installed_ones_by_name_then_built_in_ones(install):
    install("aa-last", {"zz": "x_good:Plugin"}, {"x_good": GOOD})
    install("zz-first", {"aa": "x_good:Plugin"})
    calls = []
    plugins = Plugins([Named("second", calls), "dedup", Named("first", calls)])
    assert order(plugins) == ["second", "dedup", "first", "aa", "zz", "checks", "images", "metrics"]
    plugins.manager.hook.on_run_end(run=None)
    assert calls == ["second", "first"]


def test_a_plugin_added_late_runs_after_all_others():
    from rollout_plugins.engine.counters import Counters
    from rollout_plugins.engine.dispatch import Dispatcher
    from rollout_plugins.engine.pipeline import Pipeline

    calls = []
    plugins = Plugins([Named("mine", calls), "dedup"])
    Pipeline(plugins)
    assert plugins.add("cap")
    assert not plugins.add("cap")
    dispatcher = Dispatcher(plugins.manager, Counters())
    chain = [impl.plugin_name for impl in dispatcher.implementations("select_rollouts")]
    assert chain == ["mine", "dedup", "cap"]
    assert [impl.plugin_name for impl in dispatcher.implementations("format_trace")] == ["trace"]
    assert [impl.plugin_name for impl in dispatcher.implementations("on_rollout")] == ["images"]


@pytest.mark.needs(part="checks")
def test_disabled_plugins_stay_disabled_when_another_is_added():
    from rollout_plugins.engine.counters import Counters
    from rollout_plugins.engine.dispatch import Dispatcher

    plugins = Plugins([Fine(), Named("mine", [])], disable=["console"])
    dispatcher = Dispatcher(plugins.manager, Counters())
    dispatcher.remove("mine", "was told to")
    assert not plugins.add("console")
    assert plugins.add("cap")
    assert order(plugins) == ["fine", "mine", "checks", "images", "metrics", "cap"]
    assert "mine" not in [impl.plugin_name for impl in dispatcher.implementations("on_rollout")]


FIELDS = ["name", "version", "source", "hooks", "order", "status", "reason"]


@pytest.mark.needs(part="redact")
@pytest.mark.needs(part="scout")
@pytest.mark.needs(part="remote")
def test_the_listing_has_a_stable_form_and_the_status_of_every_plugin(install, monkeypatch):
    install("x-good", {"good": "x_good:Plugin", "off": "x_good:Plugin"}, {"x_good": GOOD}, version="2.1")
    install("x-bad", {"bad": "x_bad:Plugin"}, {"x_bad": "raise RuntimeError('boom')"})
    monkeypatch.setenv("ROLLOUT_PLUGINS_DISABLE", "off")
    rows = {row["name"]: row for row in listing()}
    assert all(list(row) == FIELDS for row in rows.values())
    assert rows["good"] == {
        "name": "good", "version": "2.1", "source": "x-good", "hooks": ["on_rollout"], "order": 1, "status": "active", "reason": "",
    }  # fmt: skip
    assert (rows["off"]["status"], rows["off"]["reason"], rows["off"]["hooks"]) == (
        "disabled",
        "by ROLLOUT_PLUGINS_DISABLE",
        [],
    )
    assert rows["bad"]["status"] == "failed"
    assert rows["images"]["status"] == "active"
    assert rows["cap"]["status"] == "available"
    assert rows["cap"]["reason"] == "runs when asked for by name"
    assert rows["mirror"]["status"] == "available"
    assert "needs arguments: pass an instance, Mirror(to=…)" in rows["mirror"]["reason"]
    assert {
        "images",
        "dedup",
        "cap",
        "redact",
        "metrics",
        "trackio",
        "wandb",
        "console",
        "jsonl",
        "scout",
    } <= rows.keys()


def test_without_autoload_the_listing_shows_plugins_that_would_not_load(install, monkeypatch):
    install("x-bad", {"bad": "x_bad:Plugin"}, {"x_bad": GOOD.replace("self, rollout", "self, rolout")})
    monkeypatch.setenv("ROLLOUT_PLUGINS_AUTOLOAD", "0")
    rows = {row["name"]: row for row in listing()}
    assert rows["bad"]["status"] == "unavailable"
    assert "asks for 'rolout'" in rows["bad"]["reason"]
    assert rows["images"]["status"] == "available"


def test_a_listed_plugin_does_run(install, tmp_path):
    from store_rig import record, rollouts

    text = """
        from dataclasses import replace
        from rollout_plugins import hookimpl

        @hookimpl
        def on_rollout(rollout):
            return replace(rollout, extra={"seen": True})
    """
    install("x-sees", {"sees": "x_sees"}, {"x_sees": text})
    assert record(tmp_path, rollouts(1), autoload=True)[0].extra == {"seen": True}
