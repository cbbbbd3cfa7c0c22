"""kill -9 in the middle of a real training: what was handed over is there, and the next run works and says so."""

import json
import logging

import pytest
from processes import run_worker
from rig import make, tiny_model

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow

TIMES = 8


def test_killed_trainings_lose_no_submitted_rollout(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("RIG_MODEL", tiny_model(tmp_path))
    run_worker("killed", tmp_path, TIMES)
    for number in range(TIMES):
        folder = tmp_path / str(number)
        lines = (folder / "truth.jsonl").read_text().splitlines(keepends=True)
        truth = [row for line in lines if line.endswith("\n") for row in json.loads(line)]
        run = open_run(folder / "out")
        stored = [[list(r.prompt), list(r.completion), r.advantage] for r in run.rollouts()]
        assert len(truth) > 0
        assert stored[: len(truth)] == truth
        assert len(stored) % 4 == 0
        assert not run.health.damaged
    trainer = make(folder, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    assert f"its {len(stored)} rollouts are readable" in caplog.text
    assert len(open_run(folder / "out")) == 8
    assert len(run) == len(stored)
