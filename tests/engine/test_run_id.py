"""Which run a start belongs to, whatever the files that say so hold."""

from __future__ import annotations

import json

import pytest

from rollout_plugins.engine.run_id import MARKER, identify


@pytest.mark.parametrize("generation", ["x", None, -1, 1.5, float("inf"), [1], True])
def test_a_marker_that_somebody_edited_costs_only_its_number(tmp_path, generation):
    checkpoint, home = tmp_path / "checkpoint-3", tmp_path / "home"
    checkpoint.mkdir()
    (home / "r1").mkdir(parents=True)
    (checkpoint / MARKER).write_text(json.dumps({"run": "r1", "generation": generation}))
    found = identify(home, "key", checkpoint, 3, None)
    assert (found.id, found.attempt, found.generation, found.resumed_from) == ("r1", 2, 0, 3)
