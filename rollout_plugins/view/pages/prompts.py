"""Every prompt of the run in one line: how often it passed, and whether it was learnt, stuck or forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from rollout_plugins.content.numbers import finite
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.widgets.columns import QUESTION, prompt_columns
from rollout_plugins.view.widgets.grid import Grid


class PromptsPage(Page):
    """Prompts of the run."""

    NOTES: ClassVar[Sequence[tuple[str, str]]] = (
        ("forgotten", "at least half of the attempts passed in some step, and none in the last"),
        ("stuck", "no attempt ever passed"),
        ("learnt", "less than half passed in the first step, at least half in the last"),
        ("saturated", "every attempt passed"),
        ("mixed", "passed and failed, and none of the others"),
        ("trend", "share of attempts that passed, step by step"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "over_time", "Over time")]

    def __init__(self, read: Callable[[], tuple[str, list[dict[str, Any]]]]) -> None:
        super().__init__()
        self._read = read
        self._rows: list[dict[str, Any]] = []

    def body(self) -> Iterable[Widget]:
        yield Grid()

    def on_mount(self) -> None:
        self.title_is(Text("reading prompts …"))
        self.renew()

    def renew(self) -> None:
        self.job(self._read, self._arrived, group="prompts")

    def _arrived(self, answer: tuple[str, list[dict[str, Any]]]) -> None:
        headline, rows = answer
        self._rows = [{**row, QUESTION: row["question"]} for row in rows]
        self.title_is(Text(count(len(rows), "prompt"), style="bold"), headline)
        grid = self.query_one(Grid)
        grid.empty = "no prompts"
        grid.set_columns(prompt_columns(rows))
        self._order_rows()

    def _order_rows(self) -> None:
        grid = self.query_one(Grid)
        rows = self._rows
        if grid.order is not None:
            name, down = grid.order
            known = [row for row in rows if _key(row.get(name)) is not None]
            unknown = [row for row in rows if _key(row.get(name)) is None]
            rows = sorted(known, key=lambda row: _key(row[name]) or (0.0, ""), reverse=down) + unknown
        grid.set_rows(len(rows))
        grid.put(0, rows)

    @on(Grid.Sorted)
    def _sorted(self) -> None:
        self._order_rows()

    @on(Grid.Opened)
    def action_over_time(self) -> None:
        """Show the answers to this prompt through the run."""
        row = self.query_one(Grid).row(self.query_one(Grid).cursor)
        if row is not None:
            rollout_id = row["last_rollout"]
            self.job(lambda: self.viewer.stored.get(rollout_id), self.viewer.show_over_time, group="open")


def _key(value: Any) -> tuple[float, str] | None:
    """Return what a value sorts by: numbers by size, texts by their letters."""
    if isinstance(value, str):
        return 0.0, value
    number = finite(value)
    return None if number is None else (number, "")
