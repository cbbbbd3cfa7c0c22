"""What a person who only trains gets to read: few numbers in the log, and a line that says where the rollouts are."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import traceback

import pytest
import tqdm
from faults import raises
from rig import call, dataset, half, make
from store_rig import Sink, batch, record, rollouts, started
from tools import multiply

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.run_setup import end_run
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.testing import make_rollout, run_plugins

FEW = {"truncated", "duplicated", "groups/no_spread", "groups/reward_spread", "tools/failed"}
INTERNALS = {"seconds/training_thread", "seconds/worker", "queue_bytes", "bytes_written"}
REWARDS = iter([0.0, 1.0, 2.0, 4.0] * 1000)


def uneven(completions, **kwargs):
    return [next(REWARDS) for _ in completions]


def logged(trainer, *plugins):
    """Names and numbers of ours in each entry of a real training's log."""
    trainer.add_callback(RolloutPluginCallback([*plugins], strict=True, sync=True))
    trainer.train()
    found = [
        {k.partition("rollouts/")[2]: v for k, v in each.items() if "rollouts/" in k}
        for each in trainer.state.log_history
    ]
    return [each for each in found if each]


def with_everything(folder):
    """Tools that fail and tools that do not exist, repeated answers, cut-off answers, groups without spread."""
    script = [call("multiply", {"a": 2}), call("nothing", {}), "same", "x" * 300, *["same"] * 4]
    return make(
        folder, script, tools=[multiply], rewards=uneven, max_steps=2, rows=dataset(4), eval_rows=dataset(4),
        eval_strategy="steps", eval_steps=2, max_completion_length=200,
    )  # fmt: skip


def test_the_log_has_few_plugin_metrics_and_no_zeros(tmp_path):
    log = logged(with_everything(tmp_path), Cap(2), Sink())
    assert len(log) == 3
    for before, numbers in zip([{}, *log], log, strict=False):
        assert numbers.keys() <= FEW
        assert all(number or before[name] for name, number in numbers.items())
    assert set().union(*log) >= {"truncated", "duplicated", "groups/reward_spread", "tools/failed"}
    run = open_run(tmp_path / "out")
    assert (run.health.drops, set(run.health.skipped)) == ({}, {"cap"})
    assert run.health.costs.keys() == INTERNALS
    assert run.health.costs["bytes_written"] > 0


def test_all_brings_everything_back(tmp_path):
    log = logged(with_everything(tmp_path), Metrics("all"), Cap(2), Sink())
    everything = set().union(*log)
    assert everything >= FEW | INTERNALS | {"turns", "empty", "tools/multiply/calls", "text/distinct_1", "cap/kept"}
    assert {"skipped/cap", "correlation/length_reward", "groups/length_spread", "tools/unknown"} <= everything
    assert any(not number for numbers in log for number in numbers.values())


class Says:
    """A plugin whose author did not think of the log."""

    @hookimpl
    def rollout_metrics(self):
        return {"mine": 0}


class Headlines:
    """One that did."""

    headlines = ("shown", "absent")

    def __init__(self, *numbers):
        self._numbers = iter(numbers)

    @hookimpl
    def rollout_metrics(self):
        return {"shown": next(self._numbers), "hidden": 1}


def test_the_first_zero_after_another_value_is_logged(tmp_path):
    """A chart would otherwise end at the last number, as if that still held."""
    line = started(tmp_path, Headlines(0, 2, 4, 0, 0, 3), sync=True)
    logs = []
    for step, generations in enumerate([1, 2, 0, 1, 1, 1], 1):
        for _ in range(generations):
            line.submit(batch(step=step))
        logs.append(line.pop_metrics("train"))
    line.close()
    assert logs == [{}, {"shown": 3.0}, {}, {"shown": 0.0}, {}, {"shown": 3.0}]


def test_zeros_of_a_plugin_without_headlines_are_logged(tmp_path):
    line = started(tmp_path, Says(), Headlines(0), sync=True)
    line.submit(batch())
    assert line.pop_metrics("train") == {"mine": 0.0}
    line.close()


@pytest.mark.parametrize("headlines", [7, [[]], property(lambda self: 1 / 0)])
def test_with_headlines_none_all_metrics_are_logged(tmp_path, headlines):
    plugin = type("Odd", (Says,), {"headlines": headlines})()
    line = started(tmp_path, plugin, sync=True)
    line.submit(batch())
    assert line.pop_metrics("train") == {"mine": 0.0}
    line.close()


