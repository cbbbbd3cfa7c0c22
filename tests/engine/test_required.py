"""A plugin that must see everything: what it could not see is neither stored nor sent, and counted."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rig import make
from store_rig import collected

from rollout_plugins import Finding, RolloutPluginCallback, Trace, hookimpl, open_run
from rollout_plugins.hosts.grpo import HOST
from rollout_plugins.reading.find_runs import find_runs


class Sink:
    def __init__(self):
        self.got = []

    @hookimpl
    def export_traces(self, traces):
        self.got += traces


@pytest.mark.needs(part="redact")
def test_nothing_passes_a_redact_whose_own_function_hangs(tmp_path, monkeypatch, clock):
    from rollout_plugins.plugins.redact import Redact

    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.3")
    sink, released = Sink(), threading.Event()

    def hangs(text):
        clock.now += 1
        released.wait(600)
        return text

    trainer = make(tmp_path, ["my key is secret"], max_steps=3)
    trainer.add_callback(RolloutPluginCallback([Redact(function=hangs), sink]))
    trainer.train()
    released.set()
    run = open_run(tmp_path / "out")
    assert len(run) == len(sink.got) == 0
    assert run.health.drops["dropped_by:redact"] + run.health.drops.get("not_seen_by_required_plugin", 0) == 12


class Picky:
    name = "picky"

    def __init__(self, *, required):
        self.required = required

    @hookimpl
    def on_rollout(self, rollout):
        if rollout.index == 1:
            raise ValueError("not this one")


@pytest.mark.parametrize(("required", "stored"), [(True, 3), (False, 4)])
def test_a_failure_of_a_required_plugin_drops_only_that_rollout(tmp_path, required, stored):
    trainer = make(tmp_path)
    trainer.add_callback(RolloutPluginCallback([Picky(required=required)]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert len(run) == stored
    assert run.health.drops.get("dropped_by:picky", 0) == 4 - stored


KEY = "sk-" + "a1B2" * 8


class Leaky:
    """Adds a secret wherever a plugin can add anything, as late as it can."""

    name = "leaky"

    def __init__(self):
        self.alerts = []
        self.skip_reasons = {}

    @hookimpl(trylast=True)
    def on_rollout(self, rollout):
        return replace(rollout, extra={**rollout.extra, "late": KEY})

    @hookimpl(trylast=True)
    def select_rollouts(self, rollouts, step):
        first, second, third, *others = rollouts
        self.skip_reasons = {rollout.id: f"because of {KEY}" for rollout in others}
        return [
            replace(first, marks={**first.marks, "why": KEY}),
            replace(second, columns={**second.columns, "later": KEY}),
            third,
        ]

    @hookimpl
    def rollout_metrics(self):
        self.alerts.append(f"look at {KEY}")
        return {f"score/{KEY}": 1.0, "fine": 2.0}

    @hookimpl
    def check_rollouts(self):
        return [Finding(check="leaky", title=f"title {KEY}", text=f"text {KEY}", advice=f"advice {KEY}")]

    @hookimpl
    def format_trace(self, rollout):
        if rollout.index == 2:
            message = {"role": "user", "content": KEY}
            return Trace(rollout_id=rollout.id, messages=(message,), metadata={KEY: 1}, spans=({"input": KEY},))
        return None


class Failing:
    name = "failing"

    @hookimpl
    def on_rollout(self, rollout):
        raise ValueError(f"could not log in with {KEY}")


class Curious:
    """Keeps whatever a sink is told."""

    def __init__(self):
        self.told = []

    @hookimpl
    def on_run_start(self, run):
        self.told.append(run)

    @hookimpl
    def export_traces(self, traces, step):
        self.told += [*traces, step]
        raise ConnectionError(f"refused: {KEY}")

    @hookimpl
    def on_run_end(self, run):
        self.told.append(run)

    def alert(self, title, text):
        self.told.append(text)


def search(query: str) -> str:
    """
    Search the web.

    Args:
        query: what to look for; the key is sk-a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2
    """
    return "nothing"


class Chatty:
    """Hands everything over, and says of each batch that something was lost, with the secret in the reason."""

    def __init__(self, emit):
        self.emit = emit

    def __call__(self, batch):
        self.emit(batch)
        self.emit.lost(f"refused by {KEY}", 2)

    def __getattr__(self, name):
        return getattr(self.emit, name)


class ChattyHost:
    name = "chatty"

    def matches(self, trainer):
        return HOST.matches(trainer)

    def attach(self, trainer, emit, options):
        return HOST.attach(trainer, Chatty(emit), options)

    def describe(self, trainer):
        return HOST.describe(trainer)


class BringsHost:
    name = "brings"

    @hookimpl
    def register_hosts(self):
        return [ChattyHost()]

    @hookimpl
    def rollout_metrics(self):
        return {"fine": 1.0}


def scored(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.needs(part="redact")
def test_the_reason_for_a_loss_is_filtered_too(tmp_path, caplog):
    caplog.set_level("DEBUG", logger="rollout_plugins")
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback(["redact", BringsHost()]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops) == (12, {"refused by [REDACTED:openai]": 6})
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert "rollouts/drops/refused by [REDACTED:openai]" in logged
    assert not any("a1B2" in name for name in logged)
    assert "a1B2" not in caplog.text
    assert all(b"a1B2" not in path.read_bytes() for path in Path(run.dir).rglob("*") if path.is_file())


class Speechless:
    """Required, and fails over each text it is asked about."""

    name = "speechless"
    required = True

    @hookimpl
    def on_rollout(self, rollout):
        return None

    def clean(self, value):
        if isinstance(value, str):
            raise TypeError("cannot say")


@pytest.mark.parametrize("strict", [False, True])
def test_a_reason_that_cannot_be_filtered_is_counted_without_its_text(tmp_path, strict):
    trainer = make(tmp_path)
    callback = RolloutPluginCallback([Speechless(), BringsHost()], strict=strict)
    trainer.add_callback(callback)
    with suppress(TypeError):
        trainer.train()
    callback.flush()
    del trainer, callback
    collected(lambda: open_run(tmp_path / "out").health.drops == {"not_observed": 2})


@pytest.mark.needs(part="redact")
def test_a_secret_leaves_by_no_path(tmp_path, caplog):
    caplog.set_level("DEBUG", logger="rollout_plugins")

    def named(completions, **kwargs):
        return scored(completions)

    named.__name__ = KEY
    sink = Curious()
    trainer = make(tmp_path, tools=[search], rewards=[scored, named])
    trainer.add_callback(RolloutPluginCallback(["redact", Leaky(), Failing(), sink]))
    trainer.train()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts())
    assert [rollout.extra["late"] for rollout in stored] == ["[REDACTED:openai]"] * 4
    assert stored[0].marks["why"] == "[REDACTED:openai]"
    assert stored[3].marks["sinks"] == "skipped by leaky: because of [REDACTED:openai]"
    assert set(run.info.reward_names) == set(stored[0].rewards) == {"scored", "[REDACTED:openai]"}
    traces = [told for told in sink.told if isinstance(told, Trace)]
    assert len(traces) == 3
    assert "look at [REDACTED:openai]" in sink.told
    logged = [name for entry in trainer.state.log_history for name in entry if name.startswith("rollouts/")]
    assert "rollouts/score/[REDACTED:openai]" in logged
    leaving = [*stored, *sink.told, run.info, *logged, *(record.getMessage() for record in caplog.records)]
    assert [told for told in leaving if "a1B2" in str(told)] == []
    assert "a1B2" not in caplog.text
    assert "ValueError at test_required.py" in caplog.text
    assert all(b"a1B2" not in path.read_bytes() for path in Path(run.dir).rglob("*") if path.is_file())
    assert run.info.tools[0]["function"]["name"] == "search"


def test_without_a_required_plugin_errors_are_shown_in_full(tmp_path, caplog):
    trainer = make(tmp_path)
    trainer.add_callback(RolloutPluginCallback([Failing()]))
    trainer.train()
    assert f"could not log in with {KEY}" in caplog.text


class Guard:
    """Required, and cannot say what may leave."""

    name = "guard"
    required = True

    @hookimpl
    def on_rollout(self, rollout):
        return None

    def clean(self, value):
        if isinstance(value, str):
            return
        raise RuntimeError(f"broken by {KEY}")


def test_a_value_that_a_required_plugin_fails_to_clean_is_withheld(tmp_path, caplog):
    sink = Curious()
    trainer = make(tmp_path, rewards=[scored])
    trainer.add_callback(RolloutPluginCallback([Guard(), Leaky(), sink]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (len(run), run.info.model, run.info.settings) == (4, "", {})
    assert "RuntimeError at test_required.py" in caplog.text
    told = [*run.rollouts(), *sink.told, caplog.text]
    assert [rollout.marks.get("why") for rollout in run.rollouts()] == [None] * 4
    assert [each for each in told if "broken by" in str(each)] == []


class Shortening(Guard):
    name = "shortening"

    def clean(self, value):
        return value[:-1] if isinstance(value, list) else None


@pytest.mark.parametrize("strict", [False, True])
def test_a_partly_cleaned_value_is_not_stored(tmp_path, strict):
    trainer = make(tmp_path, rewards=[scored])
    callback = RolloutPluginCallback([Shortening(), Leaky(), Curious()], strict=strict)
    trainer.add_callback(callback)
    with suppress(Exception):
        trainer.train()
    callback.flush()
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)  # strict=True broke it off
    stored = list(open_run(tmp_path / "out").rollouts())
    assert len(stored) == 4
    assert [rollout.id for rollout in stored if KEY in str(rollout.marks)] == []


@pytest.mark.needs(part="redact")
def test_a_function_that_hangs_on_the_run_ends_nothing(tmp_path, monkeypatch, clock):
    from rollout_plugins.plugins.redact import Redact

    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.3")
    released = threading.Event()

    def hangs(text):
        clock.now += 1
        released.wait(600)
        return text

    trainer = make(tmp_path)
    sink = Curious()
    trainer.add_callback(RolloutPluginCallback([Redact(function=hangs), sink]))
    trainer.train()
    released.set()
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops) == (0, {"dropped_by:redact": 4})
    assert run.info.model == ""
    assert [told.model for told in sink.told] == ["", ""]


@pytest.mark.needs(part="redact")
def test_a_required_plugin_that_was_disabled_runs_again_in_the_next_run(tmp_path, clock):
    """Otherwise the next run would store what nobody searched for secrets."""

    from rollout_plugins.plugins.redact import Redact

    repaired = threading.Event()

    def careful(text):
        if not repaired.is_set():
            clock.now += 1000
            repaired.wait(600)
        return text.replace("secret", "[GONE]")

    trainer = make(tmp_path, ["my key is secret"])
    trainer.add_callback(RolloutPluginCallback([Redact(function=careful)]))
    trainer.train()
    repaired.set()
    trainer.train()
    first, second = (open_run(path) for path in find_runs(tmp_path / "out-rollouts"))
    assert (len(first), len(second)) == (0, 4)
    assert {rollout.completion[0]["content"] for rollout in second.rollouts()} == {"my key is [GONE]"}
