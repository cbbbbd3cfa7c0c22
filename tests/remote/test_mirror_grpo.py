"""A real GRPO run with a mirror trains exactly as one without."""

from mirrored import answers, contents
from rig import make

from rollout_plugins import RolloutPluginCallback, open_run


def trained(folder, **options):
    trainer = make(folder, max_steps=2)
    trainer.add_callback(RolloutPluginCallback(**options))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, open_run(folder / "out"), losses


def test_training_is_the_same_and_the_run_is_there_when_it_ends(tmp_path):
    there = tmp_path / "there"
    plain, _, losses = trained(tmp_path / "a")
    trainer, run, mirrored = trained(tmp_path / "b", mirror=str(there))
    assert mirrored == losses != []
    pairs = zip(plain.model.parameters(), trainer.model.parameters(), strict=True)
    assert all((one == other).all() for one, other in pairs)
    assert contents(there / run.dir.name) == contents(run.dir)
    assert answers(there / run.dir.name) == answers(run.dir) != []
