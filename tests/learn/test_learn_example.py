"""The example that learns from a run does what its page says."""

import runpy
from pathlib import Path

from rollout_plugins import open_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "learn_from_a_run.py"


def test_the_example_scores_lists_and_compares(tmp_path, capsys):
    runpy.run_path(str(EXAMPLE))["main"](str(tmp_path / "out"), steps=3)
    out = capsys.readouterr().out
    assert "of advantages keep their sign" in out
    assert "the first two steps (A) and the others (B): " in out
    assert "strict" in open_run(tmp_path / "out").annotations
