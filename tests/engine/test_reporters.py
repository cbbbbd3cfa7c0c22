"""Sinks that stand for a dashboard of the trainer: they run if its `report_to` names it, whoever wrote them."""

import pytest
from loaded import order
from rig import make

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, open_run
from rollout_plugins.cli.plugins import listing
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.errors import SetupError

MLFLOW = """
    from rollout_plugins import hookimpl

    received = []

    class MlflowSink:
        report_to = "mlflow"

        def __init__(self, experiment="none"):
            self.experiment = experiment

        @hookimpl
        def export_traces(self, traces):
            received.extend(traces)
"""


def trained(folder, report_to, **options):
    """The trainer after its training; what the trainer itself would send to the dashboard is left out."""
    trainer = make(folder)
    trainer.args.report_to = report_to
    trainer.add_callback(RolloutPluginCallback(**options))
    trainer.train()
    return trainer


@pytest.mark.parametrize(("name", "autoload"), [("mlflow", True), ("mlflow", False), ("rollouts-in-mlflow", True)])
def test_a_third_party_sink_runs_if_the_trainer_reports_to_its_name(install, tmp_path, name, autoload):
    install("x-mlflow", {name: "x_mlflow:MlflowSink"}, {"x_mlflow": MLFLOW})
    trained(tmp_path, ["mlflow"], autoload=autoload, config={"cap": {"max_per_step": 3}})
    import x_mlflow

    assert len(open_run(tmp_path / "out")) == 4
    assert len(x_mlflow.received) == 3  # capped, as for every dashboard


@pytest.mark.needs(part="checks")
@pytest.mark.parametrize("report_to", [[], ["tensorboard"], ["wandbb"]])
def test_it_does_not_run_if_the_trainer_reports_elsewhere(install, tmp_path, report_to):
    install("x-mlflow", {"mlflow": "x_mlflow:MlflowSink"}, {"x_mlflow": MLFLOW})
    trained(tmp_path, report_to)
    import x_mlflow

    assert x_mlflow.received == []
    assert order(Plugins()) == ["checks", "images", "metrics"]


def test_it_runs_if_the_user_names_it(install, tmp_path):
    install("x-mlflow", {"mlflow": "x_mlflow:MlflowSink"}, {"x_mlflow": MLFLOW})
    trained(tmp_path, [], plugins=["mlflow"])
    import x_mlflow

    assert len(x_mlflow.received) == 4


def test_it_accepts_options_and_the_listing_shows_when_it_runs(install):
    install("x-mlflow", {"mlflow": "x_mlflow:MlflowSink"}, {"x_mlflow": MLFLOW})
    plugins = Plugins(config={"mlflow": {"experiment": "first"}})
    plugins.add_reporters(["mlflow"])
    assert plugins.manager.get_plugin("mlflow").experiment == "first"
    reasons = {row["name"]: row["reason"] for row in listing()}
    assert reasons["mlflow"] == "runs if report_to has 'mlflow', or when asked for by name"
    assert reasons["trackio"] == "runs if report_to has 'trackio', or when asked for by name"


@pytest.mark.parametrize("name", ["cap", "wandb", "mlflow"])
def test_options_for_a_sink_or_a_cap_that_does_not_run_are_refused_with_the_fix(install, tmp_path, name):
    install("x-mlflow", {"mlflow": "x_mlflow:MlflowSink"}, {"x_mlflow": MLFLOW})
    option = {"cap": "max_per_step", "wandb": "max_rows", "mlflow": "experiment"}[name]
    text = f"config has options for {name!r}, which does not run here: add it with plugins=\\[{name!r}\\], or remove"
    with pytest.raises(SetupError, match=text):
        trained(tmp_path, [], config={name: {option: 3}})
    with pytest.raises(SetupError, match=text):
        RolloutRecorder(dir=tmp_path, config={name: {option: 3}})


def test_a_wrong_option_of_a_plugin_that_is_added_later_is_refused_at_once():
    with pytest.raises(
        SetupError, match="config of plugin 'cap' has no option 'max_per_stepp'; did you mean 'max_per"
    ):
        RolloutPluginCallback(config={"cap": {"max_per_stepp": 3}})
    with pytest.raises(SetupError, match="config of plugin 'wandb' has no option 'max_row'; did you mean"):
        RolloutPluginCallback(config={"wandb": {"max_row": 3}})
