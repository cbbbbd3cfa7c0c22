"""What commands share: the options that say which rollouts, and output for a person, a pipe or a program."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rollout_plugins.content.plain import plain, write_json
from rollout_plugins.show.text import MISSING, clean, number, one_line

PIPE_WIDTH = 100
RUN = "a run's folder, a folder of runs, or the trainer's output_dir (the newest run in it)"
_NAMES = ("split", "step", "group", "rank", "finish", "tool", "where", "search", "order", "limit")


def add_filters(parser: ArgumentParser, *, group: bool = True) -> None:
    """Add `--split`, `--step`, … to a command."""
    chosen = parser.add_argument_group("which rollouts")
    chosen.add_argument("--split", help="train or eval")
    chosen.add_argument("--step", help="a number, last, or a range such as 10-20")
    if group:
        chosen.add_argument("--group", type=int, help="the group's number in its generation")
    chosen.add_argument("--rank", type=int, help="made by this process")
    chosen.add_argument("--finish", help="stop, length, tool_limit, error or unknown")
    chosen.add_argument("--tool", help="that called this tool")
    chosen.add_argument(
        "--errors", dest="has_error", action="store_true", default=None, help="that failed, or a call did"
    )
    chosen.add_argument("--where", help="a SQL condition over the columns, such as 'reward < 0 and calls > 1'")
    chosen.add_argument("--search", metavar="TEXT", help="with this text in a message or a call")
    chosen.add_argument("--order", help="columns to sort by, '-' for descending: reward or -judge.score,step")
    chosen.add_argument("--limit", type=int, help="at most so many")
    chosen.add_argument("--superseded", action="store_true", help="also what a resumed attempt did again")


def filters_of(options: Namespace) -> dict[str, Any]:
    """The filters a person gave, as `StoredRun.rollouts` takes them."""
    names = (*_NAMES, "has_error", "superseded")
    return {name: value for name in names if (value := getattr(options, name, None)) not in (None, False)}


def add_json(parser: ArgumentParser) -> None:
    """`--json`, for a command whose output a program may read."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def console() -> Console:
    """Standard output; without colours and in a fixed width when it is a pipe."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=int(os.environ.get("COLUMNS") or PIPE_WIDTH), color_system=None)


def say(text: str) -> None:
    """A line for a person, with control characters written out."""
    sys.stdout.write(clean(text) + "\n")


def note(text: str) -> None:
    """A line for a person, on standard error."""
    sys.stderr.write(clean(text) + "\n")


def print_json(value: Any) -> None:
    """One JSON document, of whatever a run holds."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str)
    except TypeError:  # text that is not Unicode, or a number beyond 64 bits
        text = orjson.dumps(plain(value), option=orjson.OPT_INDENT_2)
    write_json(sys.stdout, text.decode() + "\n")


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, *, spare: Sequence[str] = ()
) -> None:
    """A table for a person, see `table_of`; tab-separated lines with a header for a pipe."""
    names = list(columns if columns is not None else rows[0] if rows else ())
    if sys.stdout.isatty():
        show(table_of(rows, names, width=console().width, spare=spare), len(rows) + 3)
        return
    lines = [names, *([cell(row.get(name), None) for name in names] for row in rows)]
    sys.stdout.write("".join("\t".join(one_line(text, 10_000_000) for text in line) + "\n" for line in lines))


def table_of(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, width: int, spare: Sequence[str] = ()
) -> Table:
    """A table for a person. `spare`: columns to leave out, one after the other, until the rest fits the width."""
    cells = {name: [cell(row.get(name), 200) for row in rows] for name in names}
    needs = {name: max(map(cell_len, (name, *texts)), default=0) + 3 for name, texts in cells.items()}
    for name in spare:
        if sum(needs[name] for name in cells) > width:
            cells.pop(name, None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in cells:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        heading = Text(one_line(name, 40), overflow="fold")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for texts in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, texts))
    return table


def cell(value: Any, chars: int | None) -> str:
    """A value in a table: numbers as people write them, everything else on one safe line."""
    if value is None:
        return MISSING if chars else ""
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return number(value) if chars else repr(value)
    return one_line(value, chars or 10_000_000)


def show(renderable: RenderableType, lines: int) -> None:
    """Print; through the pager when a person would have to scroll back."""
    screen = console()
    if screen.is_terminal and lines > screen.height and os.environ.get("PAGER") != "cat":
        os.environ.setdefault("LESS", "-RFX")
        with screen.pager(styles=True):
            screen.print(renderable)
    else:
        screen.print(renderable)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner during long work; nothing unless standard error is a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(Text(what)):
        yield
