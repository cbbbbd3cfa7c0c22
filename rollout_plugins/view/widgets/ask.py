"""A line at the bottom of the screen for a filter or a text; errors are shown above it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from rollout_plugins.show.text import one_line

_WORD = re.compile(r"[\w./]+\Z")


class Ask(Vertical):
    """Hidden until it is opened. Keeps the typed text if it is refused."""

    DEFAULT_CSS = """
    Ask { display: none; height: auto; background: $panel; }
    Ask.-open { display: block; }
    Ask #said { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    Ask #said.-wrong { color: $text-error; background: $error-muted; }
    Ask Horizontal { height: 1; }
    Ask #label { width: auto; padding: 0 1; text-style: bold; }
    Ask Input { border: none; height: 1; padding: 0; background: $panel; }
    Ask Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("tab", "complete", "Complete", priority=True),
    ]

    class Left(Message):
        """The person left without submitting."""

    def __init__(self) -> None:
        super().__init__()
        self._submit: Callable[[str], None] = lambda _: None
        self._completions: Sequence[str] = ()
        self._hint = ""

    def compose(self) -> ComposeResult:
        yield Static(id="said")
        with Horizontal():
            yield Static(id="label")
            yield Input()

    def open(
        self, label: str, value: str, submit: Callable[[str], None], *, names: Sequence[str] = (), hint: str = ""
    ) -> None:
        """Open the line. `names` are completed; `submit` calls `close` or `refuse`."""
        self._submit, self._completions, self._hint = submit, names, hint
        self.query_one("#label", Static).update(Text(label))
        entry = self.query_one(Input)
        entry.suggester = _Names(names) if names else None
        entry.value = value
        entry.cursor_position = len(value)
        self._say(hint)
        self.add_class("-open")
        entry.focus()

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def refuse(self, reason: str) -> None:
        """Show what is wrong, and keep the text for correction."""
        self._say(reason, wrong=True)

    def close(self) -> None:
        self.remove_class("-open")
        self.screen.set_focus(None)
        self.screen.focus_next("Grid, Pager")

    def action_close(self) -> None:
        self.close()
        self.post_message(self.Left())

    def action_complete(self) -> None:
        """Accept the suggestion."""
        self.query_one(Input).action_cursor_right()

    def _say(self, text: str, *, wrong: bool = False) -> None:
        hint = self.query_one("#said", Static)
        hint.set_class(wrong, "-wrong")
        hint.display = bool(text)
        hint.update(Text(one_line(text, 600)))

    @on(Input.Changed)
    def _hinted(self, event: Input.Changed) -> None:
        """Show the names that contain the word before the cursor."""
        event.stop()
        word = _WORD.search(event.value)
        near = [name for name in self._completions if word and word[0].casefold() in name.casefold()]
        self._say("  ".join(near[:12]) if near else self._hint)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._submit(event.value.strip())


class _Names(Suggester):
    """Completes the last word with the first name that starts with it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        word = _WORD.search(value)
        if word is None:
            return None
        name = next((name for name in self._names if name.startswith(word[0]) and name != word[0]), None)
        return None if name is None else value[: word.start()] + name
