"""The screen of one rollout, with its facts and its turns."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from rollout_hookspecs import Rollout
from textual.binding import Binding, BindingType
from textual.widget import Widget

from rollout_plugins.content.imaging import file_of
from rollout_plugins.reading.lazy_rollouts import Rollouts
from rollout_plugins.show.blocks import Block, lay_out
from rollout_plugins.show.conversation import conversation
from rollout_plugins.show.rollout_blocks import rollout_blocks
from rollout_plugins.show.text import one_line
from rollout_plugins.view.pages.page import Viewer
from rollout_plugins.view.pages.rollout_actions import FOLDS, RolloutActions
from rollout_plugins.view.pages.tokens import colourings, decoder, token_blocks
from rollout_plugins.view.widgets.pager import Pager


class RolloutPage(RolloutActions):
    """A rollout of a list; a key shows the next one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,right", "go(1)", "Next rollout", key_display="l"),
        Binding("h,left", "go(-1)", "Previous rollout", show=False),
        Binding("slash", "find", "Find", key_display="/"),
        Binding("n", "find_next(1)", "Next match", show=False),
        Binding("N", "find_next(-1)", "Previous match", show=False),
        Binding("y", "copy", "Copy"),
        Binding("T", "tokens", "Tokens", show=False),
        Binding("o", "open_image", "Open the image", show=False),
        *FOLDS,
    ]

    def __init__(
        self, rollouts: Rollouts | None, place: int, *, find: str = "", moved: Callable[[int], None] | None = None
    ) -> None:
        """Create the screen. `find`: a text to search for. `moved`: called with the new place in the list."""
        super().__init__()
        self._rollouts, self._place = rollouts, place
        self._text, self._moved = find, moved
        self._rollout_id = ""
        self._rollout: Rollout | None = None
        self._colouring = ""
        """How the tokens are coloured; empty shows the turns."""

    @classmethod
    def of(cls, rollout_id: str) -> RolloutPage:
        """Create the screen of a rollout by its id."""
        page = cls(None, 0)
        page._rollout_id = rollout_id
        return page

    def body(self) -> Iterable[Widget]:
        yield Pager()

    def on_mount(self) -> None:
        self.title_is(Text("reading …"))
        self.call_after_refresh(self._read)

    def _read(self) -> None:
        place, width, colouring = self._place, self.query_one(Pager).room, self._colouring

        def read() -> tuple[Rollout | None, Sequence[Block]]:
            rollout = self._load(place)
            if rollout is None:
                return None, []
            if rollout.tokens is None or colouring not in colourings(rollout.tokens):
                return rollout, blocks_of(rollout, self.viewer, width)
            decode = decoder(self.viewer.stored.info.model)
            return rollout, list(token_blocks(rollout.tokens, colouring, decode))

        self.job(read, lambda answer: self._show(*answer), group="rollout")

    def _load(self, place: int) -> Rollout | None:
        if self._rollouts is None:
            return self.viewer.stored.get(self._rollout_id)
        return next(self._rollouts.page(place, 1).read(tokens=True), None)

    def _show(self, rollout: Rollout | None, blocks: Sequence[Block]) -> None:
        self._rollout = rollout
        pager = self.query_one(Pager)
        if rollout is None:
            self.say("this rollout cannot be read; press i to see why", wrong=True)
        else:
            self._title()
        pager.show(blocks)
        if self._text:
            pager.find(self._text)

    def _title(self, state: str = "") -> None:
        place = "" if self._rollouts is None else f" {self._place + 1:,} of {len(self._rollouts):,}"
        self.title_is(Text(f"rollout{place}", style="bold"), state)

    def current(self) -> Rollout | None:
        return self._rollout

    def action_go(self, places: int) -> None:
        count = 0 if self._rollouts is None else len(self._rollouts)
        target = max(0, min(self._place + places, count - 1))
        if count and target != self._place:
            self._place = target
            if self._moved is not None:
                self._moved(target)
            self._read()

    def action_fold_kind(self, *kinds: str) -> None:
        self.query_one(Pager).fold(*kinds)

    def action_find(self) -> None:
        self.ask.open(
            "find", self._text, self._find, hint="text in this rollout; n and N go to the next and the previous match"
        )

    def _find(self, text: str) -> None:
        self._text = text
        count = self.query_one(Pager).find(text)
        if text and not count:
            self.ask.refuse("no match in this rollout")
            return
        self.ask.close()
        self._show_match(0)

    def action_find_next(self, step: int) -> None:
        self._show_match(step)

    def _show_match(self, step: int) -> None:
        pager = self.query_one(Pager)
        if not self._text or self._rollout is None:
            return
        place, count = pager.find_next(step) if step else pager.place_of_match()
        self._title(f"{place} of {count} with “{one_line(self._text, 40)}”")

    def action_tokens(self) -> None:
        """Show the tokens in the next colouring, and after the last one the turns again."""
        colourings_and_turns = ["", *colourings(None if self._rollout is None else self._rollout.tokens)]
        if len(colourings_and_turns) == 1:
            self.say("this rollout was recorded without tokens; use RolloutPluginCallback(tokens=True)")
        position = colourings_and_turns.index(self._colouring) if self._colouring in colourings_and_turns else 0
        self._colouring = colourings_and_turns[(position + 1) % len(colourings_and_turns)]
        self._read()

    def action_copy(self) -> None:
        """Copy the message at the cursor, unfolded."""
        pager = self.query_one(Pager)
        if pager.block is not None:
            block = pager.block
            same = [b for b in pager.blocks if b.turn == block.turn] if block.turn >= 0 else [block]
            text = "\n".join(filter(None, (b.text for b in same)))
            self.copy(
                text or "\n".join(row.text for row in pager.rows if pager.blocks[row.block] is block), "the message"
            )

    def action_open_image(self) -> None:
        """Open the image at the cursor, or the next one, in the system's image viewer."""
        pager = self.query_one(Pager)
        here = pager.rows[pager.cursor].block if pager.rows else 0
        images = [block.image for block in (*pager.blocks[here:], *pager.blocks[:here]) if block.image is not None]
        file = next((path for image in images if (path := file_of(image, self.viewer.stored.dir))), None)
        if file is None:
            self.say("no image of this rollout has its pixels in the run's folder", wrong=True)
        else:
            self.say(f"opening {file}" if _open_file(file) else f"no program to open images; the file is {file}")


def blocks_of(rollout: Rollout, viewer: Viewer, width: int) -> Sequence[Block]:
    """Return the blocks of a rollout, laid out for this width; on a worker thread."""
    run = viewer.stored
    panels = viewer.panels(rollout, run.info)
    producers = list(run.annotations)
    blocks = rollout_blocks(
        conversation(rollout), folder=run.dir, panels=panels, producers=producers, rendered=rollout.rendered
    )
    lay_out(blocks, width)
    return blocks


def _open_file(file: Path) -> bool:
    opener = {"darwin": "open", "win32": "explorer"}.get(sys.platform, "xdg-open")
    command = shutil.which(opener)
    if command is None:
        return False
    subprocess.Popen(  # noqa: S603 - the system's opener, and a file of ours
        [command, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return True
