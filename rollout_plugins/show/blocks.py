"""What a pager shows: blocks of text that fold, laid out as rows for a width."""

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
#: A block longer than this many characters shows only its beginning until it is unfolded.
HUGE = 20_000
_HUGE_ROWS = 40


class Row(NamedTuple):
    """One line of the screen, and the block it belongs to."""

    block: int
    cells: Cells

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.cells)


@dataclass(slots=True)
class Block:
    """A message, a call, a table, a picture. Its text is clean."""

    kind: str
    """What it is folded with: `system`, `user`, `assistant`, `tool`, `reasoning`, `facts`, …"""
    spans: Spans = ()
    label: str = ""
    """Who speaks; written beside the first row."""
    turn: int = -1
    """The turn it belongs to; -1 if it belongs to none."""
    least: int | None = None
    """Rows it has while it is folded; None if it does not fold."""
    short: str = ""
    """Shown instead of its beginning while it is folded."""
    gap: bool = False
    """An empty row above it."""
    folded: bool = True
    image: Any = None
    """The image it shows."""
    drawn: Callable[[int], list[Cells]] | None = None
    """Draws the rows for a width; for pictures and other blocks without text."""
    _rows: tuple[Any, list[Cells]] = field(default=((), []), repr=False)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    def rows(self, width: int) -> list[Cells]:
        """The block in this width, worked out once for each width and fold."""
        key = (width, self.folded)
        if self._rows[0] != key:
            self._rows = (key, self._made(max(width, 1)))
        return self._rows[1]

    def _made(self, width: int) -> list[Cells]:
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
        """The first rows, and how much is missing; all rows where little would be."""
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
            at, span = start, bisect_right(ends, start)
            while at < end:
                stop = min(end, ends[span])
                cells.append((text[at:stop], self.spans[span][1]))
                at, span = stop, span + 1
            yield cells


def fold(blocks: Iterable[Block], kinds: Collection[str] = ()) -> None:
    """Fold the blocks of these kinds, or of all; unfold them where all are folded already."""
    chosen = [block for block in blocks if not kinds or block.kind in kinds]
    folded = not all(block.folded for block in chosen)
    for block in chosen:
        block.folded = folded


def clean_spans(text: str, style: str | Style = "") -> Spans:
    """Raw text as a block has it."""
    return ((clean(text), style),)


def cells_of(row: Text) -> Cells:
    """A rich text as cells."""
    base = Style.parse(row.style) if isinstance(row.style, str) else row.style
    return [(segment.text, base + segment.style if segment.style else base) for segment in row.render(CONSOLE)]


def lay_out(blocks: Sequence[Block], width: int) -> list[Row]:
    """All blocks as rows, with who speaks beside the first row of each."""
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
    """Where each row of the text starts and ends: broken at spaces where there are some, never inside a character."""
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
    """A line in which every character takes one cell."""
    at = 0
    while len(line) - at > width:
        space = line.rfind(" ", at + 1, at + width + 1)
        end = space if space > 0 else at + width
        rows.append((base + at, base + end))
        at = end + (space > 0)
    rows.append((base + at, base + len(line)))


def _break_wide(line: str, base: int, width: int, rows: list[tuple[int, int]]) -> None:
    at = cells = 0
    space = -1
    for place, character in enumerate(line):
        if character == " ":
            space = place
        size = get_character_cell_size(character)
        if cells + size > width and place > at:
            end = space if at < space < place else place
            rows.append((base + at, base + end))
            at = end + (end == space)
            cells = cell_len(line[at:place])
        cells += size
    rows.append((base + at, base + len(line)))
