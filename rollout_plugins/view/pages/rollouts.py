"""A list of rollouts of a step or a run, to sort, filter and search; on a wide screen with one of them next to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from rollout_hookspecs import Rollout
from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widget import Widget
from textual.worker import get_current_worker

from rollout_plugins.reading.lazy_rollouts import Rollouts
from rollout_plugins.show.blocks import Block
from rollout_plugins.show.conversation import completion_text, question_text
from rollout_plugins.show.text import one_line
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.rollout import RolloutPage, blocks_of
from rollout_plugins.view.pages.rollout_actions import RolloutActions
from rollout_plugins.view.widgets.ask import Ask
from rollout_plugins.view.widgets.columns import ANSWER, QUESTION, rollout_columns
from rollout_plugins.view.widgets.grid import Grid
from rollout_plugins.view.widgets.pager import Pager

_WIDE, _BESIDE = 110, 60
_SEARCH_SIZE = 100_000
"""How many rollouts are searched at once; after each part, progress is shown and the search can be stopped."""


class _List(NamedTuple):
    """The result of a query."""

    rollouts: Rollouts
    names: list[str]
    """All columns of the run."""
    constant: set[str]
    """Columns that would have the same value in every row."""
    cursor: int | None
    """The index of the rollout that the cursor was on."""


class RolloutsPage(RolloutActions):
    """A list of rollouts."""

    CSS = """
    RolloutsPage Grid { width: 1fr; }
    RolloutsPage Pager { width: 1fr; display: none; border-left: vkey $panel; }
    RolloutsPage.-wide Pager { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "filter", "Filter"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("p", "preview", "Preview", show=False),
        Binding("tab", "app.focus_next", "Other pane", show=False),
        Binding("r", "reload", "Read again", show=False),
    ]

    def __init__(self, filters: Mapping[str, Any], *, then: str = "") -> None:
        """Create the screen; `then` opens the input line at once, for `filter` or `search`."""
        super().__init__()
        self._query_filters = dict(filters)
        self._where: str = self._query_filters.pop("where", None) or ""
        self._text: str = self._query_filters.pop("search", None) or ""
        self._sql_order: str | None = self._query_filters.pop("order", None)
        """An order by several columns or in SQL, which no column heading can show."""
        self._limit: int | None = self._query_filters.pop("limit", None)
        self._then = then
        self._rollouts: Rollouts | None = None
        self._hits: list[Rollouts] | None = None
        self._searching = False
        self._names: list[str] = []
        self._preview: bool | None = None
        self._soon: Timer | None = None
        self._beside: str | None = None
        """The id of the rollout that is shown next to the list."""

    def body(self) -> Iterable[Widget]:
        with Horizontal():
            yield Grid()
            yield Pager()

    def on_mount(self) -> None:
        self._choose_panes()
        if self._sql_order and re.fullmatch(r"-?[\w./]+", self._sql_order):
            self.query_one(Grid).order = (self._sql_order.removeprefix("-"), self._sql_order[0] == "-")
            self._sql_order = None
        self._head("reading …")
        if self._text:
            self._search(self._text)
        else:
            self._read()

    # --- the list

    def _read(
        self,
        *,
        where: str | None = None,
        text: str | None = None,
        hits: list[Rollouts] | None = None,
        start: bool = False,
        again: bool = False,
    ) -> None:
        """Query the rollouts, with another filter if one is given, which is kept if the query succeeds.

        The cursor stays on its rollout, unless `start` moves it to the top, and keeps movements made meanwhile.
        `again`: the list is the same or longer, and its rows stay on the screen until they are read again.
        """
        where = self._where if where is None else where
        text, hits = (self._text, self._hits) if text is None else (text, hits)
        filters = {**self._query_filters, "where": where or None, "order": self._order()}
        previous = None if start else self._rollout_under_cursor()
        grid = self.query_one(Grid)
        before = grid.cursor

        def find() -> _List:
            run = self.viewer.stored
            rollouts = run.rollouts(**filters)
            rollouts = rollouts if hits is None else rollouts.among(hits)
            rollouts = rollouts if self._limit is None else rollouts.page(0, self._limit)
            splits = len(run.values("split"))
            constant = {"split", "step"} if "step" in filters else {"split"} if splits < 2 else set()
            return _List(rollouts, run.columns, constant, rollouts.position(previous) if previous else None)

        def arrived(query_result: _List) -> None:
            self._where, self._text, self._hits = where, text, hits
            if self.ask.is_open:
                self.ask.close()
            place = query_result.cursor if query_result.cursor is not None else before if again else 0
            self._arrived(query_result, place + grid.cursor - before, again=again)

        self.job(find, arrived, group="find", failed=self._refused)

    def _refused(self, error: Exception) -> None:
        """Show the error; a filter that is being typed stays, so that it can be corrected."""
        if self.ask.is_open:
            self.ask.refuse(str(error))
        else:
            self.failed(error)
            self._head("")
            self.query_one(Grid).empty = one_line(str(error), 400)
            self.query_one(Grid).refresh()

    def _arrived(self, query_result: _List, cursor: int, *, again: bool) -> None:
        grid = self.query_one(Grid)
        self._rollouts, self._names = query_result.rollouts, query_result.names
        grid.empty = "no rollouts match" if self._where or self._text or self._query_filters else "no rollouts"
        grid.set_columns(rollout_columns(query_result.names, leave_out=query_result.constant))
        grid.set_rows(len(query_result.rollouts), cursor, keep=again)
        self._head("")
        self._look()
        then, self._then = self._then, ""
        if then == "filter":
            self.action_filter()
        elif then == "search":
            self.action_search()

    def _order(self) -> str | None:
        order = self.query_one(Grid).order
        return self._sql_order if order is None else f"{'-' * order[1]}{order[0]}"

    def _rollout_under_cursor(self) -> str | None:
        grid = self.query_one(Grid)
        row = grid.row(grid.cursor)
        return str(row["id"]) if row else None

    def _head(self, state: str) -> None:
        """Show which rollouts these are."""
        facts = [f"{name} {one_line(value, 40)}".removeprefix("split ") for name, value in self._query_filters.items()]
        left = Text("  ".join(facts) or "all rollouts", style="bold")
        if self._where:
            left.append(f"  where {one_line(self._where, 200)}", "cyan")
        if self._text:
            left.append(f"  with “{one_line(self._text, 60)}”", "yellow")
        size = "" if self._rollouts is None else count(len(self._rollouts), "rollout")
        self.title_is(left, "  ".join(filter(None, (state, size))))

    def renew(self) -> None:
        if not self._searching and self._hits is None and not self.ask.is_open:
            self._read(again=True)

    @on(Ask.Left)
    def _left(self) -> None:
        """Show the rollouts that arrived in the meantime."""
        self.renew()

    def action_reload(self) -> None:
        self._beside = None
        if self._text:
            self._search(self._text)
        else:
            self._read()

    @on(Grid.Sorted)
    def _sorted(self) -> None:
        self.query_one(Grid).action_go(0)
        self._read(start=True)

    # --- the rows on the screen

    @on(Grid.Wanted)
    def _read_requested_rows(self, event: Grid.Wanted) -> None:
        rollouts = self._rollouts
        if rollouts is None:
            return
        page = rollouts.page(event.start, event.count)
        names = ["id", *dict.fromkeys(c.name for c in self.query_one(Grid).columns if not c.name.startswith(" "))]

        def put(rows: list[dict[str, Any] | None]) -> None:
            if self._rollouts is rollouts:
                self.query_one(Grid).put(event.start, rows)
                self._share()
                if event.start <= self.query_one(Grid).cursor < event.start + len(rows):
                    self._look()
                self.job(partial(_texts, page), put_texts, group=f"texts {event.start}")  # added to the same rows

        def put_texts(texts: list[Mapping[str, Any] | None]) -> None:
            if self._rollouts is rollouts:
                self.query_one(Grid).put(event.start, texts)

        self.job(partial(page.rows, names), put, group=f"rows {event.start}")

    # --- the rollout under the cursor

    @on(Grid.Opened)
    def _open_rollout(self) -> None:
        if self._rollouts is not None and len(self._rollouts):
            grid = self.query_one(Grid)
            self.app.push_screen(RolloutPage(self._rollouts, grid.cursor, find=self._text, moved=grid.move_to))

    def current(self) -> Rollout | None:
        return (
            None if self._rollouts is None else next(iter(self._rollouts.page(self.query_one(Grid).cursor, 1)), None)
        )

    @on(Grid.Moved)
    def _look(self) -> None:
        """Show the rollout next to the list, once the cursor rests."""
        if self._soon is not None:
            self._soon.stop()
        if self.has_class("-wide") and self._rollouts is not None:
            self._soon = self.set_timer(0.05, self._show)

    def _show(self) -> None:
        pager, beside = self.query_one(Pager), self._beside

        def read() -> tuple[str, Sequence[Block]] | None:
            rollout = self.current()
            if rollout is None:
                return "", []
            return None if rollout.id == beside else (rollout.id, blocks_of(rollout, self.viewer, pager.room))

        def show(answer: tuple[str, Sequence[Block]] | None) -> None:
            if answer is not None:
                self._beside = answer[0]
                pager.show(answer[1])

        self.job(read, show, group="preview")

    def action_preview(self) -> None:
        self._preview = not self.has_class("-wide")
        self._choose_panes()
        self._look()

    def on_resize(self, _: events.Resize) -> None:
        self._choose_panes()
        if not self._searching:
            self._head("")
        self._look()

    def _choose_panes(self) -> None:
        wide = self.app.size.width >= _WIDE if self._preview is None else self._preview
        self.set_class(wide, "-wide")
        self._share()

    def _share(self) -> None:
        """Give the list half of the screen, or more if its columns need it and the rollout still has room."""
        width = self.app.size.width
        needed = min(self.query_one(Grid).needs, width - _BESIDE)
        self.query_one(Grid).styles.width = max(needed, width // 2) if self.has_class("-wide") else "1fr"

    # --- filter and search

    def action_filter(self) -> None:
        hint = (
            "a condition on columns, such as reward < 0 and calls > 1; tab completes, an empty one clears the filter"
        )
        self.ask.open("where", self._where, lambda text: self._read(where=text), names=self._names, hint=hint)

    def action_search(self) -> None:
        hint = "text, in any case, in everything stored of these rollouts; an empty one clears the search"
        self.ask.open("search", self._text, self._search, hint=hint)

    def _search(self, text: str) -> None:
        if not text:
            self._read(text="", hits=None)
            return
        self._searching = True
        filters = {**self._query_filters, "search": text}

        def search() -> list[Rollouts]:
            worker = get_current_worker()
            pieces = [{}] if "step" in filters else self._pieces()
            hits: list[Rollouts] = []
            for done, piece in enumerate(pieces):
                if worker.is_cancelled:
                    break
                matches = self.viewer.stored.rollouts(**{**filters, **piece})
                hits.append(matches)
                so_far = f"searching {(done + 1) / len(pieces):.0%} · {sum(map(len, hits)):,} found · esc stops"
                self.call_on_screen(worker, partial(self._head, so_far))
            return hits

        def show_hits(hits: list[Rollouts]) -> None:
            self._searching = False
            self._read(text=text, hits=hits)

        def failed(error: Exception) -> None:
            self._searching = False
            self._refused(error)

        self._head("searching · esc stops")
        if self.ask.is_open:
            self.ask.close()
        self.job(search, show_hits, group="search", failed=failed)

    def _pieces(self) -> list[dict[str, Any]]:
        """Split the run's steps into parts of about the same size, and add the rollouts without a step."""
        stats = self.viewer.stats or self.viewer.stored.stats()
        steps = sorted({row["step"] for row in stats if row["step"] is not None})
        size = max(len(steps) * _SEARCH_SIZE // max(sum(row["rollouts"] for row in stats), 1), 1)
        parts = [steps[start : start + size] for start in range(0, len(steps), size)]
        pieces: list[dict[str, Any]] = [{"step": range(part[0], part[-1] + 1)} for part in parts]
        if any(row["step"] is None for row in stats):
            pieces.append({"where": "step is null"})
        return pieces

    def action_back(self) -> None:
        if self._searching:
            self.workers.cancel_group(self, "search")
            self._searching = False
            self._head("search stopped")
        else:
            super().action_back()

    def action_escape(self) -> None:
        """Clear the filter and the search, if there are any, before going back."""
        if not self._searching and (self._where or self._text):
            self._read(where="", text="", hits=None)
        else:
            super().action_escape()


def _texts(page: Rollouts) -> list[Mapping[str, Any] | None]:
    """Return the question and the answer of each rollout, each on one line."""
    texts: list[Mapping[str, Any] | None] = [None] * len(page)
    for place, rollout in page.numbered():
        values = {QUESTION: question_text(rollout), ANSWER: completion_text(rollout)}
        texts[place] = {name: one_line(text, 200) for name, text in values.items()}
    return texts
