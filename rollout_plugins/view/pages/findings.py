"""The screen of findings: a line for each, with its advice, and a key that shows its rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from rollout_hookspecs import Finding
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from rollout_plugins.content.findings import where
from rollout_plugins.reading.sql_pieces import literal
from rollout_plugins.show.text import clean, one_line
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.pages.rollouts import RolloutsPage
from rollout_plugins.view.widgets.columns import Column, Shown
from rollout_plugins.view.widgets.grid import Grid

STYLES = {"severe": "bold red", "warning": "yellow", "info": "cyan"}


class FindingsPage(Page):
    """The findings of a run, the most severe first."""

    CSS = """
    FindingsPage #details { height: auto; max-height: 40%; padding: 1 2; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "reload", "Read again", show=False)]

    def body(self) -> Iterable[Widget]:
        yield Grid()
        yield Static(id="details")

    def on_mount(self) -> None:
        grid = self.query_one(Grid)
        grid.empty = "no findings are stored; run rollouts check to look for them"
        grid.set_columns(
            [
                Column("severity", "severity", _severity, left=False),
                Column(" title", "finding", left=True),
                Column(" where", "where", left=False),
                Column("rollouts", "rollouts"),
            ]
        )
        self.renew()

    def renew(self) -> None:
        """Show the current findings."""
        findings = self.viewer.findings
        self.title_is(Text("findings", style="bold"), count(len(findings), "finding"))
        grid = self.query_one(Grid)
        grid.set_rows(len(findings), grid.cursor)
        grid.put(0, [_row(finding) for finding in findings])
        self._show_details()

    @on(Grid.Moved)
    def _show_details(self) -> None:
        """Show the sentence and the advice of the finding under the cursor."""
        finding = self._current()
        details = Text()
        if finding is not None:
            details = Text.assemble(
                clean(finding.text), ("\n" + clean(finding.advice) if finding.advice else "", "dim")
            )
            details.append(f"\n{finding.check}; Enter shows the rollouts", style="dim italic")
        self.query_one("#details", Static).update(details)

    @on(Grid.Opened)
    def _open(self) -> None:
        finding = self._current()
        if finding is None:
            return
        if finding.rollouts:
            ids = ", ".join(map(literal, finding.rollouts))
            self.app.push_screen(RolloutsPage({"where": f"id in ({ids})"}))
        elif finding.steps:
            self.app.push_screen(RolloutsPage({"step": min(finding.steps)}))
        else:
            self.say("no single rollout shows this finding")

    def _current(self) -> Finding | None:
        findings, cursor = self.viewer.findings, self.query_one(Grid).cursor
        return findings[cursor] if 0 <= cursor < len(findings) else None

    def action_reload(self) -> None:
        self.viewer.look_again()


def _severity(value: Any) -> Shown:
    return one_line(value, 10), STYLES.get(value, "")


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        " title": one_line(finding.text, 300),
        " where": where(finding),
        "rollouts": len(finding.rollouts),
    }


def lines_of(findings: Sequence[Finding], room: int) -> Text:
    """Return the first findings, a line for each, and how to see the others."""
    lines = Text(no_wrap=True, overflow="ellipsis")
    for number, finding in enumerate(findings[:room]):
        lines.append("\n" * bool(number))
        lines.append(f"{finding.severity:<8}", style=STYLES.get(finding.severity, ""))
        lines.append(f" {one_line(finding.text, 300)}")
    more = len(findings) - room
    lines.append(f"\n{'' if more <= 0 else f'{more} more; '}press F for a list with their rollouts", style="dim")
    return lines
