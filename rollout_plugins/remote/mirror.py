"""Copy a run to another place while it is recorded: `mirror="s3://bucket/runs"`."""

from __future__ import annotations

import logging
import re
import shlex
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rollout_hookspecs import Run, hookimpl

from rollout_plugins.engine.threads import own_thread
from rollout_plugins.reading.relocated_parts import record_relocation
from rollout_plugins.remote.card import publish
from rollout_plugins.remote.folder_sync import Copying, parts_to_spare
from rollout_plugins.remote.folders import File, files_of, folder, total
from rollout_plugins.remote.url_places import Place, place
from rollout_plugins.system.file_locks import lock, unlock
from rollout_plugins.system.option_checks import check, flag

logger = logging.getLogger("rollout_plugins")

POLL_SECONDS = 5.0
LONGEST_PAUSE = 60.0
#: The share of time that looking through the folder may take.
SHARE = 0.02
_TURN, _ENDS = ".mirror", b"ends"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Mirror:
    """Copies a run to an object store, the Hub or another disk while it is recorded; `mirror=` adds it.

    The local folder remains the run's folder. Finished files are copied from it, each once, on a separate thread that
    training never waits for. If the destination cannot be reached, they wait. Nothing is ever removed there.

    to: the folder in which the run's folder appears, as a URL.
        Mirror("s3://bucket/runs")
        Mirror("hf://buckets/me/runs")
    keep_local: how much of the run may stay on this machine, in bytes or as text. Beyond it, the oldest parts that
        are safe at the destination are removed here. None keeps everything.
        Mirror("s3://bucket/runs", keep_local="10GB")
    seal_seconds: how many seconds the copy may be behind; journals of that age become Parquet files and are copied.
        Mirror("s3://bucket/runs", seal_seconds=60)
    require_redact: refuse to start unless `redact`, or another plugin with `required = True`, filters what is stored.
        Mirror("s3://bucket/runs", require_redact=True)
    """

    headlines = ("mirror/behind",)

    def __init__(
        self,
        to: str,
        *,
        keep_local: str | int | None = None,
        seal_seconds: float = 300.0,
        require_redact: bool = False,
    ) -> None:
        self._budget = _bytes(keep_local)
        seconds = f"seal_seconds={seal_seconds!r} is not a number of seconds above 0"
        is_number = isinstance(seal_seconds, (int, float)) and not isinstance(seal_seconds, bool)
        check(
            "mirror",
            None if is_number and seal_seconds > 0 else seconds,
            f"keep_local={keep_local!r} is not a size such as '10GB'" if self._budget == -1 else None,
            flag("require_redact", require_redact),
        )
        self.place = place(to, "mirror")
        self.seal_seconds: float | None = float(seal_seconds)
        self.require_redact: bool | None = require_redact
        self.alerts: list[str] = []
        self._work: Following | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the options alone, because a copy of this plugin mirrors a run of its own."""
        return {**vars(self), "_work": None, "alerts": []}

    @property
    def target(self) -> str:
        """The destination."""
        return self.place.url

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._stop()
        self._work = Following(run, self.place, self._budget, self.seal_seconds or 0.0, self.alerts)
        self._work.start()

    @hookimpl
    def rollout_metrics(self) -> dict[str, float]:
        return {"mirror/behind": float(self._work.behind if self._work else 0)}

    @hookimpl
    def on_run_end(self) -> None:
        if self._work is not None:
            self._work.hurry()

    @hookimpl
    def on_run_stored(self, seconds: float) -> None:
        if self._work is not None:
            self._work.finish(seconds)
        self._stop()

    def _stop(self) -> None:
        if self._work is not None:
            self._work.stop()
        self._work = None


class Following:
    """The copying of one run. If several processes write to the run's folder, one of them copies for all."""

    def __init__(self, run: Run, to: Place, budget: int | None, idle_seconds: float, alerts: list[str]) -> None:
        self.behind = 0
        self._run = run
        self._folder = Path(run.dir)
        self._to = to
        self._budget = budget
        self._idle = idle_seconds
        self._alerts = alerts
        self._copying: Copying | None = None
        self._turn: IO[Any] | None = None
        self._why = ""
        self._told: set[str] = set()
        self._described: list[str] = []
        self._pause = self._wait = POLL_SECONDS
        self._looking = 0.0
        self._ends = self._is_done = self._is_stopped = self._is_in_hand = False
        self._changed = threading.Condition()
        self._thread = own_thread("mirror", self._follow)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Look for new files more often, because the run is ending."""
        with self._changed:
            self._ends = True
            self._pause = self._wait = 0.2
            self._changed.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait until everything is copied, at most for `seconds`, and log what is missing."""
        until = time.monotonic() + max(seconds - 1.0, seconds / 2)
        self.hurry()
        with self._changed:
            self._is_last = True
            self._changed.notify_all()
            while not self._is_done and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
        if not self._is_done:
            self._report()
            self.stop()

    def _report(self) -> None:
        """Log how much is missing, unless another process of this run takes care of it."""
        if self._is_in_hand and self._copying is None and not self._why:
            return
        left = self._left()
        logger.warning(
            "the mirror is not complete: %s of %s are not in %s yet (%s). They are safe here; bring them there with: "
            "rollouts push %s %s", total(left), self._folder, self._to.url, self._why or "it does not answer in time",
            shlex.quote(str(self._folder)), shlex.quote(self._to.url),
        )  # fmt: skip

    def _left(self) -> list[File]:
        with suppress(OSError, RuntimeError):  # another process may be copying right now
            if self._copying is not None:
                return self._copying.pending(everything=True)
        return list(files_of(self._folder))

    def stop(self) -> None:
        """Stop after the current file; other processes of this run copy the rest."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        with suppress(OSError, ValueError):  # its thread has just released the lock
            self._say_turn_ends()

    # --- its own thread -----------------------------------------------------------------------------------------

    _is_last = _is_complete = False

    def _follow(self) -> None:
        while not self._is_stopped:
            is_last = self._is_last
            done = self._look(everything=is_last)
            with self._changed:
                if done and is_last:
                    self._is_done = self._is_stopped = True
                    self._changed.notify_all()
                elif not self._is_stopped and self._is_last == is_last:
                    longest = 1.0 if self._ends else LONGEST_PAUSE
                    self._wait = self._pause if done else min(self._wait * 2, longest)
                    rest = 0.0 if self._ends else min(self._looking / SHARE, LONGEST_PAUSE)
                    self._changed.wait(max(self._wait, rest))
        self._give_turn_back()

    def _look(self, *, everything: bool) -> bool:
        """Copy new files, and return True if nothing is left to do now."""
        try:
            if not self._has_turn():
                return everything and not self._turn_ends()
            if everything:
                self._say_turn_ends()
            self._copying = self._copying or self._begun()
            began = time.monotonic()
            waiting = self._copying.pending(everything=everything)
            self._looking = time.monotonic() - began
            done = self._copying.send(waiting) if waiting else True
            self._note(len(waiting), next(iter(self._copying.failed.values()), "") if not done else "")
            if done:
                self._describe(self._copying, is_last=everything)
            if self._budget is not None:
                self._make_room(self._copying, self._budget)
        # This thread must survive any error of a filesystem.
        except Exception as error:
            logger.debug("the mirror failed", exc_info=error)
            self._note(len(self._left()), self._to.why(error))
            return False
        return done

    def _describe(self, copying: Copying, *, is_last: bool) -> None:
        """If the destination is a dataset, write its card: once there is something to load, and at the end."""
        loadable = sorted({path.parent.name for path in self._folder.glob("data/*/*.parquet")})
        if loadable != self._described or (is_last and not self._is_complete):
            publish(copying.target, self._folder, {})
            self._described, self._is_complete = loadable, is_last

    def _has_turn(self) -> bool:
        """Return True if this process copies. If it dies, the system releases the lock for another process."""
        if self._turn is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / _TURN).open("ab")
            if lock(file, wait=False):
                file.truncate(0)
                self._turn = file
                if self._is_stopped:
                    self._say_turn_ends()
            else:
                file.close()
            self._is_in_hand = self._turn is None
        return self._turn is not None

    def _say_turn_ends(self) -> None:
        """Announce that this process may not copy files that are completed from now on."""
        if (turn := self._turn) is not None:
            turn.write(_ENDS)
            turn.flush()

    def _turn_ends(self) -> bool:
        """Return True if the copying process may have looked for new files for the last time."""
        return (self._folder / _TURN).read_bytes() != b""

    def _give_turn_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            unlock(turn)

    def _begun(self) -> Copying:
        parent = folder(self._to)
        parent.prepare()
        if parent.is_public:
            self._say("%s is public: everybody can read the rollouts there", self._to.url)
        run = self._run
        copying = Copying.beside(
            self._folder, parent, run.attempt, run.rank, idle_seconds=self._idle, send_joined=False
        )
        name = copying.target.place.path.rpartition("/")[2]
        if name != self._folder.name:
            self._say("%s has another run that is called %s; this one is copied to %s", self._to.url, run.id, name)
        return copying

    def _note(self, count: int, why: str) -> None:
        """Log once when files start to wait, with what to do about it, and once when they no longer wait."""
        self.behind = count if why else 0
        advice = why.partition(" (")[0] if why.endswith(")") else ""
        if why and not self._is_stopped and (not self._why or advice not in self._told):
            self._told.add(advice)
            self._say(
                "the mirror %s does not take files: %s; they wait on this machine and will follow", self._to.url, why
            )
        if self._why and not why:
            self._told.clear()
            logger.warning("the mirror %s takes files again, and %s is up to date", self._to.url, self._folder)
        self._why = why

    def _say(self, text: str, *args: object) -> None:
        logger.warning(text, *args)
        self._alerts.append(text % args)

    def _make_room(self, copying: Copying, budget: int) -> None:
        """Remove the oldest local parts that the mirror has, as many as the budget requires."""
        files = list(files_of(self._folder))
        over = sum(file.size for file in files) - budget
        if over <= 0:
            return
        removed: list[File] = []
        names: list[str] = []
        for file in parts_to_spare(files):
            if over <= 0:
                break
            if there := copying.safe_names(file):
                removed.append(file)
                names += there
                over -= file.size
        record_relocation(self._folder, copying.target.place.url, names)
        for file in removed:
            with suppress(FileNotFoundError):
                file.path.unlink()


def _bytes(size: object) -> int | None:
    """Return a size as a number of bytes, or -1 if it is invalid."""
    if size is None:
        return None
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", str(size).upper()) if isinstance(size, str) else None
    )
    return int(float(found[1]) * _UNITS[found[2]]) if found else -1
