"""Which plugins run, in which order, and one sentence with the fix for everything that can be wrong with one."""

import functools
import sys
import textwrap
from dataclasses import dataclass

import pytest

from rollout_plugins import hookimpl
from rollout_plugins.engine.check import HOOKS
from rollout_plugins.engine.discover import Plugins, listing
from rollout_plugins.engine.environment import flag
from rollout_plugins.errors import RolloutPluginsError, SetupError


def hooks_of(**functions):
    """An instance of a plugin class with these methods, each marked."""
    return type("Mine", (), {name: hookimpl(function) for name, function in functions.items()})()


class Fine:
    name = "fine"

    @hookimpl
    def on_rollout(self, rollout):
        return None


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with entry points on the path, as pip would, and forget its modules afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(distribution, entries, modules=None, version="1.0"):
        folder = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "\n".join(f"{name} = {address}" for name, address in entries.items())
        (folder / "entry_points.txt").write_text(f"[rollout_plugins]\n{lines}\n")
        for name, text in (modules or {}).items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    yield add
    for name in [name for name in sys.modules if name.startswith("x_")]:
        del sys.modules[name]


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


def fault(*plugins, **options):
    """What is said about these plugins, in one sentence on one line."""
    with pytest.raises(SetupError) as caught:
        Plugins(plugins, autoload=False, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, RolloutPluginsError)
    return text


def order(plugins):
    return [name for name, _ in reversed(plugins.manager.list_name_plugin())]


# --- what can be wrong with a plugin: each sentence names the plugin, the hook, the place and the fix ----------------


def test_a_misspelt_hook_is_refused_with_the_one_that_was_meant():
    text = fault(hooks_of(on_rolout=lambda self, rollout: None))
    assert text.startswith("plugin 'mine' cannot be used: ")
    assert "'on_rolout', which is not a hook; did you mean 'on_rollout'?" in text
    assert "test_loading.py:" in text


def test_a_hook_that_is_like_none_is_refused_with_all_there_are():
    text = fault(hooks_of(zzz=lambda self: None))
    assert all(hook in text for hook in HOOKS)


def test_a_method_with_a_hooks_name_and_no_mark_is_refused():
    class Mine:
        @hookimpl
        def on_rollout(self):
            pass

        def on_run_end(self):
            pass

    text = fault(Mine())
    assert "Mine.on_run_end (test_loading.py:" in text
    assert "has a hook's name but no @hookimpl: put @hookimpl on it" in text


def test_a_plugin_without_hooks_is_refused():
    class Mine:
        pass

    assert (
        fault(Mine())
        == f"plugin 'mine' cannot be used: it has no method marked @hookimpl; the hooks are {', '.join(HOOKS)}"
    )
    assert "plugin 'nonetype' cannot be used" in fault(None)


def test_an_unknown_argument_is_refused_with_those_on_offer():
    text = fault(hooks_of(on_rollout=lambda self, rolout, step: None))
    assert "asks for 'rolout', but on_rollout offers (rollout, step)" in text


def test_an_argument_with_a_default_is_filled_when_the_hook_has_it_and_left_alone_when_not(tmp_path):
    from store_rig import record, rollouts

    seen = []
    plugin = hooks_of(on_rollout=lambda self, rollout, step=None, later="mine": seen.append((step.split, later)))
    record(tmp_path, rollouts(1), plugins=(plugin,))
    assert seen == [("train", "mine")]


def test_a_class_whose_arguments_are_missing_is_refused_with_both_ways_to_give_them():
    class Judge:
        def __init__(self, model, level=1):
            self.model = model

        @hookimpl
        def on_rollout(self, rollout):
            return None

    text = fault(Judge)
    assert text == (
        "plugin 'judge' is the class Judge, which needs arguments: pass an instance, Judge(model=…), "
        "or config={'judge': {…}}"
    )
    made = Plugins([Judge], config={"judge": {"model": "x"}}, autoload=False)
    assert made.manager.get_plugin("judge").model == "x"


def test_a_class_that_needs_nothing_is_instantiated():
    assert isinstance(Plugins([Fine], autoload=False).manager.get_plugin("fine"), Fine)


