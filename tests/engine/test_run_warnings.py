"""What recording warns of is stored with the run, and shown by whatever shows the run."""

import logging
from weakref import WeakSet

import pytest
from store_rig import batch, record, rollouts, run_in, started

from rollout_plugins import RolloutRecorder, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.engine import run_warnings

logger = logging.getLogger("rollout_plugins")


@pytest.fixture(autouse=True)
def _logger_is_enabled(monkeypatch):
    """Undo what another library did to our logger: `logging.config` disables every logger that exists."""
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    logger.manager._clear_cache()


@pytest.fixture(autouse=True)
def _no_run_of_another_test_is_open(monkeypatch):
    """A training that an earlier test broke off is still open, and would take the warnings that precede a run."""
    monkeypatch.setattr(run_warnings, "_open", WeakSet())
    run_warnings._before_a_run.clear()


class Fails:
    name = "judge"

    @hookimpl
    def on_rollout(self, rollout):
        raise OSError("no server")


FAILED = "plugin 'judge' failed in on_rollout and was skipped: OSError('no server')"
OFF = "plugin 'judge' is disabled for the rest of the run: it failed 3 times in a row, last in on_rollout: "
OFF += "OSError('no server')"


@pytest.mark.needs(part="view")
@pytest.mark.needs(part="web")
def test_warnings_are_stored_with_the_run_and_shown_by_stats_report_and_viewer(tmp_path, capsys):
    from rollout_plugins.view.pages.about import _blocks

    run = record(tmp_path, rollouts(4), plugins=(Fails(),))
    assert [text.startswith(begin) for text, begin in zip(run.health.warnings, (FAILED, OFF), strict=True)] == [
        True,
        True,
    ]
    assert FAILED in run._repr_html_().replace("&#x27;", "'").replace("&#39;", "'")
    assert main(["stats", str(run.dir)]) == 0
    assert f"warning: {FAILED}" in capsys.readouterr().err
    assert main(["report", str(run.dir), "-o", str(tmp_path / "run.html")]) == 0
    assert any(FAILED in span[0] for block in _blocks(run) if block.label == "warnings" for span in block.spans)


def test_a_warning_before_the_run_belongs_to_the_next_run_alone(tmp_path):
    record(tmp_path / "before", rollouts(1))
    logger.warning("plugin %r was skipped", "bad")
    assert record(tmp_path / "first", rollouts(1)).health.warnings == {"plugin 'bad' was skipped": 1}
    assert record(tmp_path / "second", rollouts(1)).health.warnings == {}


def test_a_warning_at_the_end_and_one_that_comes_up_often_are_counted(tmp_path):
    line = started(tmp_path)
    for _ in range(3):
        logger.warning("the same")
    logger.info("not a warning")
    line.submit(batch(build=lambda: 1 / 0, count=4))
    line.close()
    warnings = open_run(tmp_path).health.warnings
    assert warnings["the same"] == 3
    assert any("4 rollouts of step 1 could not be built" in text for text in warnings)


def test_each_attempt_has_its_own_warnings_up_to_a_limit(tmp_path):
    line = started(tmp_path)
    for number in range(300):
        logger.warning("warning %d", number)
        line.submit(batch(step=number))
        assert line.drain(60)
    line.start(run_in(tmp_path, attempt=2, resumed_from=1), 1)
    line.close()
    first, second = open_run(tmp_path).attempts
    assert (len(first["warnings"]), second["warnings"]) == (100, {})


@pytest.mark.needs(part="redact")
def test_a_secret_in_a_warning_is_not_stored(tmp_path):
    secret = "hf_" + "QwErTyUiOp" * 4
    with RolloutRecorder(["redact"], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "a", "completion": "b"}])
        logger.warning("cannot reach https://x/?token=%s", secret)
    (file,) = tmp_path.rglob("run.json")
    assert secret not in file.read_text()
    assert any(text.startswith("cannot reach https://x/") for text in open_run(tmp_path).health.warnings)
