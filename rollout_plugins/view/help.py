"""All keys of a screen, as the screen has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text
from textual.binding import Binding
from textual.widget import Widget

from rollout_plugins.view.blocks import Block
from rollout_plugins.view.page import Page
from rollout_plugins.view.pager import Pager

if TYPE_CHECKING:
    from textual.screen import Screen

_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "right_square_bracket": "]",
    "left_square_bracket": "[",
    "plus": "+",
    "minus": "-",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "escape": "esc",
}


class HelpPage(Page):
    """The keys of the screen it was asked on."""

    def __init__(self, of: Screen[None]) -> None:
        super().__init__()
        self._of = of

    def body(self) -> Iterable[Widget]:
        yield Pager()

    def on_mount(self) -> None:
        self.title_is(Text("Keys", style="bold"))
        focused = self._of.focused
        nodes = [focused, self._of, self.app] if focused else [self._of, self.app]
        titles = {self._of: "This screen", self.app: "Everywhere"}
        blocks = []
        for node in nodes:
            lines = _keys(node._bindings.key_to_bindings.values())  # noqa: SLF001 - textual shows keys in its own panel alone
            spans = [span for keys, said in lines for span in ((f"{keys:<18}", "bold cyan"), (f"{said}\n", ""))]
            blocks.append(Block("head", [(titles.get(node, "Moving"), "bold")], gap=True, drawn=None))
            blocks.append(Block("keys", spans))
        self.query_one(Pager).show([block for block in blocks if block.spans])

    def action_help(self) -> None:
        self.action_back()


def _keys(bindings: Iterable[list[Binding]]) -> list[tuple[str, str]]:
    """Keys that do the same, together, in the order in which they were bound."""
    found: dict[tuple[str, str], list[str]] = {}
    for binding in (one for some in bindings for one in some):
        if binding.description and not binding.system:
            found.setdefault((binding.action, binding.description), []).append(_name(binding.key))
    return [(" ".join(dict.fromkeys(keys)), said) for (_, said), keys in found.items()]


def _name(key: str) -> str:
    return _NAMES.get(key, key.replace("ctrl+", "^"))
