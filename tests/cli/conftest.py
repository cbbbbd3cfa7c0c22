"""What tests of the commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reading import steps, write

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.reading.runs import StoredRun


@pytest.fixture
def rollouts(capsys: Any) -> Any:
    """Call the command; gives the exit code, standard output and standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return open_run(write(tmp_path, steps(3), trainer="GRPOTrainer", model="tiny"))
