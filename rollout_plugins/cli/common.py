"""Print for people, pipes and programs, and check where commands may write."""

from __future__ import annotations

import math
import os
import re
import sys
from argparse import ArgumentTypeError, _ActionsContainer
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rollout_plugins.content.json_safe import spell_non_finite, to_json_safe, write_json
from rollout_plugins.errors import RunError, check_folder, check_replaceable
from rollout_plugins.show.text import MISSING, clean, one_line

Progress = Callable[[str, int, int], object]
PIPE_WIDTH = 100
WHOLE = 10_000_000


def add_json(parser: _ActionsContainer) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def natural(text: str) -> int:
    """Parse an option as an integer of at least 0."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number, such as 10 or 0")
    return int(text)


def console() -> Console:
    """Return a console for standard output, without colours and of fixed width if it is a pipe."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=int(os.environ.get("COLUMNS") or PIPE_WIDTH), color_system=None)


def say(text: str) -> None:
    """Print a line on standard output, with control characters escaped."""
    sys.stdout.write(clean(text) + "\n")


def note(text: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    sys.stderr.write(clean(text) + "\n")


def print_json(value: Any) -> None:
    """Print a value as one JSON document; NaN and infinities become text, because JSON has no such numbers."""
    try:
        text = orjson.dumps(spell_non_finite(value), option=orjson.OPT_INDENT_2, default=str)
    except TypeError:  # text that is not valid Unicode, or an integer beyond 64 bits
        text = orjson.dumps(to_json_safe(value), option=orjson.OPT_INDENT_2)
    write_json(sys.stdout, text.decode() + "\n")


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, *, spare: Sequence[str] = ()
) -> None:
    """Print a table for a person, see `table_of`, or tab-separated lines with a header for a pipe."""
    names = list(columns if columns is not None else rows[0] if rows else ())
    if sys.stdout.isatty():
        show(table_of(rows, names, width=console().width, spare=spare), len(rows) + 3)
        return
    cells = [[one_line(text, WHOLE) for text in _cells(rows, name, None)] for name in names]
    lines = [[one_line(name, WHOLE) for name in names], *zip(*cells, strict=True)]
    sys.stdout.write("".join("\t".join(line) + "\n" for line in lines))


def table_of(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, width: int, spare: Sequence[str] = ()
) -> Table:
    """Return a table for a person. `spare`: columns to omit, one after the other, until the table fits the width."""
    cells = {name: _cells(rows, name, 200) for name in names}
    needs = {name: max(map(cell_len, (name, *texts)), default=0) + 3 for name, texts in cells.items()}
    for name in spare:
        if sum(needs[name] for name in cells) > width:
            cells.pop(name, None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in cells:
        numeric = all(isinstance(row.get(name), int | float | None) or _is_share(row[name]) for row in rows)
        heading = Text(one_line(name, 40), overflow="fold")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for texts in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, texts))
    return table


def _is_share(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+%", value) is not None


def _cells(rows: Sequence[Mapping[str, Any]], name: str, chars: int | None) -> list[str]:
    """Return the cells of a column: numbers in one format, other values on one safe line.

    Without `chars`, for a program.
    """
    values = [row.get(name) for row in rows]
    reals = [value for value in values if isinstance(value, float)]
    written = real_format(reals, 3) if chars else real_format(reals, 6).replace(",", "")
    return [_cell(value, written, chars) for value in values]


def _cell(value: Any, written: str, chars: int | None) -> str:
    if value is None:
        return MISSING if chars else ""
    if isinstance(value, float):
        return format(value, written)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if chars else str(value)
    return one_line(value, chars or WHOLE)


def real_format(values: Sequence[float], most: int) -> str:
    """Return one number format for a column, with as many decimals as one of its numbers needs."""
    real = [abs(value) for value in values if math.isfinite(value)]
    if real and (max(real) >= 1e9 or 0 < max(real) < 1e-3):
        return ".3e"
    decimals = [len(f"{value:.{most}f}".rstrip("0").partition(".")[2]) for value in real]
    return f",.{max(decimals, default=1) or 1}f"


def show(renderable: RenderableType, lines: int) -> None:
    """Print something, through the pager if it does not fit on the terminal."""
    screen = console()
    if screen.is_terminal and lines > screen.height and os.environ.get("PAGER") != "cat":
        os.environ.setdefault("LESS", "-RFX")
        with screen.pager(styles=True):
            screen.print(renderable)
    else:
        screen.print(renderable)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a spinner during long work, if standard error is a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(Text(what)):
        yield


@contextmanager
def counted(what: str, *, of_bytes: bool = False) -> Iterator[Progress]:
    """Show a progress bar on a terminal; yields a function that takes what is being done, how much, and the total."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

    screen = Console(stderr=True)
    numbers = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), numbers)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of or None)


def check_out(path: Path, *, force: bool) -> None:
    """Raise an error unless a file can be written to `path`; an existing file needs `force`."""
    check_folder(path)
    check_replaceable(path)
    if path.exists() and not force:
        raise RunError(f"{path} exists; replace it with --force, or name another file with -o")
