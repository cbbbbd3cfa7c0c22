"""The kit for plugin authors: it finds what they did wrong, and is silent about what they did right."""

import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from PIL import Image as Picture

from rollout_plugins import Drop, Finding, Image, Rollout, Step, ToolCall, hookimpl, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.dedup import Dedup
from rollout_plugins.plugins.images import Images
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.plugins.redact import Redact
from rollout_plugins.testing import (
    call,
    hostile_rollouts,
    make_rollout,
    make_run,
    make_step,
    run_again,
    run_plugins,
    scripted_grpo,
)


class Sink:
    def __init__(self, then=lambda: None):
        self.then = then

    @hookimpl
    def export_traces(self, traces):
        self.then()


def on_rollout(function):
    return type("Plugin", (), {"on_rollout": staticmethod(hookimpl(function))})()


def fails():
    raise ValueError("broken")


def test_a_made_rollout_is_whole_and_consistent():
    rollout = make_rollout()
    assert rollout.reward == sum(rollout.rewards.values())
    (made,) = rollout.tool_calls
    assert made == ToolCall(name="multiply", arguments={"a": 6, "b": 7}, reply=1, result="42")
    assert make_rollout().id != rollout.id


@pytest.mark.parametrize(
    ("given", "follows"),
    [
        ({"completion": "no"}, {"completion": ({"role": "assistant", "content": "no"},), "tool_calls": ()}),
        ({"completion": "no"}, {"completion_is_text": True, "prompt_is_text": False}),
        ({"prompt": "yes?"}, {"prompt": ({"role": "user", "content": "yes?"},), "prompt_is_text": True}),
        ({"completion": []}, {"completion": (), "tool_calls": ()}),
        ({"reward": 0.25}, {"rewards": {"correct": 0.25}}),
        ({"reward": None}, {"rewards": {"correct": None}}),
        ({"rewards": {"a": 1.0, "b": None, "c": -2.0}}, {"reward": -1.0}),
        ({"rewards": {"a": None}}, {"reward": None}),
        ({"rewards": {"a": 1.0}, "reward": 7.0}, {"rewards": {"a": 1.0}, "reward": 7.0}),
    ],
)
def test_what_follows_from_a_field_follows(given, follows):
    made = make_rollout(**given)
    assert {name: getattr(made, name) for name in follows} == follows


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="rewrd"):
        make_rollout(rewrd=1)


def test_steps_and_runs_take_any_field():
    assert make_step(split="eval", step=7) == Step(split="eval", step=7)
    assert make_run(rank=3).rank == 3


def test_each_split_and_step_is_a_batch_and_ids_are_the_librarys():
    batches = []
    plugin = type(
        "P", (), {"rollout_metrics": hookimpl(lambda self, rollouts, step: batches.append((step, rollouts)))}
    )()
    rollouts = [make_rollout(step=1), make_rollout(step=1), make_rollout(step=2), make_rollout(step=2, split="eval")]
    result = run_plugins([plugin], rollouts)
    assert [(s.split, s.step, s.generation, len(r)) for s, r in batches] == [
        ("train", 1, 0, 2), ("train", 2, 1, 1), ("eval", 2, 2, 1),
    ]  # fmt: skip
    assert len({rollout.id for rollout in result.rollouts}) == 4
    assert result.rollouts == [rollout for _, batch in batches for rollout in batch]


def test_no_plugins_and_no_rollouts():
    assert run_plugins([], []).rollouts == []
    result = run_plugins([], [make_rollout()])
    assert len(result.rollouts) == len(result.selected) == len(result.traces) == 1
    assert (result.dropped, result.skipped, result.errors, result.drops, result.metrics) == ({}, {}, [], {}, {})


def forgets(self, rollout):
    replace(rollout, extra={"seen": True})


def looks_on(self, rollout) -> None:
    pass


def sometimes(self, rollout):
    return replace(rollout, extra={"seen": True}) if rollout.reward else None


def drops(self, rollout):
    raise Drop("for the test")


def counts_nothing(self, rollouts):
    {"mine": 1.0}.copy()


@pytest.mark.parametrize(
    ("hook", "function", "warned"),
    [
        ("on_rollout", forgets, "on_rollout of plugin 'forgetful' returned None every time"),
        ("rollout_metrics", counts_nothing, "rollout_metrics of plugin 'forgetful' returned None every time"),
        ("on_rollout", looks_on, None),
        ("on_rollout", sometimes, None),
        ("on_rollout", drops, None),
        ("on_run_start", lambda self: None, None),
    ],
)
def test_a_hook_that_never_returns_anything_is_warned_of(recwarn, hook, function, warned):
    plugin = type("Forgetful", (), {hook: hookimpl(function)})()
    run_plugins([plugin, "images", "redact"], [make_rollout(reward=0.0), make_rollout(reward=1.0)])
    told = [each for each in recwarn if "returned None" in str(each.message)]
    assert [str(each.message).startswith(warned or "-") for each in told] == [True] * bool(warned)
    assert all(each.filename == __file__ for each in told)


