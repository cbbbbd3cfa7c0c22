"""What tests of a callback's life share."""

from rig import dataset

from rollout_plugins import RolloutPluginCallback, hookimpl


def warnings(caplog):
    """Return what the library logged, without the findings of checks, which tiny trainings have many of."""
    records = [record for record in caplog.records if record.name == "rollout_plugins"]
    return [record.getMessage() for record in records if not hasattr(record, "is_finding")]


def assert_true_to(run, trainer):
    """Every rollout of a trainer of the rig, with what it was scored, beside its row and with its lengths."""
    stored = list(run.rollouts(superseded=True))
    assert [list(r.prompt) for r in stored] == [row["prompt"] for row in trainer.truth]
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.columns["number"] for r in stored] == [row["row"]["number"] for row in trainer.truth]
    assert all(r.completion_tokens and r.finish in {"stop", "length"} for r in stored)
    assert run.health.drops == {}


def given(way):
    return [RolloutPluginCallback(["console"])] if way == "callbacks" else None


def add(trainer, way):
    """Add a callback in one of the possible ways, unless it was given; the callback."""
    if way == "class":
        trainer.add_callback(RolloutPluginCallback)
    elif way == "instance":
        trainer.add_callback(RolloutPluginCallback(["console"]))
    elif way == "trainer":
        trainer.add_callback(RolloutPluginCallback(trainer=trainer))
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutPluginCallback))


def numbered(rows):
    return dataset(rows, number=list(range(rows)))


class Sink:
    name = "sink"

    def __init__(self):
        self.traces, self.steps = [], []

    @hookimpl
    def export_traces(self, traces, step):
        self.traces += traces
        self.steps.append(step)
