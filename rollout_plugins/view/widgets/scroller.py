"""Rows with a cursor, of which only those on the screen are drawn."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.scroll_view import ScrollView


class Scroller(ScrollView, can_focus=True):
    """Moves a cursor through any number of rows, and keeps it on the screen."""

    HEAD: ClassVar[int] = 0
    """How many rows at the top do not scroll."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("ctrl+d", "move_screen(0.5)", "Half a screen down", show=False),
        Binding("ctrl+u", "move_screen(-0.5)", "Half a screen up", show=False),
        Binding("pagedown,ctrl+f", "move_screen(1)", "Screen down", show=False),
        Binding("pageup,ctrl+b", "move_screen(-1)", "Screen up", show=False),
        Binding("g,home", "go(0)", "Start", show=False),
        Binding("G,end", "go(-1)", "End", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.cursor = 0
        self.count = 0
        """The number of rows."""

    def move_to(self, row: int) -> None:
        """Move the cursor to a row, and scroll it into view."""
        row = max(0, min(row, self.count - 1))
        if row != self.cursor:
            self.cursor = row
            self.moved()
        self.show_cursor()
        self.refresh()

    def moved(self) -> None:
        """Handle that the cursor moved to another row."""

    def activate_row(self) -> None:
        """Handle a click on the row under the cursor."""

    def show_cursor(self) -> None:
        top, height = self.scroll_offset.y, self.size.height - self.HEAD
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif height > 0 and self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked row; open it if the cursor is there already."""
        row = self.scroll_offset.y + int(event.y) - self.HEAD
        if event.y >= self.HEAD and row < self.count:
            again = row == self.cursor
            self.move_to(row)
            if again:
                self.activate_row()

    def action_move(self, rows: int) -> None:
        self.move_to(self.cursor + rows)

    def action_move_screen(self, screens: float) -> None:
        rows = int((self.size.height - self.HEAD) * screens)
        self.scroll_to(y=self.scroll_offset.y + rows, animate=False)
        self.move_to(self.cursor + rows)

    def action_go(self, row: int) -> None:
        self.move_to(self.count - 1 if row < 0 else row)
