"""What the sinks of experiment trackers share: which of the tracker's runs rollouts go to, and when it ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rollout_hookspecs import Image, Run, Scope, hookimpl

from rollout_plugins.content.imaging import file_of
from rollout_plugins.errors import need
from rollout_plugins.system.labels import own_name


class TrackerSink:
    """Sends to the trainer's own run where there is one, else to a run that it opens and finishes itself."""

    TRACKER: ClassVar[str]
    """The library, and the extra that brings it."""

    def __init__(self, *, scope: Scope, project: str | None, name: str | None, **options: Any) -> None:
        self.scope, self._project, self._name = scope, project, name
        self._options = {"scope": scope, "project": project, "name": name, **options}
        self._tracker: Any = need(self.TRACKER, self.TRACKER)
        self._theirs: Any = None
        self._args: Any = None
        self._run: Run | None = None
        self._sender: Any = None
        self._opened_for: Any = None

    def __reduce__(self) -> Any:
        """A copy is a new one with the same options: what is open cannot be copied."""
        return partial(type(self), **self._options), ()

    def bind(self, trainer: Any) -> None:
        """Called on the training thread, where the trainer's run can be seen."""
        self._args = getattr(trainer, "args", None)
        chosen = self._project or self._name or self._options.get("space_id") or self.scope == "rank"
        self._theirs = None if chosen else self._current()

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        if self._run is not None and self._run.id != run.id:  # that one broke off
            self._close()
        self._run = run

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        self._close()

    def _close(self) -> None:
        sender, self._sender = self._sender, None
        self._forget()
        if sender is not None and sender is not self._opened_for:
            sender.finish()

    def alert(self, title: str, text: str = "") -> None:
        """Show a warning in the tracker, and send it wherever the tracker sends its alerts."""
        self._open().alert(title=title, text=text)

    def open(self) -> None:
        """Open the run now, so that `target` names it."""
        self._open()

    def _open(self) -> Any:
        """What rollouts go to now; the trainer may have begun another run since the last ones."""
        theirs = self._theirs
        if self._sender is None or self._opened_for is not theirs:
            self._close()
            self._sender = self._own(self._run or Run(id="rollouts")) if theirs is None else self._beside(theirs)
            self._opened_for = theirs
        return self._sender

    def _current(self) -> Any:
        """The tracker's run that this thread is in, if any."""
        raise NotImplementedError

    def _own(self, run: Run) -> Any:
        """A new run of the tracker, for this run of ours."""
        raise NotImplementedError

    def _beside(self, theirs: Any) -> Any:
        """What sends into a run that the trainer opened."""
        return theirs

    def _forget(self) -> None:
        """Drop what was kept for the run that ends."""

    def _own_name(self, run: Run) -> str:
        return self._name or getattr(self._args, "run_name", None) or own_name(run)

    def _file(self, image: Image) -> Path | None:
        return file_of(image, self._run.dir if self._run else "")
