"""Long text as rows of a screen, fast enough for a megabyte."""

from __future__ import annotations

from rich.cells import cell_len, get_character_cell_size


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