def test_a_class_that_raises_while_it_is_made_is_refused_by_name():
    class Mine(Fine):
        def __init__(self):
            sys.exit("no licence")

    assert fault(Mine) == "plugin 'fine' could not be made: Mine raised SystemExit: no licence"


async def _async(self, rollout):
    return None


async def _async_generator(self, rollout):
    yield rollout


def _generator(self, rollouts):
    yield from rollouts


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (
            hooks_of(on_rollout=_async),
            "is async; hooks are plain functions: write def on_rollout(…)",
        ),
        (hooks_of(on_rollout=_async_generator), "is async; hooks are plain functions"),
        (hooks_of(select_rollouts=_generator), "is a generator; return a value instead of yielding"),
        (
            hooks_of(on_rollout=lambda self, *, rollout: None),
            "takes 'rollout' as keyword-only: remove the * before it",
        ),
        (
            hooks_of(on_rollout=lambda self, rollout, /: None),
            "takes 'rollout' as positional-only: remove the / after it",
        ),
        (
            hooks_of(on_rollout=lambda self, *args: None),
            "takes *args; name the arguments it needs from (rollout, step)",
        ),
        (
            hooks_of(on_rollout=lambda self, **kw: None),
            "takes **kw; name the arguments it needs from (rollout, step)",
        ),
    ],
)
def test_a_function_that_could_not_work_as_a_hook_is_refused(plugin, says):
    text = fault(plugin)
    assert says in text
    assert "(test_loading.py:" in text


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
def test_a_wrapper_is_refused(option):
    def on_rollout(self, rollout):
        return (yield)

    plugin = type("Mine", (), {"on_rollout": hookimpl(**{option: True})(on_rollout)})()
    assert "is a wrapper; return a value or raise Drop instead" in fault(plugin)


def test_every_fault_of_a_plugin_is_told_at_once():
    text = fault(hooks_of(on_rolout=lambda self: None, on_run_end=lambda self, ru: None))
    assert "on_rolout" in text
    assert "'ru'" in text


def test_two_plugins_of_one_name_are_refused():
    assert fault("cap", "cap") == "plugins holds two plugins named 'cap'; keep one of them"
    assert "two plugins named 'dedup'" in fault(
        Plugins(["dedup"], autoload=False).manager.get_plugin("dedup"), "dedup"
    )


def test_two_instances_of_one_class_both_run():
    assert order(Plugins([Fine(), Fine(), Fine()], autoload=False)) == ["fine", "fine-2", "fine-3"]


def test_the_same_instance_twice_and_equal_instances_are_refused_with_the_fix():
    @dataclass
    class Judge:
        level: int

        @hookimpl
        def on_rollout(self, rollout):
            return None

    one = Fine()
    assert fault(one, one) == (
        "plugins 'fine-2' and 'fine' are equal, so one of them is enough; "
        "if they differ, write @dataclass(eq=False) on their class"
    )
    assert "are equal" in fault(Judge(1), Judge(1))
    assert len(order(Plugins([Judge(1), Judge(2)], autoload=False))) == 2


def test_a_wrong_config_key_is_refused_with_those_accepted():
    text = fault("cap", config={"cap": {"max_per_stepp": 3}})
    assert "config of plugin 'cap' has no option 'max_per_stepp'; did you mean 'max_per_step'? Accepted: " in text


@pytest.mark.parametrize("what", ["config", "disable"])
def test_a_name_that_is_no_plugin_is_refused_with_the_likely_one(what):
    text = fault(**{what: {"dedupp": {}} if what == "config" else ["dedupp"]})
    assert text.startswith(f"{what} names 'dedupp', which is not a plugin; did you mean 'dedup'?")


def test_options_for_a_plugin_that_was_given_as_an_instance_are_refused():
    text = fault(Fine(), config={"fine": {"level": 3}})
    assert text == "config has options for plugin 'fine', which was given as an instance; give them to the instance"


