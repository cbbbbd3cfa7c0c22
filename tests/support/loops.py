"""What tests of the recorder share: batches, recorders, and loops in processes of their own."""

import random
import subprocess
import sys
import threading

from processes import environment, worker

from rollout_plugins import RolloutRecorder, hookimpl


def row(answer="4", **more):
    return {"prompt": "2+2?", "completion": answer, **more}


def recorder_in(folder, *plugins, **options):
    return RolloutRecorder(plugins, dir=folder / "runs", **options)


class Slow:
    """Holds up the worker thread until told."""

    def __init__(self):
        self.go = threading.Event()
        self.gave_up = False

    @hookimpl
    def on_rollout(self, rollout):
        self.gave_up = not self.go.wait(600)


def work(scenario, folder, **more):
    return subprocess.Popen(
        [sys.executable, *worker("recorder", scenario, folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )


def words(count):
    return "".join(random.choices("abcdefgh ", k=count))


def numbers(count):
    return [random.random() for _ in range(count)]
