"""Run by test_recorder: loops that end in all the ways a process can end, or are one of several processes."""

import os
import signal
import sys
import time
from pathlib import Path

from rollout_plugins import RolloutRecorder


def batch(step):
    return [{"prompt": f"question {step}", "completion": f"answer {step}.{n}", "reward": float(n)} for n in range(4)]


def without_close(out):
    recorder = RolloutRecorder(dir=out)
    for step in range(1, 6):
        recorder.record(step, batch(step))


def exception(out):
    with RolloutRecorder(dir=out) as recorder:
        for step in range(1, 6):
            recorder.record(step, batch(step))
        raise RuntimeError("the loop died")


def interrupt(out):
    with RolloutRecorder(dir=out) as recorder:
        for step in range(1, 6):
            recorder.record(step, batch(step))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)


def killed(out):
    recorder = RolloutRecorder(dir=out)
    step = 0
    while True:
        step += 1
        recorder.record(step, batch(step))
        if recorder.flush():
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()


def forked(out):
    with RolloutRecorder(dir=out) as recorder:
        recorder.record(1, batch(1))
        child = os.fork()
        recorder.record(2, batch(2))
        if not child:
            recorder.close()
            os._exit(0)
        os.waitpid(child, 0)


def ranks(out):
    """As torchrun starts it, without a process group; with a name given, as anything else may start it."""
    with RolloutRecorder(dir=out, run_id=os.environ.get("RUN_NAME")) as recorder:
        for step in (1, 2):
            recorder.record(step, batch(step), group_size=2)
        sys.stdout.write(f"{recorder.run.id} {recorder.run.rank} {recorder.run.world_size}\n")


def light(out):
    for name in ("torch", "transformers", "trl", "accelerate"):
        sys.modules[name] = None
    without_close(out)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
