"""What tests of `rollouts record` share."""

import subprocess

import pytest
from recorded_command import RECORD, outside


@pytest.fixture
def record(tmp_path):
    """Run `rollouts record` in a folder of its own; gives what it became."""

    def run(*words, stdin="", **more):
        command = [*RECORD, *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=outside(**more), input=stdin, capture_output=True, text=True, check=False
        )

    return run
