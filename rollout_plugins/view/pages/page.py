"""The base of all screens: a title, a footer, an input line, and work on other threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, cast

from rich.text import Text
from rollout_hookspecs import Finding, Panel, Rollout, Run
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static
from textual.worker import Worker, get_current_worker

from rollout_plugins.errors import RolloutPluginsError
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.text import one_line
from rollout_plugins.view.widgets.ask import Ask

T = TypeVar("T")


class Viewer(Protocol):
    """The parts of the app that screens use. Only the app knows all screens, so that screens need not
    know each other.
    """

    stored: StoredRun
    stats: list[dict[str, Any]]
    """The figures of the run's steps, as far as they are read."""
    panels: Callable[[Rollout, Run], Sequence[Panel]]
    """Returns the panels of plugins for a rollout; called on a worker thread."""
    findings: list[Finding]
    """The findings of checks, as far as they are read, the most severe first."""

    def read_stats(self) -> list[dict[str, Any]]: ...
    def read_findings(self) -> list[Finding]: ...
    def show_findings(self) -> None: ...
    def state(self) -> list[tuple[str, str]]: ...
    def look_again(self) -> None: ...
    def show_help(self, page: Page) -> None: ...
    def show_about(self) -> None: ...
    def show_prompts(self) -> None: ...
    def show_siblings(self, rollout: Rollout) -> None: ...
    def show_over_time(self, rollout: Rollout) -> None: ...


class Page(Screen[None]):
    """A screen of the viewer."""

    TITLE = ""
    NOTES: ClassVar[Sequence[tuple[str, str]]] = ()
    """The meanings of its columns, for the help."""
    AUTO_FOCUS = "Grid, Pager"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,backspace", "back", "Back", key_display="q"),
        Binding("escape", "escape", "Back, but never out", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("i", "facts", "About the run", show=False),
    ]

    @property
    def viewer(self) -> Viewer:
        return cast("Viewer", self.app)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield from self.body()
        yield Ask()
        yield Footer(show_command_palette=False)

    def body(self) -> Iterable[Widget]:
        """Return the widgets between the title and the footer."""
        return ()

    def renew(self) -> None:
        """Update the screen after the run has grown."""

    @property
    def ask(self) -> Ask:
        return self.query_one(Ask)

    def title_is(self, left: Text, right: Text | str = "") -> None:
        """Set the first line: the name of the screen, and at its right end the state."""
        end = right if isinstance(right, Text) else Text(right, style="dim")
        room = max(self.app.size.width - 2 - end.cell_len, 10)
        left.truncate(room, overflow="ellipsis", pad=True)
        self.query_one("#title", Static).update(Text.assemble(left, end, no_wrap=True, overflow="crop"))

    def job(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        *,
        group: str,
        failed: Callable[[Exception], None] | None = None,
        exclusive: bool = True,
    ) -> None:
        """Do `work` on a worker thread, then call `done` on the screen's thread.

        Unless `exclusive` is False, cancel earlier work of the same group, whose result is obsolete.
        """

        def run() -> None:
            worker = get_current_worker()
            try:
                callback = partial(done, work())
            except Exception as error:
                callback = partial(failed or self.failed, error)
            self.call_on_screen(worker, callback)

        self.run_worker(run, thread=True, group=group, exclusive=exclusive, exit_on_error=False)

    def call_on_screen(self, worker: Worker[Any], callback: Callable[[], None]) -> None:
        """Call `callback` on the screen's thread, unless the work was cancelled."""

        def call() -> None:
            if not worker.is_cancelled:
                try:
                    callback()
                except Exception as error:  # one unexpected rollout must not end the viewer
                    self.failed(error)

        self.call_later(call)

    def failed(self, error: Exception) -> None:
        """Report an error."""
        explains_itself = isinstance(error, (RolloutPluginsError, OSError)) and str(error)
        self.say(str(error) if explains_itself else f"{type(error).__name__}: {error}", wrong=True)

    def say(self, text: str, *, wrong: bool = False) -> None:
        self.notify(one_line(text, 400), severity="error" if wrong else "information", markup=False)

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()
        else:
            self.app.exit()

    def action_escape(self) -> None:
        """Go back if there is another screen; only `q` leaves the viewer."""
        if len(self.app.screen_stack) > 2:
            self.action_back()
        else:
            self.say("press q to leave")

    def action_help(self) -> None:
        self.viewer.show_help(self)

    def action_facts(self) -> None:
        self.viewer.show_about()
