"""A retention policy for long runs: keep the text of the newest rollouts and of few older ones."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rollout_hookspecs import Run, Step, hookimpl

from rollout_plugins.engine.threads import own_thread
from rollout_plugins.remote.pruning import prune_part
from rollout_plugins.store.parts import find_parts
from rollout_plugins.system.option_checks import check, integer

logger = logging.getLogger("rollout_plugins")


class Retain:
    """Keeps the text of the newest steps; of older ones, that of a fixed panel of prompts and of a sample.

    Every rollout keeps its numbers, so statistics and charts stay exact, and evaluations keep everything. Only Parquet
    parts that are completely older are rewritten, each once, on a separate thread.

    last: for how many steps back all rollouts keep their text.
        Retain(last=200)
    panel: the share of prompts whose text is kept through the whole run; they are always the same ones.
        Retain(panel=0.02)
    sample: for how many other rollouts of each step the text is kept, on each rank.
        Retain(sample=8)
    """

    def __init__(self, *, last: int = 100, panel: float = 0.01, sample: int = 4) -> None:
        is_share = isinstance(panel, (int, float)) and not isinstance(panel, bool) and 0 <= panel <= 1
        wrong = None if is_share else f"panel={panel!r} is not a share from 0 to 1"
        check("retain", integer("last", last, 0), wrong, integer("sample", sample, 0))
        self._last, self._panel, self._sample = last, float(panel), sample
        self._work: _Pruning | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the options alone, because a copy of this plugin has a run of its own."""
        return {**vars(self), "_work": None}

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._end()
        self._work = _Pruning(run, self._last, self._keeps, self._why)
        self._work.start()

    @property
    def _why(self) -> str:
        return f"older than {self._last} steps, and not in the panel or the sample"

    @hookimpl
    def rollout_metrics(self, step: Step) -> None:
        if self._work is not None and step.split == "train":
            self._work.reach(step.step)

    @hookimpl
    def on_run_stored(self, seconds: float) -> None:
        self._end(seconds)

    def _end(self, seconds: float = 0.0) -> None:
        if self._work is not None:
            self._work.stop(seconds)
        self._work = None

    def _keeps(self, table: pa.Table) -> pa.Array:
        """Return which rollouts keep their text: the panel and the sample, the same on every machine."""
        steps, ids = table["step"].to_pylist(), table["id"].to_pylist()
        texts = ["\0".join(str(m["content"]) for m in prompt or ()) for prompt in table["prompt"].to_pylist()]
        kept = [_share(text) < self._panel for text in texts]
        taken: Counter[int] = Counter()
        for at in sorted((at for at, is_kept in enumerate(kept) if not is_kept), key=lambda at: _share(ids[at])):
            taken[steps[at]] += 1
            kept[at] = taken[steps[at]] <= self._sample
        return pa.array(kept, pa.bool_())


def _share(text: str) -> float:
    """Map a text to a number from 0 to 1 by its hash."""
    digest = hashlib.sha1(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class _Pruning:
    """The pruning of one run's old parts, one after the other."""

    def __init__(self, run: Run, last: int, keeps: Callable[[pa.Table], pa.Array], why: str) -> None:
        self._folder, self._stem = Path(run.dir), f"-{run.rank:05d}-"
        self._last, self._keeps, self._why = last, keeps, why
        self._newest = -1
        self._done: set[Path] = set()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = own_thread("retain", self._prune)

    def start(self) -> None:
        self._thread.start()

    def reach(self, step: int) -> None:
        """Report the current training step."""
        with self._changed:
            if step > self._newest:
                self._newest = step
                self._changed.notify_all()

    def stop(self, seconds: float) -> None:
        """Stop after what is old by now, or when the time is up; the rest can be pruned later."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if seconds:
            self._thread.join(max(seconds - 1.0, seconds / 2))

    def _prune(self) -> None:
        seen, is_last = -1, False
        while not is_last:
            with self._changed:
                while self._newest == seen and not self._is_stopped:
                    self._changed.wait()
                seen, is_last = self._newest, self._is_stopped
            for path in self._due(seen - self._last):
                self._prune_one(path)

    def _due(self, step: int) -> list[Path]:
        parts = [part.path for part in find_parts(self._folder) if not part.is_journal and part.path not in self._done]
        ours = [path for path in parts if path.parent.name == "train" and self._stem in path.name]
        return [path for path in ours if _newest(path) <= step]

    def _prune_one(self, path: Path) -> None:
        try:
            prune_part(path, self._keeps, self._why, ("prompt",))
        # A part that a mirror has may be removed here.
        except FileNotFoundError:
            pass
        except Exception as error:  # the part is unchanged
            logger.warning("%s keeps its text: %s", path, error)
        self._done.add(path)


def _newest(path: Path) -> float:
    """Return the last step in a part, or infinity if it cannot be read."""
    with suppress(OSError, pa.ArrowException):
        return float(pc.max(pq.read_table(path, columns=["step"], partitioning=None)["step"]).as_py() or 0)
    return float("inf")
