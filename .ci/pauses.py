"""Lets our threads, or the main one, pause at random: what depends on how fast they are then fails.

Runs in every process of an environment that imports it at the start, when `PAUSES` is `threads`, `main` or `both`.
`PAUSES_EVERY` and `PAUSES_LONGEST` are seconds: between two pauses on average, and of one at most.
"""

import os
import random
import sys
import threading
import time
from types import FrameType

WHERE = os.environ.get("PAUSES", "")
EVERY = float(os.environ.get("PAUSES_EVERY", "0.05"))
LONGEST = float(os.environ.get("PAUSES_LONGEST", "0.2"))
OURS = ("/rollout_plugins/", "/tests/")

sleep, now, here = time.sleep, time.monotonic, threading.local()  # as they were before a test replaced them


def pause(frame: FrameType, event: str, _: object) -> None:
    """Called by Python at each call and return."""
    if event not in {"call", "return"} or not any(part in frame.f_code.co_filename for part in OURS):
        return
    due = getattr(here, "due", None)
    if due is not None and now() >= due:
        sleep(random.random() ** 2 * LONGEST)
        due = None
    here.due = now() + random.expovariate(1 / EVERY) if due is None else due


def begin(*_: object) -> None:
    """In a new thread, which may be late as a whole."""
    sys.setprofile(pause)
    if random.random() < 0.5:
        sleep(random.random() ** 2 * LONGEST * 5)


if WHERE in {"threads", "both"}:
    threading.setprofile(begin)
if WHERE in {"main", "both"}:
    sys.setprofile(pause)
