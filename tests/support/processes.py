"""Programs that tests start, which import what tests import. What ends a test that takes too long ends them, too."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def environment(*path, **more):
    """What such a program finds in its environment; `path` comes before the rest of the path for imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path]), **more}


def worker(name, *arguments):
    """The command for `<name>_worker.py` beside this file."""
    return [str(HERE / f"{name}_worker.py"), *map(str, arguments)]


def run_worker(name, *arguments, ranks=None, path=(), code=0, **more):
    """Run a worker until it ends with this exit code, in one process or as several ranks under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks else []
    command = [sys.executable, *launcher, *worker(name, *arguments)]
    done = subprocess.run(command, env=environment(*path, **more), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    return done