def test_plugins_by_name_and_with_options():
    rollouts = [make_rollout() for _ in range(5)]
    assert len(run_plugins(["cap"], rollouts, config={"cap": {"max_per_step": 2}}).selected) == 2


def test_the_run_can_be_kept_and_read_back(tmp_path):
    result = run_plugins([], [make_rollout(), make_rollout()], dir=tmp_path)
    assert list(open_run(tmp_path).rollouts()) == result.rollouts


def test_another_rank_than_the_first():
    class Everywhere(Sink):
        scope = "rank"

    class Somewhere(Sink):
        name = "global"

    ours, theirs = [], []
    rollouts = [make_rollout(rank=1)]
    plugins = [Everywhere(lambda: ours.append(1)), Somewhere(lambda: theirs.append(1))]
    result = run_plugins(plugins, rollouts, run=make_run(rank=1, world_size=2))
    assert (ours, theirs) == ([1], [])
    assert len(result.traces) == 1


def change_message(rollout):
    rollout.completion[0]["content"] = "changed"


def change_columns(rollout):
    rollout.columns["new"] = 1
    return replace(rollout)


@pytest.mark.parametrize("change", [change_message, change_columns])
def test_a_record_changed_in_place_is_an_error(change):
    rollout = make_rollout(columns={"answer": 1}, completion=[{"role": "assistant", "content": "x"}])
    with pytest.raises(TypeError, match="in place; create a new record"):
        run_plugins([on_rollout(change)], [rollout])


@pytest.mark.parametrize("hook", ["on_run_start", "on_tool_call", "on_rollout", "select_rollouts", "format_trace",
                                  "export_traces", "rollout_metrics", "on_run_end"])  # fmt: skip
def test_an_exception_in_any_hook_is_raised_and_says_where(hook):
    plugin = type("Mine", (), {hook: staticmethod(hookimpl(fails))})()
    with pytest.raises(ValueError, match="broken") as caught:
        run_plugins([plugin], [make_rollout()])
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"in {hook} of plugin 'mine'"]
    result = run_plugins([plugin], [make_rollout()], strict=False)
    assert [(found.plugin, found.hook) for found in result.errors] == [("mine", hook)]
    assert len(result.rollouts) == 1


def test_a_sink_that_takes_too_long_is_an_error():
    for_good = threading.Event()
    with pytest.raises(TimeoutError, match=r"did not finish within 0\.2 s"):
        run_plugins([Sink(for_good.wait)], [make_rollout()], seconds=0.2)
    for_good.set()


def test_a_plugin_that_exits_does_not_end_the_test_run():
    def leave(rollout):
        raise SystemExit(3)

    assert isinstance(run_plugins([on_rollout(leave)], [make_rollout()], strict=False).errors[0].error, SystemExit)


def test_dropping_is_not_an_error():
    def drop(rollout):
        raise Drop("because")

    result = run_plugins([on_rollout(drop)], [make_rollout()])
    assert (result.rollouts, list(result.dropped.values())) == ([], ["plugin: because"])


def containers(rollout):
    """What a plugin could change in place."""
    messages = [message for message in (*rollout.prompt, *rollout.completion) if isinstance(message, dict)]
    values = [value for message in messages for value in message.values() if isinstance(value, (dict, list))]
    return [*messages, *values, rollout.columns, rollout.extra, rollout.rewards]


def test_hostile_rollouts_are_new_each_time_and_named():
    first, second = hostile_rollouts(), hostile_rollouts()
    assert [rollout.id for rollout in first] == [rollout.id for rollout in second]
    assert len({rollout.id for rollout in first}) == len(first) > 50
    assert all(isinstance(rollout, Rollout) for rollout in first)
    for one, other in zip(first, second, strict=True):
        assert not {id(part) for part in containers(one)} & {id(part) for part in containers(other)}


@pytest.mark.parametrize("naive", [
    lambda r: r.completion[-1]["content"].upper(),
    lambda r: [c.arguments["a"] for c in r.tool_calls],
    lambda r: int(r.reward),
    lambda r: str(r.columns).encode(),
])  # fmt: skip
def test_hostile_rollouts_break_naive_plugins(naive):
    result = run_plugins([on_rollout(lambda rollout: naive(rollout) and None)], hostile_rollouts(), strict=False)
    assert result.errors