def test_losses_have_two_names_in_the_log_and_all_reasons_in_the_run(tmp_path):
    line = started(tmp_path, Headlines(), sync=True)
    lost = []
    for reason in ("first", "second", "third"):
        line.counters.drop(reason, 3)
        lost.append(line.recording_metrics())
    line.close()
    assert lost == [
        {"drops/first": 3},
        {"drops/first": 3, "drops/second": 3},
        {"drops/first": 3, "drops/others": 6},
    ]
    assert open_run(tmp_path).health.drops == {"first": 3, "second": 3, "third": 3}


def test_the_run_has_the_cost_of_recording_over_all_attempts(tmp_path):
    first = record(tmp_path, rollouts(4), rollouts(4)).health.costs
    assert first.keys() == INTERNALS
    assert first["queue_bytes"] >= 1000
    assert first["seconds/worker"] > 0


def test_runs_of_older_versions_lost_nothing_that_was_stored(tmp_path):
    path = record(tmp_path, rollouts(4)).dir / "run.json"
    drops = '"drops": {"skipped_by:cap": 3, "queue_full": 1, "not_trained:stale": 2, "sink_failed:trackio": 4}'
    path.write_text(path.read_text().replace('"drops": {}', drops))
    run = open_run(tmp_path)
    assert (run.health.drops, run.health.skipped) == ({"queue_full": 1}, {"cap": 3})
    assert (run.health.untrained, run.health.unsent) == ({"stale": 2}, {"trackio": 4})


def test_untrained_rollouts_are_not_counted_as_lost(tmp_path, capfd):
    line = started(tmp_path, Headlines())
    line.submit(batch())
    line.count_untrained("stale", 2, None)
    assert line.drain(120)
    metrics = line.recording_metrics(), line.own_metrics()["untrained/stale"]
    end_run(line)
    run = open_run(tmp_path)
    assert (run.health.drops, run.health.untrained, metrics) == ({}, {"stale": 2}, ({}, 2))
    assert "not trained on" in run._repr_html_()
    assert "none lost, not trained on: 2 stale" in capfd.readouterr().err
    assert main(["stats", str(run.dir)]) == main(["doctor", str(run.dir), "--offline"]) == 0
    assert [text.count("not trained on: 2 stale") for text in capfd.readouterr()] == [1, 1]


def test_unsent_rollouts_are_not_counted_as_lost(tmp_path, capfd):
    line = started(tmp_path, Sink(raises))
    line.submit(batch())
    assert line.drain(120)
    metrics = line.recording_metrics(), line.own_metrics()["unsent/sink"]
    end_run(line)
    run = open_run(tmp_path)
    assert (len(run), run.health.drops, run.health.unsent, metrics) == (4, {}, {"sink": 4}, ({"unsent/sink": 4}, 4))
    assert "not sent" in run._repr_html_()
    assert "none lost, not sent: 4 to sink." in capfd.readouterr().err
    assert main(["stats", str(run.dir)]) == main(["doctor", str(run.dir), "--offline"]) == 0
    assert [text.count("not sent") for text in capfd.readouterr()] == [1, 1]


def test_a_failed_plugin_is_named_at_the_end_and_in_the_run(tmp_path, capfd):
    class Judge:
        @hookimpl
        def on_rollout(self, rollout):
            raise OSError("no server")

    with RolloutRecorder(dir=tmp_path, plugins=[Judge()]) as recorder:
        recorder.record(1, [{"prompt": "a", "completion": "b"}] * 4)
    run = open_run(tmp_path)
    assert run.health.plugin_errors == {"judge": 3}
    assert "errors of plugins" in run._repr_html_()
    assert "recorded 4 rollouts, none lost, errors of plugins: 3 judge. To see them:" in capfd.readouterr().err
    assert main(["stats", str(run.dir)]) == 0
    assert "plugin judge failed 3 times\n" in capfd.readouterr().err


def test_a_traceback_shows_only_the_plugins_code(tmp_path, caplog):
    class Raises:
        @hookimpl
        def on_rollout(self, rollout):
            raise OSError("no server")

    class Returns:
        @hookimpl
        def on_rollout(self, rollout):
            return "text"

    with RolloutRecorder(dir=tmp_path, plugins=[Raises(), Returns()]) as recorder:
        recorder.record(1, [{"prompt": "a", "completion": "b"}])
    raised, returned = (record for record in caplog.records if "was skipped" in record.message)
    assert [frame.name for frame in traceback.extract_tb(raised.exc_info[2])] == ["on_rollout"]
    assert returned.message.endswith("TypeError('returned str, expected Rollout or None')")
    assert returned.exc_info is None


