"""The viewer's app: it shows the screens of one run, and reads the run again while it is still being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rollout_hookspecs import Finding, Panel, Rollout, Run
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.state import RUNNING, files_of, has_ended, state_of
from rollout_plugins.show.text import one_line
from rollout_plugins.view.pages.about import AboutPage
from rollout_plugins.view.pages.findings import FindingsPage
from rollout_plugins.view.pages.group import GroupPage
from rollout_plugins.view.pages.help import HelpPage
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.pages.prompts import PromptsPage
from rollout_plugins.view.pages.rollout import RolloutPage
from rollout_plugins.view.pages.rollouts import RolloutsPage
from rollout_plugins.view.pages.steps import StepsPage
from rollout_plugins.view.pages.through_time import TimePage

MAX_CHECKED = 20_000
"""Rollouts up to which a run without stored findings is checked when it is opened."""
PERIOD = 2.0
"""Seconds between checks of a run that has not ended."""


class Viewer(App[None]):
    """The app of `rollouts view`."""

    CSS = """
    #title { height: 1; padding: 0 1; background: $panel; }
    #chart, #findings { height: auto; padding: 0 1; }
    #findings { display: none; }
    Grid, Pager {
        scrollbar-color: $surface-lighten-3; scrollbar-color-hover: $primary; scrollbar-color-active: $primary;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
    }
    """
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "quit", "Leave", show=False, priority=True),
        Binding("ctrl+p,colon", "command_palette", "Commands", show=False),
    ]

    def __init__(
        self,
        run: StoredRun,
        *,
        filters: Mapping[str, Any] | None = None,
        rollout: str | None = None,
        panels: Callable[[Rollout, Run], Sequence[Panel]] = lambda *_: (),
        stats: Callable[[], list[dict[str, Any]]] | None = None,
        prompts: Callable[[], tuple[str, list[dict[str, Any]]]] | None = None,
        period: float = PERIOD,
    ) -> None:
        """Create the viewer.

        `panels`: returns the panels of plugins for a rollout; called on a worker thread. `stats`: returns the run's
        figures the first time, if the caller has already started to read them. `prompts`: returns a headline and a row
        for each prompt of the run, if that is available.
        """
        super().__init__()
        self.animation_level = "none"  # Over ssh, each frame of an animation costs.
        self.stored = run
        self._initial_filters, self._rollout = dict(filters or {}), rollout
        self.panels = panels
        self.prompts = prompts
        self._early_stats = stats
        self.stats: list[dict[str, Any]] = []
        self.findings: list[Finding] = []
        self._is_checked = False
        self._period = period
        self._seen = self._signature()
        self._complaint = ""

    def on_mount(self) -> None:
        self.title = "rollouts"
        self.push_screen(StepsPage())
        if self._initial_filters:
            self.push_screen(RolloutsPage(self._initial_filters))
        if self._rollout is not None:
            self.push_screen(RolloutPage.of(self._rollout))
        self._wait(self._period)

    def read_stats(self) -> list[dict[str, Any]]:
        """Read the run's figures, step by step; on a worker thread."""
        early_stats, self._early_stats = self._early_stats, None
        self.stats = self.stored.stats() if early_stats is None else early_stats()
        return self.stats

    def read_findings(self) -> list[Finding]:
        """Read the stored findings, or run the checks if there are none; on a worker thread."""
        if not self._is_checked:
            self.findings = self.stored.findings
            if not self.findings and self.ended and len(self.stored) <= MAX_CHECKED:
                self.findings, self._is_checked = self.stored.check().findings, True
        return self.findings

    @property
    def ended(self) -> bool:
        """Whether the run's last attempt ended on every process."""
        return has_ended(self.stored.attempts)

    def state(self) -> list[tuple[str, str]]:
        """Return whether the run is still recording, and how much of it was lost or is damaged."""
        facts = []
        if not self.ended:
            word = state_of(self.stored.attempts, max((changed for _, changed, _ in self._seen), default=0.0))
            facts.append((f"● {word}", "green") if word == RUNNING else (word, "yellow"))
        lost, damaged = sum(self.stored.health.drops.values()), len(self.stored.health.damaged)
        if lost:
            facts.append((f"  {lost:,} lost", "yellow"))
        if damaged:
            facts.append((f"  {damaged:,} damaged", "red"))
        return facts

    def _signature(self) -> tuple[tuple[str, float, int], ...]:
        """Return the files with their times and sizes, to detect changes."""
        return tuple(files_of(self.stored.dir))

    def _wait(self, seconds: float) -> None:
        """Check again after a while, unless the run has ended."""
        if not self.ended:
            self.set_timer(seconds, partial(self.run_worker, self._look, thread=True, group="look", exclusive=True))

    def _look(self) -> None:
        """Read the run again if its files changed; on a worker thread."""
        started = time.monotonic()
        signature = self._signature()
        if signature != self._seen:
            if not self.stored.dir.is_dir():
                self._complain(f"{self.stored.dir} does not exist any more; the screen shows what was read before")
                return
            try:
                self.stored.refresh()
                len(self.stored)
            except Exception as error:  # the screen keeps what was read, and the next check may succeed
                self._complain(str(error))
            else:
                self._seen, self._complaint = signature, ""
                self.call_later(self._renew)
        took = time.monotonic() - started
        self.call_later(self._wait, max(self._period, 10 * took))

    def _complain(self, text: str) -> None:
        """Report an error, but only once while it repeats."""
        if text != self._complaint:
            self._complaint = text
            self.call_later(partial(self.notify, one_line(text, 400), severity="error", markup=False))

    def look_again(self) -> None:
        """Read the run again, even if it seems unchanged."""
        self.stored.refresh()
        self._renew()

    def _renew(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Page):
                screen.renew()

    def show_help(self, page: Page) -> None:
        self.push_screen(HelpPage(page))

    def show_about(self) -> None:
        if not isinstance(self.screen, AboutPage):
            self.push_screen(AboutPage())

    def show_findings(self) -> None:
        self.push_screen(FindingsPage())

    def show_prompts(self) -> None:
        if self.prompts is None:
            self.notify("rollout_plugins.learn, which lists prompts, is not installed", severity="error")
        else:
            self.push_screen(PromptsPage(self.prompts))

    def show_siblings(self, rollout: Rollout) -> None:
        self.push_screen(GroupPage(rollout))

    def show_over_time(self, rollout: Rollout) -> None:
        self.push_screen(TimePage(rollout))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield everything that the screen has a key for."""
        actions = {"command_palette"}
        for active in screen.active_bindings.values():
            binding, ours = active.binding, isinstance(active.node, (Page, Viewer))
            elsewhere = binding.action.startswith(("app.", "screen.")) or binding.action in actions
            if active.enabled and (ours or binding.show) and not elsewhere:
                actions.add(binding.action)
                run = partial(self.run_action, binding.action, active.node)
                yield SystemCommand(binding.description, f"key {self.get_key_display(binding)}", run)
        yield SystemCommand("Theme", "other colours", self.action_change_theme)


def view(run: StoredRun, **options: Any) -> None:
    """Show a run until the person leaves; takes the options of `Viewer`."""
    Viewer(run, **options).run()
