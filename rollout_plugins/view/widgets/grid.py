"""A table of any number of rows, which requests only the rows on the screen and shows them when they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from rollout_plugins.view.widgets.columns import Column, Shown
from rollout_plugins.view.widgets.scroller import Scroller

PAGE = 64
_MAX_ROWS = 40 * PAGE
_WIDEST, _WORDS = 24, 18


class Grid(Scroller):
    """Rows with a cursor, and a column to sort by."""

    HEAD = 1
    COMPONENT_CLASSES: ClassVar[set[str]] = {"grid--head", "grid--chosen", "grid--cursor"}
    DEFAULT_CSS = """
    Grid { background: $background; scrollbar-size: 0 1; scrollbar-gutter: stable; }
    Grid > .grid--head { background: $panel; color: $text-muted; text-style: bold; }
    Grid > .grid--chosen { background: $primary; color: $text; text-style: bold; }
    Grid > .grid--cursor { background: $surface; }
    Grid:focus > .grid--cursor { background: $surface-lighten-2; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("l,right", "choose(1)", "Next column", show=False),
        Binding("h,left", "choose(-1)", "Previous column", show=False),
        Binding("s", "sort", "Sort"),
    ]

    class Opened(Message):
        """A row was opened."""

    class Moved(Message):
        """The cursor moved to another row."""

    class Sorted(Message):
        """The sort order changed, see `Grid.order`."""

    class Wanted(Message):
        """Rows on the screen have not been read yet."""

        def __init__(self, start: int, count: int) -> None:
            super().__init__()
            self.start, self.count = start, count

    def __init__(self) -> None:
        super().__init__()
        self.columns: list[Column] = []
        self.chosen = 0
        self.order: tuple[str, bool] | None = None
        """Column and whether it is descending; None for the original order."""
        self.empty = ""
        """The text that is shown without rows."""
        self._rows: dict[int, Mapping[str, Any] | None] = {}
        self._cells: dict[int, list[Shown]] = {}
        self._widths: list[int] = []
        self._requested_pages: set[int] = set()

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Show these columns. If they are unchanged, widths and the selected column stay."""
        before = [(column.name, column.label) for column in self.columns]
        self.columns = list(columns)
        self._cells.clear()
        if before != [(column.name, column.label) for column in columns]:
            self._widths = [cell_len(column.label) for column in columns]
            names = [column.name for column in columns]
            self.chosen = names.index("reward") if "reward" in names else 0
            self._measure()

    def set_rows(self, count: int, cursor: int = 0, *, keep: bool = False) -> None:
        """Set the number of rows, which are then read. `keep`: show the old rows until the new ones arrive."""
        on_screen = self.cursor - self.scroll_offset.y
        self.count = count
        self._forget(rows=not keep)
        self._measure()
        self.cursor = max(0, min(cursor, count - 1))
        self.scroll_to(y=max(self.cursor - on_screen, 0), animate=False)
        self.show_cursor()
        self.refresh()

    def put(self, start: int, rows: Sequence[Mapping[str, Any] | None]) -> None:
        """Store requested rows, or further values of rows that are already stored."""
        if len(self._rows) > _MAX_ROWS:
            self._forget()
        for place, row in enumerate(rows, start):
            before = self._rows.get(place)
            more = before and row and before.get("id") == row.get("id", before.get("id"))
            self._rows[place] = {**before, **row} if before and row and more else row
            self._cells.pop(place, None)
        self._fit()
        self.refresh()

    def row(self, place: int) -> Mapping[str, Any] | None:
        """Return a row that has been read."""
        return self._rows.get(place)

    def _forget(self, *, rows: bool = True) -> None:
        self._requested_pages.clear()
        if rows:
            self._rows.clear()
            self._cells.clear()

    def _fit(self) -> None:
        """Widen columns to fit their content. They are never narrowed, so that nothing jumps."""
        for place in range(self.scroll_offset.y, self.scroll_offset.y + max(self.size.height, 1)):
            for number_, (text, _) in enumerate(self._shown(place) or ()):
                if not self.columns[number_].left:
                    self._widths[number_] = max(self._widths[number_], min(cell_len(text), _WIDEST))
        self._measure()

    @property
    def _room(self) -> int:
        """How many cells are next to the scrollbar."""
        return max(self.scrollable_content_region.width, 1)

    @property
    def needs(self) -> int:
        """How many cells all columns need, with some words for columns of text."""
        texts = sum(column.left for column in self.columns)
        return sum(self._fixed_widths()) + texts * _WORDS + 2

    def _measure(self) -> None:
        self.virtual_size = Size(sum(self._all_widths()) + 1, self.count + 1)

    def _all_widths(self) -> list[int]:
        """Return the width of each column including its padding; columns of text share the remaining width."""
        widths = self._fixed_widths()
        texts = [place for place, column in enumerate(self.columns) if column.left]
        room = self._room - 1 - sum(widths)
        for place in texts:
            widths[place] = max(room // len(texts), _WORDS)
        return widths

    def _fixed_widths(self) -> list[int]:
        """Return the width of each column; 0 for a column of text."""
        sorted_by = self.order[0] if self.order else None
        pairs = zip(self.columns, self._widths, strict=True)
        return [0 if column.left else width + 2 + (column.name == sorted_by) for column, width in pairs]

    def _shown(self, place: int) -> list[Shown] | None:
        if place in self._cells:
            return self._cells[place]
        if place not in self._rows:
            return None
        row = self._rows[place]
        if row is None:
            cells = [("cannot be read" if column.left else "", "red") for column in self.columns]
        else:
            cells = [column.show(row.get(column.name)) for column in self.columns]
        self._cells[place] = cells
        return cells

    def render_line(self, y: int) -> Strip:
        width, base = self._room, self.rich_style
        if y == 0:
            return self._head()
        place = self.scroll_offset.y + y - 1
        if place >= self.count:
            text = f"  {self.empty}" if y == 2 and not self.count else ""
            return Strip([Segment(text, base + Style(dim=True))]).adjust_cell_length(width, base)
        self._request_row(place)
        if place == self.cursor:
            base += self.get_component_rich_style("grid--cursor", partial=True)
        strip = Strip([Segment(text, base + Style.parse(style)) for text, style in self._line(place)])
        return strip.crop_extend(self.scroll_offset.x, self.scroll_offset.x + width, base)

    def _line(self, place: int) -> list[Shown]:
        cells = self._shown(place)
        if cells is None:
            return [("  …", "dim")]
        line: list[Shown] = [("▌" if place == self.cursor else " ", "")]
        for column, width, (text, style) in zip(self.columns, self._all_widths(), cells, strict=True):
            line.append((_cell(text, width, left=column.left), style))
        return line

    def _head(self) -> Strip:
        """Return the column names, with an arrow at the end if there are more columns."""
        head = self.rich_style + self.get_component_rich_style("grid--head", partial=True)
        segments = [Segment(" ", head)]
        for place, (column, width) in enumerate(zip(self.columns, self._all_widths(), strict=True)):
            marked = self.order is not None and self.order[0] == column.name and column.label.strip()
            mark = ("▼" if self.order and self.order[1] else "▲") if marked else ""
            style = head
            if place == self.chosen and self.has_focus:
                style += self.get_component_rich_style("grid--chosen", partial=True)
            text = _cell(f"{column.label}{mark}", width, left=column.left)
            segments += [Segment(text[:-2], style), Segment(text[-2:], head)]
        end = self.scroll_offset.x + self._room
        more = sum(self._all_widths()) - 1 > end
        strip = Strip(segments).crop_extend(self.scroll_offset.x, end - more, head)
        return Strip([*strip, Segment("→", head)]) if more else strip

    def _request_row(self, place: int) -> None:
        page = place // PAGE
        if page not in self._requested_pages:
            self._requested_pages.add(page)
            self.post_message(self.Wanted(page * PAGE, min(PAGE, self.count - page * PAGE)))

    def moved(self) -> None:
        self.post_message(self.Moved())

    def on_resize(self, _: events.Resize) -> None:
        self._measure()
        self.show_cursor()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self._click_head(int(event.x) + self.scroll_offset.x)

    def _click_head(self, x: int) -> None:
        end = 1
        for place, width in enumerate(self._all_widths()):
            end += width
            if x < end:
                self.chosen = place
                self.action_sort()
                return

    def action_choose(self, columns: int) -> None:
        """Select the column that `s` sorts by, and scroll it into view."""
        ahead = [n for n, column in enumerate(self.columns) if (n - self.chosen) * columns > 0 and not column.left]
        if not ahead:
            return
        self.chosen = ahead[0] if columns > 0 else ahead[-1]
        widths = self._all_widths()
        start, width = 1 + sum(widths[: self.chosen]), widths[self.chosen] if widths else 0
        if start < self.scroll_offset.x + 1:
            self.scroll_to(x=start - 1, animate=False)
        elif start + width > self.scroll_offset.x + self._room:
            self.scroll_to(x=start + width - self._room, animate=False)
        self.refresh()

    def action_sort(self) -> None:
        """Sort descending, then ascending, then in the original order."""
        name = self.columns[self.chosen].name if self.columns else ""
        if not name or name.startswith(" "):
            return
        if self.order is None or self.order[0] != name:
            self.order = (name, True)
        else:
            self.order = (name, False) if self.order[1] else None
        self.post_message(self.Sorted())
        self.refresh()

    def activate_row(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        if self.count:
            self.post_message(self.Opened())


def _cell(text: str, width: int, *, left: bool) -> str:
    """Return the text in a cell that ends with two spaces."""
    room = max(width - 2, 1)
    if cell_len(text) > room:
        text = set_cell_size(text, room - 1) + "…"
    padding = " " * (room - cell_len(text))
    return (text + padding if left else padding + text) + "  "
