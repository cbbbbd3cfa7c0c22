"""The help screen, with all keys of another screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.text import Text
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

from rollout_plugins.show.blocks import Block
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.widgets.pager import Pager


class HelpPage(Page):
    """Shows the keys of the screen on which it was opened."""

    def __init__(self, of: Page) -> None:
        super().__init__()
        self._of = of

    def body(self) -> Iterable[Widget]:
        yield Pager()

    def on_mount(self) -> None:
        self.title_is(Text("Keys", style="bold"))
        focused = self._of.focused
        moving = self._keys(focused, beside=self._of) if focused else []
        parts = [("Moving", moving), ("This screen", self._keys(self._of)), ("Everywhere", self._keys(self.app))]
        parts += [("Columns", self._of.NOTES)]
        blocks: list[Block] = []
        for title, lines in parts:
            if lines:
                spans = [span for keys, text in lines for span in ((f"{keys:<18}", "bold cyan"), (f"{text}\n", ""))]
                blocks += [Block("head", [(title, "bold")], gap=bool(blocks)), Block("keys", spans)]
        self.query_one(Pager).show(blocks)

    def action_help(self) -> None:
        self.action_back()

    def _keys(self, node: DOMNode, beside: DOMNode | None = None) -> Sequence[tuple[str, str]]:
        """Return the keys of each action in the order of their bindings, without those that `beside` takes."""
        taken = {binding.key for binding in _bindings(beside) if binding.priority} if beside else set()
        keys_by_action: dict[tuple[str, str], list[str]] = {}
        for binding in (binding for binding in _bindings(node) if binding.key not in taken):
            inherited = hasattr(Widget, f"action_{binding.action}") or binding.action.startswith("screen.")
            if binding.description and not inherited and binding not in Screen.BINDINGS:
                keys_by_action.setdefault((binding.action, binding.description), []).append(self._key(binding))
        return [(" ".join(dict.fromkeys(keys)), description) for (_, description), keys in keys_by_action.items()]

    def _key(self, binding: Binding) -> str:
        """Return the key itself, because `key_display` names only one of several keys."""
        return self.app.get_key_display(replace(binding, key_display=None))


def _bindings(node: DOMNode) -> list[Binding]:
    keys = node._bindings.key_to_bindings.values()  # noqa: SLF001 - textual shows keys in its own panel alone
    return [binding for some in keys for binding in some]
