"""Lay out the content of a pager: blocks of text that fold, as rows for a given width."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from rich.cells import cell_len, get_character_cell_size
from rich.style import Style
from rich.text import Text

from rollout_plugins.show.layout import CONSOLE, Layout
from rollout_plugins.show.text import clean, omitted

Cells = list[tuple[str, str | Style]]
Spans = Sequence[tuple[str, str | Style]]
# A block with more characters shows only its start until it is unfolded.
HUGE = 20_000
_HUGE_ROWS = 40


class Row(NamedTuple):
    """One line of the screen, and the index of its block."""

    block: int
    cells: Cells

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.cells)


@dataclass(slots=True)
class Block:
    """A message, call, table or picture. Its text is clean."""

    kind: str
    """The kind, by which blocks are folded together: `system`, `user`, `assistant`, `tool`, `reasoning`, `facts`, …"""
    spans: Spans = ()
    label: str = ""
    """The name of the speaker, which is written next to the first row."""
    turn: int = -1
    """The index of its turn; -1 if it belongs to none."""
    least: int | None = None
    """How many rows it has while it is folded; None if it does not fold."""
    short: str = ""
    """The text that replaces its start while it is folded."""
    gap: bool = False
    """Whether an empty row precedes it."""
    folded: bool = True
    image: Any = None
    """The image that it shows."""
    drawn: Callable[[int], list[Cells]] | None = None
    """Draws the rows for a width; for pictures and other blocks without text."""
    _rows: tuple[Any, list[Cells]] = field(default=((), []), repr=False)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    def rows(self, width: int) -> list[Cells]:
        """Return the rows for this width, cached by width and fold."""
        key = (width, self.folded)
        if self._rows[0] != key:
            self._rows = (key, self._lay_out(max(width, 1)))
        return self._rows[1]

    def _lay_out(self, width: int) -> list[Cells]:
        if self.drawn is not None:
            return self.drawn(width)
        text = self.text
        least = self.least if self.least is not None else _HUGE_ROWS if len(text) > HUGE else None
        if not self.folded or least is None:
            return list(self._styled(text, wrap(text, width)))
        if self.short:
            return [[(self.short[: width - 1] + "…" if len(self.short) > width else self.short, "dim")]]
        return self._beginning(text, width, least)

    def _beginning(self, text: str, width: int, least: int) -> list[Cells]:
        """Return the first rows and how much is missing; all rows if little would be missing."""
        places = wrap(text[: (least + 2) * width], width)
        if len(text) <= (least + 2) * width and len(places) <= least + 1:
            return list(self._styled(text, places))
        places = places[:least]
        hidden = omitted(len(text) - (places[-1][1] if places else 0))
        return [*self._styled(text, places), [(hidden, "dim italic")]]

    def _styled(self, text: str, places: Sequence[tuple[int, int]]) -> Iterator[Cells]:
        if len(self.spans) == 1:
            style = self.spans[0][1]
            yield from ([(text[start:end], style)] for start, end in places)
            return
        ends = list(accumulate(len(part) for part, _ in self.spans))
        for start, end in places:
            cells: Cells = []
            position, span = start, bisect_right(ends, start)
            while position < end:
                stop = min(end, ends[span])
                cells.append((text[position:stop], self.spans[span][1]))
                position, span = stop, span + 1
            yield cells


def fold(blocks: Iterable[Block], kinds: Collection[str] = ()) -> None:
    """Fold the blocks of these kinds, or all blocks; unfold them if all of them are folded."""
    selected = [block for block in blocks if not kinds or block.kind in kinds]
    folded = not all(block.folded for block in selected)
    for block in selected:
        block.folded = folded


def clean_spans(text: str, style: str | Style = "") -> Spans:
    """Return raw text as the clean spans of a block."""
    return ((clean(text), style),)


def cells_of(row: Text) -> Cells:
    """Return a rich text as cells."""
    base = Style.parse(row.style) if isinstance(row.style, str) else row.style
    return [(segment.text, base + segment.style if segment.style else base) for segment in row.render(CONSOLE)]


def lay_out(blocks: Sequence[Block], width: int) -> list[Row]:
    """Return all blocks as rows, with the speaker next to the first row of each."""
    layout = Layout(width, None)
    rows: list[Row] = []
    speaker: tuple[int, str] | None = None
    for number, block in enumerate(blocks):
        if block.gap and rows:
            rows.append(Row(number, []))
        if block.kind == "head":
            rows += [Row(number, cells) for cells in block.rows(width)]
            continue
        label = cells_of(layout.label(block.label if (block.turn, block.label) != speaker else ""))
        for cells in block.rows(layout.body):
            rows.append(Row(number, [*label, *cells]))
            label = [(" " * layout.gutter, "")]
        speaker = (block.turn, block.label)
    return rows


def wrap(text: str, width: int) -> list[tuple[int, int]]:
    """Return the start and end of each row of the text, broken at spaces if possible, never inside a character."""
    rows: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        end = start + len(line)
        if len(line) <= width and (line.isascii() or cell_len(line) <= width):
            rows.append((start, end))
        elif line.isascii():
            _break_narrow(line, start, width, rows)
        else:
            _break_wide(line, start, width, rows)
        start = end + 1
    return rows


def _break_narrow(line: str, base: int, width: int, rows: list[tuple[int, int]]) -> None:
    """Break a line in which every character takes one cell."""
    position = 0
    while len(line) - position > width:
        space = line.rfind(" ", position + 1, position + width + 1)
        end = space if space > 0 else position + width
        rows.append((base + position, base + end))
        position = end + (space > 0)
    rows.append((base + position, base + len(line)))


def _break_wide(line: str, base: int, width: int, rows: list[tuple[int, int]]) -> None:
    position = cells = 0
    space = -1
    for index, character in enumerate(line):
        if character == " ":
            space = index
        size = get_character_cell_size(character)
        if cells + size > width and index > position:
            end = space if position < space < index else index
            rows.append((base + position, base + end))
            position = end + (end == space)
            cells = cell_len(line[position:index])
        cells += size
    rows.append((base + position, base + len(line)))
