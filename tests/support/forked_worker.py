"""Run by a test: a training that breaks off in a process that `multiprocessing` forked."""

import sys
import threading
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from rig import make

from rollout_plugins import RolloutPluginCallback, hookimpl

is_ending = threading.Event()


class Waits:
    """Holds back what is recorded until the process has nothing left to do but to end."""

    @hookimpl
    def on_rollout(self, rollout):
        is_ending.wait()


def broken(completions, **kwargs):
    raise MemoryError


def train(folder, callback):
    Finalize(None, is_ending.set, exitpriority=100)
    make(folder, callbacks=[callback or RolloutPluginCallback([Waits()])], rewards=broken).train()


if __name__ == "__main__":
    made = RolloutPluginCallback([Waits()]) if sys.argv[2] == "before the fork" else None
    process = get_context("fork").Process(target=train, args=(Path(sys.argv[1]), made))
    process.start()
    process.join()
    sys.exit(process.exitcode)
