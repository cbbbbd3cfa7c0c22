"""The first screen: one line for each step, and a chart of the reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from rollout_hookspecs import Finding
from textual import events, on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.chart import render_steps, sparkline, training
from rollout_plugins.show.text import evenly, one_line
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.findings import lines_of
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.pages.rollouts import RolloutsPage
from rollout_plugins.view.widgets.columns import step_columns
from rollout_plugins.view.widgets.grid import Grid

_LOW, _TALL, _ROOMY = 8, 20, 32


class StepsPage(Page):
    """The steps of the run."""

    NOTES: ClassVar[Sequence[tuple[str, str]]] = (
        ("spread", "standard deviation of the reward over the step"),
        ("cut off", "answers that reached the length limit"),
        ("calls, failed", "tool calls, and those that raised or named no tool"),
        ("flat", "groups in which all answers got the same reward, so nothing is learned from them"),
        ("in group", "mean standard deviation of the reward within a group"),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "all", "All rollouts"),
        Binding("f", "filter", "Filter"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("F", "findings", "Findings"),
        Binding("p", "prompts", "Prompts"),
        Binding("r", "reload", "Read again", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._stats: list[dict[str, Any]] = []
        self._order: list[int] = []

    def body(self) -> Iterable[Widget]:
        yield Static(id="findings")
        yield Static(id="chart")
        yield Grid()

    def on_mount(self) -> None:
        self.title_is(Text("reading the run …"))
        self.renew()

    def renew(self) -> None:
        self.job(self.viewer.read_stats, self._arrived, group="stats")

    def _arrived(self, stats: list[dict[str, Any]]) -> None:
        grid = self.query_one(Grid)
        previous = self._step_under_cursor()
        self._stats = stats
        grid.empty = "no rollouts"
        grid.set_columns(step_columns(stats))
        self._order_rows(previous)
        self._draw()
        self.job(self.viewer.read_findings, self._show_findings, group="findings", failed=lambda _: None)

    def _show_findings(self, findings: list[Finding]) -> None:
        """Show the first findings above everything else."""
        place, height = self.query_one("#findings", Static), self.app.size.height
        place.display = bool(findings) and height >= _LOW
        place.update(lines_of(findings, 4 if height >= _ROOMY else 2))

    def _order_rows(self, previous: tuple[Any, Any] | None) -> None:
        """Sort the rows, and keep the cursor on its step."""
        grid = self.query_one(Grid)
        places = list(range(len(self._stats)))
        if grid.order is not None:
            name, down = grid.order
            with_value = [place for place in places if _key(self._stats[place].get(name)) is not None]
            without = [place for place in places if _key(self._stats[place].get(name)) is None]
            places = sorted(with_value, key=lambda place: _key(self._stats[place][name]) or 0, reverse=down) + without
        self._order = places
        rows = [self._stats[place] for place in places]
        cursor = next((n for n, row in enumerate(rows) if (row["split"], row["step"]) == previous), 0)
        grid.set_rows(len(rows), cursor)
        grid.put(0, rows)

    def _draw(self) -> None:
        """Draw the title, and the chart if the screen is large enough."""
        run = self.viewer.stored
        name = Text.assemble((one_line(run.name, 60), "bold"), (f"  {one_line(run.info.trainer, 40)}", "dim"))
        total = sum(row["rollouts"] for row in self._stats)
        self.title_is(name, Text.assemble(*self.viewer.state(), f"  {count(total, 'rollout')}"))
        chart, height = self.query_one("#chart", Static), self.app.size.height
        rows = training(self._stats)
        chart.display = bool(rows) and height >= _LOW
        width = self.app.size.width - 2
        if height >= _TALL:
            chart.update(render_steps(rows, width=width, max_lines=14 if height >= _ROOMY else 7))
        elif chart.display:
            rewards = evenly([row["reward"] for row in rows], max(width - 7, 1))
            chart.update(Text.assemble(("reward ", "bold"), (sparkline(rewards), "green")))

    def on_resize(self, _: events.Resize) -> None:
        if self._stats:
            self._draw()
            self._show_findings(self.viewer.findings)

    def _step_under_cursor(self) -> tuple[Any, Any] | None:
        row = self.query_one(Grid).row(self.query_one(Grid).cursor)
        return (row["split"], row["step"]) if row else None

    @on(Grid.Sorted)
    def _sorted(self) -> None:
        self.query_one(Grid).action_go(0)
        self._order_rows(None)

    @on(Grid.Opened)
    def _open_step(self) -> None:
        key = self._step_under_cursor()
        if key is not None:
            split, step = key
            self._open({"split": split, **({"where": "step is null"} if step is None else {"step": step})})

    def _open(self, filters: Mapping[str, Any], then: str = "") -> None:
        self.app.push_screen(RolloutsPage(filters, then=then))

    def action_all(self) -> None:
        self._open({})

    def action_filter(self) -> None:
        self._open({}, then="filter")

    def action_search(self) -> None:
        self._open({}, then="search")

    def action_findings(self) -> None:
        self.viewer.show_findings()

    def action_prompts(self) -> None:
        self.viewer.show_prompts()

    def action_reload(self) -> None:
        self.viewer.look_again()


def _key(value: Any) -> float | None:
    return float(value == "train") if isinstance(value, str) else finite(value)
