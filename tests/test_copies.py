"""Trainers that are copies of TRL's source, as Unsloth makes them: the same rollouts as from TRL's own class."""

import logging
from importlib import import_module

from copies import copy_of, facts
from test_trainers import LATE, kinds, trained
from trainers import KINDS, make

from rollout_plugins import RolloutPluginCallback, open_run


@kinds
def test_a_copy_gives_the_rollouts_of_the_class_it_was_copied_from(tmp_path, monkeypatch, caplog, name):
    kind = KINDS[name]
    module = import_module(kind.module)
    monkeypatch.setattr(module, kind.trainer, copy_of(getattr(module, kind.trainer)))
    callback = RolloutPluginCallback(tokens=True, rendered=True)
    trainer = make(tmp_path, name, [callback] if LATE[name].startswith("in callbacks") else None)
    if not LATE[name].startswith("in callbacks"):
        trainer.add_callback(callback)
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    run, pristine = open_run(tmp_path / "out"), trained(name, LATE[name])
    stored = list(run.rollouts(tokens=True))
    assert [facts(rollout) for rollout in stored] == [facts(rollout) for rollout in pristine.rollouts]
    assert len(stored) > 0
    assert run.drops == pristine.run.drops == {}
    assert [
        r.getMessage() for r in caplog.records if r.name == "rollout_plugins" and "expected" in r.getMessage()
    ] == []