def test_built_in_plugins_bear_the_corpus():
    result = run_plugins(["images", "redact", "dedup", "cap", "metrics", "jsonl"], hostile_rollouts())
    assert len(result.rollouts) == len(hostile_rollouts())
    assert any(isinstance(found, Image) for rollout in result.rollouts for found in rollout.images)


def test_the_kit_needs_no_trainer_and_no_test_runner():
    heavy = ("torch", "transformers", "trl", "datasets", "pytest", "wandb", "trackio")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(" + repr(heavy) + "))\n"
        "from rollout_plugins.testing import *\n"
        "assert run_plugins(['images', 'metrics', 'cap'], hostile_rollouts()).rollouts"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_scripted_grpo_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SetupError, match=r"pip install 'rollout-plugins\[demo\]'"):
        scripted_grpo(tmp_path, ["x"])


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: first
        b: second
    """
    return a * b


def test_scripted_grpo_is_a_real_training_run(tmp_path):
    pytest.importorskip("trl")
    from rollout_plugins import RolloutPluginCallback

    script = [call("multiply", a=6, b=7), "no tools", call("multiply", a=1, b=1), call("divide", a=1), *["so"] * 3]
    trainer = scripted_grpo(tmp_path, script, tools=[multiply], max_steps=2)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    seen = []
    trainer.add_callback(RolloutPluginCallback([on_rollout(lambda rollout: seen.append(rollout.id))], strict=True))
    trainer.train()
    stored = list(open_run(tmp_path / "out").rollouts(step=1))
    assert [len(r.completion) for r in stored] == [3, 1, 3, 3]
    assert stored[0].tool_calls[0].result == "42"
    assert [c.status for r in stored for c in r.tool_calls] == ["ok", "ok", "unknown"]
    assert [r.reward for r in stored] == [0.0, 1.0, 0.0, 1.0]
    assert len(seen) == 8
    assert any(not before[name].equal(value) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(("arguments", "told"), [
    ({"script": []}, "script is empty"),
    ({"script": ["x"], "max_stps": 1}, "no option 'max_stps'"),
])  # fmt: skip
def test_scripted_grpo_refuses_what_it_cannot_do(tmp_path, arguments, told):
    pytest.importorskip("trl")
    with pytest.raises(SetupError, match=told):
        scripted_grpo(tmp_path, **arguments)


# --- run after run --------------------------------------------------------------------------------------------------


class Remembers:
    """Shows each text once, for ever."""

    def __init__(self):
        self.seen = set()

    @hookimpl
    def select_rollouts(self, rollouts):
        new = [r for r in rollouts if str(r.completion) not in self.seen]
        self.seen.update(str(r.completion) for r in rollouts)
        return new


class Forgets(Remembers):
    @hookimpl
    def on_run_start(self):
        self.seen = set()


def test_a_plugin_that_remembers_the_run_before_is_told_so():
    with pytest.raises(AssertionError, match="other skipped than in the first run"):
        run_again([Remembers()], [make_rollout()])
    result = run_again([Forgets()], [make_rollout()])
    assert len(result.selected) == 1


BUILT_IN = [lambda: Cap(4), lambda: Dedup(window=5), Images, Metrics, Redact]


@pytest.mark.parametrize("make", BUILT_IN)
def test_built_in_plugins_begin_anew_with_each_run_and_attempt(make):
    picture = Picture.new("RGB", (4, 4))
    said = [{"role": "assistant", "content": f"sk-proj-{'a1B2c3D4' * 6} {number % 3}"} for number in range(8)]
    made = [
        make_rollout(step=step, completion=(message,), columns={"image": picture}, reward=0.0)
        for step in (1, 2)
        for message in said
    ]
    result = run_again([make()], made)
    assert len(result.rollouts) == 16


def test_findings_are_reported_again_in_the_next_run():
    class Collects:
        def __init__(self):
            self.texts = []

        @hookimpl
        def check_rollouts(self, step):
            return [Finding(check="mine", title="each step", text=f"step {step.step}")]

        @hookimpl
        def on_finding(self, finding, run):
            self.texts.append((run.id, finding.title))

    plugin = Collects()
    run_again([plugin], [make_rollout(completion="same") for _ in range(8)])
    assert [text for _, text in plugin.texts] == ["each step"] * 3
    assert len({run for run, _ in plugin.texts}) == 2
