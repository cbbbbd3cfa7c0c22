"""Actions on one rollout, on every screen that shows one: siblings, its prompt over time, copies and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rollout_hookspecs import Rollout
from textual.binding import Binding, BindingType

from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.saving import as_markdown, save

# Every terminal accepts this many characters for the clipboard.
_CLIPBOARD = 74_000

FOLDS: list[BindingType] = [
    Binding(key, f"fold_kind({', '.join(repr(kind) for kind in kinds)})", f"Fold {said}", show=False)
    for key, said, kinds in (
        ("1", "system", ("system", "developer")),
        ("2", "user", ("user",)),
        ("3", "assistant", ("assistant",)),
        ("4", "tools", ("tool", "call")),
        ("5", "reasoning", ("reasoning",)),
        ("6", "facts", ("facts",)),
    )
]
"""Keys that fold turns by role."""


class RolloutActions(Page):
    """A screen with a rollout under its cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "siblings", "Siblings"),
        Binding("t", "through_time", "Over time"),
        Binding("Y", "copy_rollout", "Copy the rollout", show=False),
        Binding("e", "export", "Export as JSON", show=False),
        Binding("E", "export_markdown", "Export as Markdown", show=False),
    ]

    @abstractmethod
    def current(self) -> Rollout | None:
        """Return the rollout under the cursor; on a worker thread."""

    def with_rollout(self, act: Callable[[Rollout], None]) -> None:
        """Call `act` with the rollout under the cursor, once it is read."""

        def run(rollout: Rollout | None) -> None:
            if rollout is not None:
                act(rollout)

        self.job(self.current, run, group="current")

    def action_siblings(self) -> None:
        self.with_rollout(self.viewer.show_siblings)

    def action_through_time(self) -> None:
        self.with_rollout(self.viewer.show_over_time)

    def action_copy_rollout(self) -> None:
        self.with_rollout(lambda rollout: self.copy(as_markdown(rollout), "the rollout"))

    def copy(self, text: str, what: str) -> None:
        """Copy text to the clipboard of the terminal, which may be on another machine (OSC 52)."""
        self.app.copy_to_clipboard(text)
        long = "; some terminals accept less, `e` writes a file" if len(text) > _CLIPBOARD else ""
        self.say(f"copied {what}, {len(text):,} characters{long}")

    def action_export(self) -> None:
        self._export(markdown=False)

    def action_export_markdown(self) -> None:
        self._export(markdown=True)

    def _export(self, *, markdown: bool) -> None:
        def write() -> Path | None:
            rollout = self.current()
            if rollout is None:
                return None
            complete = rollout if markdown else self.viewer.stored.get(rollout.id)  # with its tokens
            return save(complete, Path.cwd(), markdown=markdown)

        def report(path: Path | None) -> None:
            if path is not None:
                self.say(f"wrote {path}")

        self.job(write, report, group="export", exclusive=False)
