"""Rollouts in columns, for the group screen and the screen over time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from rollout_hookspecs import Rollout
from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from rollout_plugins.show.blocks import Block, Cells, cells_of, fold, lay_out
from rollout_plugins.view.pages.rollout import RolloutPage
from rollout_plugins.view.pages.rollout_actions import FOLDS, RolloutActions
from rollout_plugins.view.widgets.pager import Pager

LEAST = 34
"""The narrowest column that is worth showing."""
_RULE = " │ "


@dataclass(slots=True)
class Side:
    """One of the columns."""

    rollout: Rollout
    head: Text
    """The first line of the column."""
    blocks: Sequence[Block]


class BesidePage(RolloutActions):
    """A screen with as many columns as fit, one of which is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,right", "choose(1)", "Next", key_display="l"),
        Binding("h,left", "choose(-1)", "Previous", key_display="h"),
        Binding("enter", "open", "Open", priority=True),
        Binding("y", "copy_rollout", "Copy", show=False),
        Binding("z", "fold_all", "Fold all", show=False, priority=True),
        *FOLDS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.sides: list[Side] = []
        self.above: Sequence[Block] = ()
        """The blocks above the columns, in the full width."""
        self.at = 0
        """The index of the selected column."""

    def body(self) -> Iterable[Widget]:
        yield Pager()

    @property
    def room(self) -> int:
        """How many columns fit."""
        return max((self.app.size.width + len(_RULE)) // (LEAST + len(_RULE)), 1)

    def draw(self, *, keep: bool = False) -> None:
        """Draw the columns; `keep` keeps the cursor on its line."""
        pager = self.query_one(Pager)
        line = pager.cursor if keep else 0
        sides, at = list(self.sides), self.at
        columns = Block("head", drawn=lambda width: columns_as_rows(sides, width, at), gap=bool(self.above))
        pager.show([*self.above, columns], line=line)

    def current(self) -> Rollout | None:
        return self.sides[self.at].rollout if self.at < len(self.sides) else None

    @abstractmethod
    def action_choose(self, columns: int) -> None:
        """Choose another column, `columns` further to the right."""

    def action_fold_kind(self, *kinds: str) -> None:
        """Fold blocks of these kinds in all columns; unfold them if all are folded."""
        fold((block for side in self.sides for block in side.blocks), kinds)
        self.draw(keep=True)

    def action_fold_all(self) -> None:
        self.action_fold_kind()

    def action_open(self) -> None:
        rollout = self.current()
        if rollout is not None:
            self.app.push_screen(RolloutPage.of(rollout.id))

    def fill(self) -> None:
        """Select the rollouts that fit the width of the screen, and read them."""

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.fill)


def ruler(labels: Sequence[str], selected: int, *, marked: Container[int], others: str = "") -> Block:
    """Return a block with labels in one row, as many around the selected one as fit."""

    def draw(width: int) -> list[Cells]:
        size = max(map(len, labels)) + 2
        room = max(width // size, 1)
        first = max(0, min(selected - room // 2, len(labels) - room))
        places = range(first, min(first + room, len(labels)))
        styles = (
            "reverse bold" if index == selected else "bold green" if index in marked else others for index in places
        )
        return [[(f" {labels[index]} ", style) for index, style in zip(places, styles, strict=True)]]

    return Block("head", drawn=draw)


def columns_as_rows(sides: Sequence[Side], width: int, selected: int) -> list[Cells]:
    """Return the columns as rows, with a rule between them."""
    if not sides:
        return []
    room = max((width - len(_RULE) * (len(sides) - 1)) // len(sides), 1)
    columns = []
    for index, side in enumerate(sides):
        head = side.head.copy()
        head.truncate(room, overflow="ellipsis", pad=True)
        if index == selected:
            head.stylize("reverse")
        columns.append([cells_of(head), *(row.cells for row in lay_out(side.blocks, room))])
    return [_join_columns(cells, room) for cells in zip_longest(*columns)]


def _join_columns(columns: Sequence[Cells | None], room: int) -> Cells:
    row: Cells = []
    for index, cells in enumerate(columns):
        row += [(_RULE, "dim")] if index else []
        row += _fitted(cells or [], room)
    return row


def _fitted(cells: Cells, room: int) -> Cells:
    """Return the cells cut or padded to exactly this width."""
    fitted: Cells = []
    for text, style in cells:
        size = cell_len(text)
        fitted.append((text if size <= room else set_cell_size(text, room), style))
        room -= min(size, room)
        if not room:
            break
    return [*fitted, (" " * room, "")] if room else fitted
