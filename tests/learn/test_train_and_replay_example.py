"""examples/train_and_replay.py runs, and says what it did."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_and_replay.py"


def test_the_example_trains_on_its_rollouts_and_repeats_a_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE))["main"]()
    printed = capsys.readouterr().out
    assert "of 32 rollouts" in printed
    assert printed.strip().splitlines()[-1].endswith(": bit-equal")
