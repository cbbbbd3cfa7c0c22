"""All keys of a screen, as the screen has them."""

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
    """The keys of the screen it was asked on."""

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
                spans = [span for keys, said in lines for span in ((f"{keys:<18}", "bold cyan"), (f"{said}\n", ""))]
                blocks += [Block("head", [(title, "bold")], gap=bool(blocks)), Block("keys", spans)]
        self.query_one(Pager).show(blocks)

    def action_help(self) -> None:
        self.action_back()

    def _keys(self, node: DOMNode, beside: DOMNode | None = None) -> Sequence[tuple[str, str]]:
        """Keys that do the same, together, in the order in which they were bound; not those that `beside` takes."""
        taken = {binding.key for binding in _bindings(beside) if binding.priority} if beside else set()
        found: dict[tuple[str, str], list[str]] = {}
        for binding in (one for one in _bindings(node) if one.key not in taken):
            inherited = hasattr(Widget, f"action_{binding.action}") or binding.action.startswith("screen.")
            if binding.description and not inherited and binding not in Screen.BINDINGS:
                found.setdefault((binding.action, binding.description), []).append(self._key(binding))
        return [(" ".join(dict.fromkeys(keys)), said) for (_, said), keys in found.items()]

    def _key(self, binding: Binding) -> str:
        """The key itself: `key_display` names one key of several."""
        return self.app.get_key_display(replace(binding, key_display=None))


def _bindings(node: DOMNode) -> list[Binding]:
    keys = node._bindings.key_to_bindings.values()  # noqa: SLF001 - textual shows keys in its own panel alone
    return [binding for some in keys for binding in some]
