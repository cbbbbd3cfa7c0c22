"""Rollouts of a step or of the whole run, to sort, filter and search; on a wide screen one of them beside the list."""

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
_PIECE = 100_000
"""Rollouts that are searched at once; after each there is progress to show and a moment to stop."""


class _List(NamedTuple):
    """What a question to the run gave."""

    found: Rollouts
    names: list[str]
    """All columns of the run."""
    same: set[str]
    """Columns that would say the same in every row."""
    cursor: int | None
    """Where the rollout is that the cursor was on."""


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
        """`then`: what to ask for at once, `filter` or `search`."""
        super().__init__()
        self._asked = dict(filters)
        self._where: str = self._asked.pop("where", None) or ""
        self._text: str = self._asked.pop("search", None) or ""
        self._given: str | None = self._asked.pop("order", None)
        """An order by several columns or in SQL, which no column heading can show."""
        self._limit: int | None = self._asked.pop("limit", None)
        self._then = then
        self._found: Rollouts | None = None
        self._hits: list[Rollouts] | None = None
        self._searching = False
        self._names: list[str] = []
        self._preview: bool | None = None
        self._soon: Timer | None = None
        self._beside: str | None = None
        """The rollout that is shown beside the list."""

    def body(self) -> Iterable[Widget]:
        with Horizontal():
            yield Grid()
            yield Pager()

    def on_mount(self) -> None:
        self._choose_panes()
        if self._given and re.fullmatch(r"-?[\w./]+", self._given):
            self.query_one(Grid).order = (self._given.removeprefix("-"), self._given[0] == "-")
            self._given = None
        self._head("reading …")
        if self._text:
            self._search(self._text)
        else:
            self._read()

    # What is in the list

    def _read(
        self,
        *,
        where: str | None = None,
        text: str | None = None,
        hits: list[Rollouts] | None = None,
        start: bool = False,
        again: bool = False,
    ) -> None:
        """Find the rollouts, with another filter if one is given, which is kept when the run understands it.

        The cursor stays on its rollout, unless `start` moves it to the top, and goes on by as many rows as it is moved
        meanwhile. `again`: the list is the same as before, or longer, and its rows stay on the screen until they are
        read again.
        """
        where = self._where if where is None else where
        text, hits = (self._text, self._hits) if text is None else (text, hits)
        asked = {**self._asked, "where": where or None, "order": self._order()}
        here = None if start else self._here()
        grid = self.query_one(Grid)
        before = grid.cursor

        def find() -> _List:
            run = self.viewer.stored
            found = run.rollouts(**asked)
            found = found if hits is None else found.among(hits)
            found = found if self._limit is None else found.page(0, self._limit)
            splits = len(run.values("split"))
            same = {"split", "step"} if "step" in asked else {"split"} if splits < 2 else set()
            return _List(found, run.columns, same, found.position(here) if here else None)

        def arrived(listed: _List) -> None:
            self._where, self._text, self._hits = where, text, hits
            if self.ask.is_open:
                self.ask.close()
            place = listed.cursor if listed.cursor is not None else before if again else 0
            self._arrived(listed, place + grid.cursor - before, again=again)

        self.job(find, arrived, group="find", failed=self._refused)

    def _refused(self, error: Exception) -> None:
        """Show why; a filter that is being typed stays, so that it can be corrected."""
        if self.ask.is_open:
            self.ask.refuse(str(error))
        else:
            self.failed(error)
            self._head("")
            self.query_one(Grid).empty = one_line(str(error), 400)
            self.query_one(Grid).refresh()

    def _arrived(self, listed: _List, cursor: int, *, again: bool) -> None:
        grid = self.query_one(Grid)
        self._found, self._names = listed.found, listed.names
        grid.empty = "no rollouts match" if self._where or self._text or self._asked else "no rollouts"
        grid.set_columns(rollout_columns(listed.names, leave_out=listed.same))
        grid.set_rows(len(listed.found), cursor, keep=again)
        self._head("")
        self._look()
        then, self._then = self._then, ""
        if then == "filter":
            self.action_filter()
        elif then == "search":
            self.action_search()

    def _order(self) -> str | None:
        order = self.query_one(Grid).order
        return self._given if order is None else f"{'-' * order[1]}{order[0]}"

    def _here(self) -> str | None:
        grid = self.query_one(Grid)
        row = grid.row(grid.cursor)
        return str(row["id"]) if row else None

    def _head(self, state: str) -> None:
        """Which rollouts these are."""
        facts = [f"{name} {one_line(value, 40)}".removeprefix("split ") for name, value in self._asked.items()]
        left = Text("  ".join(facts) or "all rollouts", style="bold")
        if self._where:
            left.append(f"  where {one_line(self._where, 200)}", "cyan")
        if self._text:
            left.append(f"  with “{one_line(self._text, 60)}”", "yellow")
        size = "" if self._found is None else count(len(self._found), "rollout")
        self.title_is(left, "  ".join(filter(None, (state, size))))

    def renew(self) -> None:
        if not self._searching and self._hits is None and not self.ask.is_open:
            self._read(again=True)

    @on(Ask.Left)
    def _left(self) -> None:
        """Show what arrived in the meantime."""
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

    # The rows that are on the screen

    @on(Grid.Wanted)
    def _wanted(self, event: Grid.Wanted) -> None:
        found = self._found
        if found is None:
            return
        page = found.page(event.start, event.count)
        names = ["id", *dict.fromkeys(c.name for c in self.query_one(Grid).columns if not c.name.startswith(" "))]

        def put(rows: list[dict[str, Any] | None]) -> None:
            if self._found is found:
                self.query_one(Grid).put(event.start, rows)
                self._share()
                if event.start <= self.query_one(Grid).cursor < event.start + len(rows):
                    self._look()
                self.job(partial(_texts, page), say, group=f"texts {event.start}")  # added to the rows that are here

        def say(texts: list[Mapping[str, Any] | None]) -> None:
            if self._found is found:
                self.query_one(Grid).put(event.start, texts)

        self.job(partial(page.rows, names), put, group=f"rows {event.start}")

    # The one under the cursor

    @on(Grid.Opened)
    def _opened(self) -> None:
        if self._found is not None and len(self._found):
            grid = self.query_one(Grid)
            self.app.push_screen(RolloutPage(self._found, grid.cursor, find=self._text, moved=grid.move_to))

    def current(self) -> Rollout | None:
        return None if self._found is None else next(iter(self._found.page(self.query_one(Grid).cursor, 1)), None)

    @on(Grid.Moved)
    def _look(self) -> None:
        """Show the rollout beside the list, when the cursor has come to rest."""
        if self._soon is not None:
            self._soon.stop()
        if self.has_class("-wide") and self._found is not None:
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
        """The list gets half of the screen, and more where its columns need it and the rollout still has room."""
        width = self.app.size.width
        needed = min(self.query_one(Grid).needs, width - _BESIDE)
        self.query_one(Grid).styles.width = max(needed, width // 2) if self.has_class("-wide") else "1fr"

    # Filter and search

    def action_filter(self) -> None:
        hint = "a condition over the columns, such as reward < 0 and calls > 1; tab completes, empty clears"
        self.ask.open("where", self._where, lambda text: self._read(where=text), names=self._names, hint=hint)

    def action_search(self) -> None:
        hint = "text, in any case, in whatever is stored of these rollouts; empty clears"
        self.ask.open("search", self._text, self._search, hint=hint)

    def _search(self, text: str) -> None:
        if not text:
            self._read(text="", hits=None)
            return
        self._searching = True
        filters = {**self._asked, "search": text}

        def search() -> list[Rollouts]:
            worker = get_current_worker()
            pieces = [{}] if "step" in filters else self._pieces()
            hits: list[Rollouts] = []
            for done, piece in enumerate(pieces):
                if worker.is_cancelled:
                    break
                found = self.viewer.stored.rollouts(**{**filters, **piece})
                hits.append(found)
                so_far = f"searching {(done + 1) / len(pieces):.0%} · {sum(map(len, hits)):,} found · esc stops"
                self.tell(worker, partial(self._head, so_far))
            return hits

        def searched(hits: list[Rollouts]) -> None:
            self._searching = False
            self._read(text=text, hits=hits)

        def failed(error: Exception) -> None:
            self._searching = False
            self._refused(error)

        self._head("searching · esc stops")
        if self.ask.is_open:
            self.ask.close()
        self.job(search, searched, group="search", failed=failed)

    def _pieces(self) -> list[dict[str, Any]]:
        """The run's steps in parts of about the same size, and the rollouts without a step."""
        stats = self.viewer.stats or self.viewer.stored.stats()
        steps = sorted({row["step"] for row in stats if row["step"] is not None})
        size = max(len(steps) * _PIECE // max(sum(row["rollouts"] for row in stats), 1), 1)
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
        """Take the filter and the search away, if there are any, before going back."""
        if not self._searching and (self._where or self._text):
            self._read(where="", text="", hits=None)
        else:
            super().action_escape()


def _texts(page: Rollouts) -> list[Mapping[str, Any] | None]:
    """What each rollout was asked and answered, each in one line."""
    texts: list[Mapping[str, Any] | None] = [None] * len(page)
    for place, rollout in page.numbered():
        said = {QUESTION: question_text(rollout), ANSWER: completion_text(rollout)}
        texts[place] = {name: one_line(text, 200) for name, text in said.items()}
    return texts
