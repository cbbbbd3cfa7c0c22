"""A widget for blocks of any length, which draws only the rows on the screen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.strip import Strip

from rollout_plugins.show.blocks import Block, Row, fold, lay_out
from rollout_plugins.view.widgets.scroller import Scroller

MARKER = "▌"


class Pager(Scroller):
    """Blocks below each other, with a cursor line, folds and search."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"pager--line", "pager--marker", "pager--match"}
    DEFAULT_CSS = """
    Pager { background: $background; scrollbar-size-vertical: 1; scrollbar-gutter: stable; overflow-x: hidden; }
    Pager > .pager--line { background: $surface; }
    Pager:focus > .pager--line { background: $surface-lighten-1; }
    Pager > .pager--marker { color: $panel; }
    Pager:focus > .pager--marker { color: $accent; }
    Pager > .pager--match { background: $warning; color: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right_square_bracket,J", "turn(1)", "Next message", show=False),
        Binding("left_square_bracket,K", "turn(-1)", "Previous message", show=False),
        Binding("enter,space", "fold", "Fold", show=True),
        Binding("z", "fold_all", "Fold all", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.blocks: Sequence[Block] = ()
        self.rows: list[Row] = []
        self.needle = ""
        self._laid_out = 0

    def show(self, blocks: Sequence[Block], *, line: int = 0) -> None:
        """Show these blocks instead."""
        self.blocks = blocks
        self._lay_out()
        self.scroll_to(y=0, animate=False)
        self.move_to(line)

    @property
    def room(self) -> int:
        """How many cells a row has, next to the marker."""
        return max(self.scrollable_content_region.width - 1, 1)

    @property
    def block(self) -> Block | None:
        """The block at the cursor."""
        return self.blocks[self.rows[self.cursor].block] if self.rows else None

    def _lay_out(self) -> None:
        self._laid_out = self.room
        self.rows = lay_out(self.blocks, self.room)
        self.count = len(self.rows)
        self.virtual_size = Size(0, self.count)
        self.cursor = min(self.cursor, max(self.count - 1, 0))
        self.refresh()

    def _lay_out_again(self) -> None:
        """Lay out again after a fold or a resize: cursor and block keep their place on the screen."""
        if not self.rows:
            self._lay_out()
            return
        block = self.rows[self.cursor].block
        above = self.cursor - self._first(block)
        on_screen = self.cursor - self.scroll_offset.y
        self._lay_out()
        first, last = self._first(block), self._first(block + 1) - 1
        self.move_to(min(first + above, last))
        self.scroll_to(y=self.cursor - on_screen, animate=False)
        self.show_cursor()

    def _first(self, block: int) -> int:
        return bisect_left(self.rows, block, key=lambda row: row.block)

    def on_resize(self, _: events.Resize) -> None:
        if self.room != self._laid_out:
            self._lay_out_again()

    def activate_row(self) -> None:
        self.action_fold()

    def action_turn(self, turns: int) -> None:
        """Move to the first row of the next or previous turn, near the top of the screen."""
        if self.block is None:
            return
        here = self.rows[self.cursor].block
        starts = [number for number, block in enumerate(self.blocks) if block.gap or number == 0]
        ahead = [number for number in starts if (number > here if turns > 0 else number < here)]
        if ahead:
            number = ahead[0] if turns > 0 else ahead[-1]
            row = self._first(number)
            row += not self.rows[row].cells and row + 1 < len(self.rows)
            self.scroll_to(y=max(row - 1, 0), animate=False)
            self.move_to(row)

    def action_fold(self) -> None:
        if self.block is not None:
            self.block.folded = not self.block.folded
            self._lay_out_again()

    def fold(self, *kinds: str) -> None:
        """Fold all blocks of these kinds, or all blocks; unfold them if all are folded."""
        fold(self.blocks, kinds)
        self._lay_out_again()

    def action_fold_all(self) -> None:
        self.fold()

    def find(self, needle: str) -> int:
        """Search for a text, unfold the blocks with it, move to the next match, and return the number of matching
        rows.
        """
        self.needle = needle.casefold()
        if not self.needle:
            self.refresh()
            return 0
        for block in self.blocks:
            if block.folded and self.needle in block.text.casefold():
                block.folded = False
        self._lay_out_again()
        matches = self._matches()
        if matches:
            self.move_to(next((row for row in matches if row >= self.cursor), matches[0]))
        return len(matches)

    def find_next(self, step: int) -> tuple[int, int]:
        """Move to the next match, and return its number and the number of all matches."""
        matches = self._matches()
        if not matches:
            return 0, 0
        ahead = [row for row in matches if (row > self.cursor if step > 0 else row < self.cursor)]
        row = (ahead or matches)[0 if step > 0 else -1]
        self.move_to(row)
        return matches.index(row) + 1, len(matches)

    def place_of_match(self) -> tuple[int, int]:
        """Return the number of the match at the cursor, 0 if there is none, and the number of all matches."""
        matches = self._matches()
        return (matches.index(self.cursor) + 1 if self.cursor in matches else 0), len(matches)

    def _matches(self) -> list[int]:
        """Return the rows with the text; the first row of a block in which a match spans two rows."""
        rows = [number for number, row in enumerate(self.rows) if self.needle and self.needle in row.text.casefold()]
        with_rows = {self.rows[number].block for number in rows}
        for number, block in enumerate(self.blocks):
            if self.needle and number not in with_rows and self.needle in block.text.casefold():
                rows.append(self._first(number) + block.gap)
        return sorted(rows)

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        number = self.scroll_offset.y + y
        if number >= len(self.rows):
            return Strip.blank(width, base)
        row = self.rows[number]
        here = number == self.cursor
        marked = bool(row.cells) and row.block == self.rows[self.cursor].block
        style = base + self.get_component_rich_style("pager--line", partial=True) if here else base
        marker = self.get_component_rich_style("pager--marker", partial=True)
        segments = [Segment(MARKER, marker) if marked else Segment(" ")]
        segments += [Segment(text, Style.parse(how) if isinstance(how, str) else how) for text, how in row.cells]
        strip = Strip(_highlighted(segments, self.needle, self.get_component_rich_style("pager--match", partial=True)))
        return strip.apply_style(style).adjust_cell_length(width, style)


def _highlighted(segments: list[Segment], needle: str, style: Style) -> list[Segment]:
    """Return the segments with the matches highlighted; a match may span several segments."""
    text = "".join(segment.text for segment in segments).casefold()
    if not needle or needle not in text or len(text) != sum(len(segment.text) for segment in segments):
        return segments
    marks = []
    position = text.find(needle)
    while position >= 0:
        marks.append((position, position + len(needle)))
        position = text.find(needle, position + len(needle))
    result, start = [], 0
    for segment in segments:
        end = start + len(segment.text)
        cuts = sorted({start, end, *(min(max(edge, start), end) for mark in marks for edge in mark)})
        for low, high in pairwise(cuts):
            inside = any(first <= low < last for first, last in marks)
            plain = segment.style or Style.null()
            result.append(Segment(segment.text[low - start : high - start], plain + style if inside else plain))
        start = end
    return result
