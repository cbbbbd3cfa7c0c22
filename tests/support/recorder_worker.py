"""Run by tests of the recorder: loops that end in all the ways a process can end, or are one of several processes."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

from rollout_plugins import RolloutRecorder, open_run


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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    with RolloutRecorder(dir=out) as recorder:
        for step in range(1, 6):
            recorder.record(step, batch(step))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)


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


def _pandas_in_a_child(step):
    import pandas as pd

    return step if pd.__name__ else 0


def _own_recorder(folder):
    recorder = RolloutRecorder(dir=folder)
    recorder.record(1, batch(1))
    recorder.close()
    return recorder.run.dir


def pool(out):
    """A loop that scores in forked processes, right after it has recorded for the first time."""
    with RolloutRecorder(dir=out / "parent") as recorder:
        recorder.record(1, batch(1))
        with multiprocessing.get_context("fork").Pool(2) as workers:
            first, second = workers.apply_async(_pandas_in_a_child, [7]), workers.apply_async(_own_recorder, [out])
            sys.stdout.write(f"{first.get(300)} {second.get(300)}\n")
        recorder.record(2, batch(2))


def locked(out):
    """A child that uses what it has inherited, of which other threads held the locks when it was forked."""
    with RolloutRecorder(dir=out) as recorder:
        recorder.record(1, batch(1))
        recorder.flush()
        run = open_run(out)
        held, free = threading.Event(), threading.Event()

        def hold():
            with recorder._pipeline._worker._changed, recorder._pipeline.counters._lock, recorder._lock:
                held.set()
                free.wait(300)

        threading.Thread(target=hold).start()
        held.wait(300)
        child = os.fork()
        if not child:
            recorder.record(2, batch(2))
            recorder.metrics()
            recorder.flush()
            recorder.close()
            found = len(run)
            del run
            gc.collect()
            os._exit(found)
        free.set()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])} {len(run)}\n")


def ranks(out):
    """As torchrun starts it, without a process group; with a name given, as anything else may start it."""
    with RolloutRecorder(dir=out, run_id=os.environ.get("RUN_NAME")) as recorder:
        for step in (1, 2):
            recorder.record(step, batch(step), group_size=2)
        sys.stdout.write(f"{recorder.run.id} {recorder.run.rank} {recorder.run.world_size}\n")


def shared(out):
    """One of several processes that no launcher numbered; all of them begin before one of them records."""
    place = {"rank": int(os.environ["GIVEN"]), "world_size": 2} if "GIVEN" in os.environ else {}
    with RolloutRecorder(dir=out, run_id="exp", **place) as recorder:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for step in (1, 2):
            recorder.record(step, batch(step), group_size=2)


def light(out):
    for name in ("torch", "transformers", "trl", "accelerate"):
        sys.modules[name] = None
    without_close(out)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
