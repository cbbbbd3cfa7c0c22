"""What several pages tell about is made once."""

import contextlib
import fcntl
import io
import os
import shutil
from argparse import Namespace

import pytest


@pytest.fixture(scope="session")
def made_demo(tmp_path_factory):
    """A folder in which the demo ran, briefly, for all workers: `said.txt` has what it printed. To be looked at only."""
    from rollout_plugins.demo import command

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "demo"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said.txt").exists():
            with contextlib.redirect_stdout(io.StringIO()) as said:
                command.run(Namespace(out=folder / "outputs" / "demo", steps=2))
            (folder / "said.txt").write_text(said.getvalue(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def demo(made_demo, tmp_path_factory):
    """A copy of it, for commands that write."""
    return shutil.copytree(made_demo, tmp_path_factory.mktemp("docs") / "place")