def test_a_warning_is_not_printed_into_the_progress_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    logger, screen = logging.getLogger("rollout_plugins"), Terminal()
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", screen)
    with tqdm.tqdm(total=2, file=screen) as bar:
        bar.refresh()
        logger.warning("plugin %r failed", "judge")
    assert "\r\x1b[Jrollout-plugins: plugin 'judge' failed\n" in screen.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with tqdm.tqdm(total=2, file=sys.stderr) as bar:
        bar.refresh()
        logger.warning("beside a bar in a file")
    assert "\nrollout-plugins: beside a bar in a file\n" in sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger.warning("into a file")
    logger.info("not asked for")
    assert sys.stderr.getvalue() == "rollout-plugins: into a file\n"
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    logger.warning("somebody else shows it")
    assert sys.stderr.getvalue() == "rollout-plugins: into a file\n"


# --- where the rollouts are -----------------------------------------------------------------------------------------


def said(capfd):
    return [line for line in re.split(r"[\r\n]", capfd.readouterr().err) if line.startswith("rollout-plugins ")]


def test_a_training_prints_where_its_rollouts_are_at_start_and_end(tmp_path, capfd, monkeypatch):
    def wanders(completions, **kwargs):
        os.chdir("/")
        return half(completions)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    trainer = make(tmp_path, ["a", "b"], rewards=wanders, eval_rows=dataset(4), disable_tqdm=False, max_steps=2)
    callback = RolloutPluginCallback(None)
    trainer.add_callback(callback)
    trainer.train()
    trainer.evaluate()
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    run = open_run(tmp_path / "out")
    command = f"rollouts view out-rollouts/{run.info.id}"
    assert said(capfd) == [
        f"rollout-plugins records every rollout. To see them, now or later: {command}",
        f"rollout-plugins recorded 8 rollouts, none lost. To see them: {command}",
    ]


def test_a_recorder_prints_it_too_with_the_losses(tmp_path, capfd):
    folder = tmp_path / "a folder"
    with RolloutRecorder(dir=folder, run_id="r") as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
        recorder.record(2, object())
    begins, ends = said(capfd)
    assert begins.endswith(f"rollouts view '{folder / 'r'}'")
    assert "recorded 1 rollout, lost: 1 unreadable. To see them: rollouts view" in ends


def test_a_script_that_changed_its_folder_prints_a_path_that_works_in_the_shell(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PWD", "/")
    monkeypatch.chdir(tmp_path)
    with RolloutRecorder(dir="runs", run_id="r") as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
    assert all(line.endswith(f"rollouts view {tmp_path / 'runs' / 'r'}") for line in said(capfd))


def test_in_a_notebook_the_printed_command_is_python(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", sys)
    with RolloutRecorder(dir=tmp_path, run_id="r") as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
    assert all(line.endswith(f": open_run({str(tmp_path / 'r')!r})") for line in said(capfd))


def test_only_rank_0_prints_it_and_only_if_logging_allows(tmp_path, capfd, monkeypatch):
    with RolloutRecorder(dir=tmp_path, run_id="r", rank=1, world_size=2) as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
    monkeypatch.setattr(logging.getLogger("rollout_plugins"), "level", logging.WARNING)
    with RolloutRecorder(dir=tmp_path, run_id="s") as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}])
    assert said(capfd) == []


# --- small mercies --------------------------------------------------------------------------------------------------


def test_no_plugins_may_be_written_as_none(tmp_path):
    asked = [{"prompt": "2+2?", "completion": "4"}]
    with RolloutRecorder(None, dir=tmp_path) as recorder:
        recorder.record(1, asked)
    assert len(open_run(tmp_path)) == 1
    assert len(run_plugins(None, [make_rollout()]).rollouts) == 1


def test_an_unknown_name_in_disable_raises_with_a_suggestion(monkeypatch, caplog):
    monkeypatch.setenv("ROLLOUT_PLUGINS_DISABLE", "metrcs,images,says")
    Plugins([Says()])
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "ROLLOUT_PLUGINS_DISABLE names 'metrcs', which is not a plugin; did you mean 'metrics'?"
    )
