"""What tests of the commands share."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_plugins.cli.main import main


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
