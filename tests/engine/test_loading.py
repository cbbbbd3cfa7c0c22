"""What can be wrong with a plugin: each sentence names the plugin, the hook, the place and the fix."""

import functools
import sys
from dataclasses import dataclass

import pytest
from loaded import Fine, order

from rollout_plugins import hookimpl
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.plugin_checks import HOOKS
from rollout_plugins.errors import RolloutPluginsError, SetupError


def hooks_of(**functions):
    """An instance of a plugin class with these methods, each marked."""
    return type("Mine", (), {name: hookimpl(function) for name, function in functions.items()})()


def fault(*plugins, **options):
    """What is said about these plugins, in one sentence on one line."""
    with pytest.raises(SetupError) as caught:
        Plugins(plugins, autoload=False, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, RolloutPluginsError)
    return text


def test_a_misspelt_hook_is_refused_with_a_suggestion():
    text = fault(hooks_of(on_rolout=lambda self, rollout: None))
    assert text.startswith("plugin 'mine' cannot be used: ")
    assert "'on_rolout', which is not a hook; did you mean 'on_rollout'?" in text
    assert "test_loading.py:" in text


def test_an_unknown_hook_is_refused_with_a_list_of_hooks():
    text = fault(hooks_of(zzz=lambda self: None))
    assert all(hook in text for hook in HOOKS)


def test_a_method_with_a_hooks_name_but_no_marker_is_refused():
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


def test_an_unknown_argument_is_refused_with_the_available_ones():
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


def test_a_class_that_raises_when_instantiated_is_refused_by_name():
    class Mine(Fine):
        def __init__(self):
            sys.exit("no licence")

    assert fault(Mine) == "plugin 'fine' could not be created: Mine raised SystemExit: no licence"


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


def test_every_fault_of_a_plugin_is_in_one_error():
    text = fault(hooks_of(on_rolout=lambda self: None, on_run_end=lambda self, ru: None))
    assert "on_rolout" in text
    assert "'ru'" in text


def test_two_plugins_of_one_name_are_refused():
    assert fault("cap", "cap") == "plugins has two plugins named 'cap'; keep one of them"
    assert "two plugins named 'dedup'" in fault(
        Plugins(["dedup"], autoload=False).manager.get_plugin("dedup"), "dedup"
    )


def test_two_instances_of_one_class_both_run():
    assert order(Plugins([Fine(), Fine(), Fine()], autoload=False)) == ["fine", "fine-2", "fine-3"]


@pytest.mark.needs(part="checks")
@pytest.mark.parametrize("name", ["Images", "Metrics"])
def test_an_unrelated_class_with_the_name_of_an_installed_plugin_runs_beside_it(name):
    chance = type(name, (Fine,), {"name": ""})
    ours = name.lower()
    assert order(Plugins([chance()])) == order(Plugins([chance])) == [f"{ours}-2", "checks", "images", "metrics"]
    assert order(Plugins([chance(), chance()])) == [f"{ours}-2", f"{ours}-3", "checks", "images", "metrics"]
    assert order(Plugins([chance()], disable=[ours])) == [
        f"{ours}-2",
        *(name for name in ("checks", "images", "metrics") if name != ours),
    ]


@pytest.mark.needs(part="checks")
def test_a_subclass_of_an_installed_plugin_takes_its_place():
    from rollout_plugins.plugins.metrics import Metrics

    assert order(Plugins([type("Metrics", (Metrics,), {})()])) == ["metrics", "checks", "images"]
    assert order(Plugins([type("Own", (Metrics,), {})()])) == ["own", "checks", "images", "metrics"]


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
    assert "config of plugin 'cap' has no option 'max_per_stepp'; did you mean 'max_per_step'?" in text


@pytest.mark.parametrize("what", ["config", "disable"])
def test_an_unknown_plugin_name_is_refused_with_a_suggestion(what):
    text = fault(**{what: {"dedupp": {}} if what == "config" else ["dedupp"]})
    assert text.startswith(f"{what} names 'dedupp', which is not a plugin; did you mean 'dedup'?")


def test_options_for_a_plugin_that_was_passed_as_an_instance_are_refused():
    text = fault(Fine(), config={"fine": {"level": 3}})
    assert text == "config has options for plugin 'fine', which was given as an instance; give them to the instance"


@pytest.mark.needs(part="redact")
def test_options_for_a_plugin_that_does_not_run_are_refused():
    """Whoever sets what `redact` looks for counts on it."""
    text = fault(config={"redact": {"patterns": ["gadget-\\d+"]}})
    assert text == "config has options for 'redact', which runs only if asked for: plugins=['redact']"
    Plugins(config={name: {} for name in ("trackio", "wandb", "cap", "images")})  # those run where they have work
    Plugins(["redact"], disable=["redact"], config={"redact": {}})


def test_options_that_are_not_a_dict_are_refused():
    assert fault(config={"cap": 8}) == "config of plugin 'cap' is 8; give a dict of its options"
    assert fault(config=["cap"]) == "config is ['cap']; give a dict of options for each plugin, by its name"


def test_a_plugin_that_is_not_installed_is_refused_with_a_suggestion():
    assert fault("dedupe").startswith("no plugin named 'dedupe' is installed; did you mean 'dedup'?")


@pytest.mark.parametrize("plugins", ["cap", 5])
def test_plugins_that_are_not_a_list_are_refused(plugins):
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
