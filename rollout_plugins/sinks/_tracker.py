"""The base of the sinks for experiment trackers: which of the tracker's runs receives rollouts, and when it ends."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rollout_hookspecs import Image, Run, Scope, hookimpl

from rollout_plugins.content.imaging import file_of
from rollout_plugins.errors import need
from rollout_plugins.system.labels import unique_run_name


class TrackerSink:
    """Sends rollouts to the tracker run that the trainer has open, or to one that it opens and finishes itself."""

    TRACKER: ClassVar[str]
    """The tracker's library, which is also the name of our extra that installs it."""

    def __init__(self, *, scope: Scope, project: str | None, name: str | None, **options: Any) -> None:
        self.scope, self._project, self._name = scope, project, name
        self._options = {"scope": scope, "project": project, "name": name, **options}
        self._tracker: Any = need(self.TRACKER, self.TRACKER)
        self._trainers_run: Any = None
        self._args: Any = None
        self._run: Run | None = None
        self._sender: Any = None
        self._opened_for: Any = None

    def __reduce__(self) -> Any:
        """Pickle and copy the options only: connections and open runs cannot be copied."""
        return partial(type(self), **self._options), ()

    def bind(self, trainer: Any) -> None:
        """Remember the trainer's tracker run, which is current on the training thread that calls this method."""
        self._args = getattr(trainer, "args", None)
        has_own_run = self._project or self._name or self._options.get("space_id") or self.scope == "rank"
        self._trainers_run = None if has_own_run else self._current_run()

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        if self._run is not None and self._run.id != run.id:  # the previous run never ended
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
        """Return the tracker run to send to. The trainer may have opened another one since the last batch."""
        trainers_run = self._trainers_run
        if self._sender is None or self._opened_for is not trainers_run:
            self._close()
            run = self._run or Run(id="rollouts")
            self._sender = self._open_own(run) if trainers_run is None else self._join(trainers_run)
            self._opened_for = trainers_run
        return self._sender

    @abstractmethod
    def _current_run(self) -> Any:
        """Return the tracker's run that is current on this thread, if any."""

    @abstractmethod
    def _open_own(self, run: Run) -> Any:
        """Open a new run of the tracker for `run`."""

    def _join(self, trainers_run: Any) -> Any:
        """Return the object that sends into the run that the trainer opened."""
        return trainers_run

    def _forget(self) -> None:
        """Drop what is cached for the run that ends."""

    def _own_name(self, run: Run) -> str:
        return self._name or getattr(self._args, "run_name", None) or unique_run_name(run)

    def _file(self, image: Image) -> Path | None:
        return file_of(image, self._run.dir if self._run else "")