@pytest.mark.needs(part="redact")
def test_options_for_a_plugin_that_does_not_run_are_refused():
    """Whoever sets what `redact` looks for counts on it."""
    text = fault(config={"redact": {"patterns": ["gadget-\\d+"]}})
    assert text == "config has options for 'redact', which runs only if asked for: plugins=['redact']"
    Plugins(config={name: {} for name in ("trackio", "wandb", "cap", "images")})  # those run where they have work
    Plugins(["redact"], disable=["redact"], config={"redact": {}})


def test_options_that_are_no_dict_are_refused():
    assert fault(config={"cap": 8}) == "config of plugin 'cap' is 8; give a dict of its options"


def test_a_plugin_that_is_not_installed_is_refused_with_the_likely_one():
    assert fault("dedupe").startswith("no plugin named 'dedupe' is installed; did you mean 'dedup'? Accepted: ")


@pytest.mark.parametrize("plugins", ["cap", 5])
def test_plugins_that_are_no_list_are_refused(plugins):
    with pytest.raises(SetupError, match=r"plugins takes a list of names and instances, found "):
        Plugins(plugins)


def test_a_property_is_never_run_while_a_plugin_is_loaded():
    class Mine(Fine):
        @property
        def model(self):
            ran.append("model")

        @functools.cached_property
        def other(self):
            ran.append("other")

    ran: list = []
    Plugins([Mine()], autoload=False)
    assert ran == []


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


# --- entry points ---------------------------------------------------------------------------------------------------


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
def test_a_broken_installed_plugin_is_skipped_with_the_reason_and_raised_when_asked_for_by_name(install, caplog, how):
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


def test_of_two_distributions_with_one_plugin_name_the_first_runs_and_it_is_said(install, caplog):
    install("x-one", {"same": "x_good:Plugin"}, {"x_good": GOOD})
    install("x-two", {"same": "x_good:instance"})
    assert Plugins().found["same"].distribution == "x-one"
    assert "two installed plugins are named 'same', of x-one and of x-two; the first one is used" in caplog.text


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
    assert (plugins.found["marked"].status, plugins.found["marked"].reason) == ("disabled", reason)
    assert "marked" not in order(Plugins(["marked"], disable=name if by == "disable" else ()))
    assert "x_marked" not in sys.modules


def test_the_environment_switches_off_even_what_the_code_asks_for(monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_DISABLE", "fine,images")
    assert order(Plugins([Fine()])) == ["metrics"]


def test_without_autoload_only_what_is_asked_for_runs_and_is_imported(install, monkeypatch):
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


# --- order ----------------------------------------------------------------------------------------------------------


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


def test_plugins_run_in_the_users_order_then_installed_ones_by_name_then_built_in_ones(install):
    install("aa-last", {"zz": "x_good:Plugin"}, {"x_good": GOOD})
    install("zz-first", {"aa": "x_good:Plugin"})
    calls = []
    plugins = Plugins([Named("second", calls), "dedup", Named("first", calls)])
    assert order(plugins) == ["second", "dedup", "first", "aa", "zz", "images", "metrics"]
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


def test_what_was_disabled_or_taken_out_does_not_come_back_with_a_late_plugin():
    from rollout_plugins.engine.counters import Counters
    from rollout_plugins.engine.dispatch import Dispatcher

    plugins = Plugins([Fine(), Named("mine", [])], disable=["console"])
    dispatcher = Dispatcher(plugins.manager, Counters())
    dispatcher.remove("mine", "was told to")
    assert not plugins.add("console")
    assert plugins.add("cap")
    assert order(plugins) == ["fine", "mine", "images", "metrics", "cap"]
    assert "mine" not in [impl.plugin_name for impl in dispatcher.implementations("on_rollout")]


# --- the listing ----------------------------------------------------------------------------------------------------

FIELDS = ["name", "version", "source", "hooks", "order", "status", "reason"]


@pytest.mark.needs(part="redact")
@pytest.mark.needs(part="scout")
@pytest.mark.needs(part="remote")
def test_the_listing_has_a_stable_form_and_says_of_every_plugin_whether_it_would_run(install, monkeypatch):
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


def test_with_autoload_off_the_listing_says_what_would_not_even_load(install, monkeypatch):
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
    assert next(record(tmp_path, rollouts(1), autoload=True).rollouts()).extra == {"seen": True}
