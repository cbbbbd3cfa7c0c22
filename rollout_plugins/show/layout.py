"""Lay out a conversation as rows of text, and distribute a screen that is too small for all of them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, OverflowMethod
from rich.text import Text
from rollout_hookspecs import Image, ToolCall

from rollout_plugins.content.messages import IMAGE, call_text
from rollout_plugins.content.tool_calls import FAILURES, failure_text
from rollout_plugins.show.conversation import Conversation, Turn, status_of
from rollout_plugins.show.text import brief, clean, clip, duration, omitted, one_line, readable, shorten
from rollout_plugins.system.labels import count

STYLES = {"system": "magenta", "developer": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}
_SHORT = {
    "system": "sys", "developer": "dev", "assistant": "asst", "prompt": "ask", "columns": "row", "extra": "more",
    "marks": "mark", "error": "err", "image": "img",
}  # fmt: skip
_OUTCOMES = {"ok": "", "error": "red", "unknown": "red", "not_run": "yellow"}
# Rows that each kind of piece gets before another piece is left out.
_FAIR = {"said": 3, "call": 2, "thought": 2, "system": 1, "given": 1}
_SYSTEM = frozenset({"system", "developer"})
# With fewer lines the dataset row is left out, so that the answer has room.
_ROOMY = 12
# Text.wrap requires a console, though it only uses it for justification.
CONSOLE = Console(file=io.StringIO(), width=80, color_system=None)


@dataclass(slots=True)
class Piece:
    """One part of a turn, wrapped: its text, its reasoning, or one call."""

    turn: int
    role: str
    head: list[Text]
    tail: list[Text]
    hidden: int
    kind: str
    """A key of `_FAIR`."""

    @property
    def fair(self) -> int:
        """How many rows it gets before another piece is left out."""
        return min(self.need, _FAIR[self.kind])

    @property
    def need(self) -> int:
        return len(self.head) + len(self.tail) + (self.hidden > 0)

    def rows(self, lines: int) -> list[Text]:
        """Return at most `lines` rows: the first and the last ones, and between them how much is missing."""
        rows = [*self.head, *self.tail]
        if self.need <= lines:
            mark = [_omitted(self.hidden)] if self.hidden else []
            return [*self.head, *mark, *self.tail]
        if lines <= 1:
            return [_cut(row) for row in rows[:lines]]
        first, last = lines // 2, len(rows) - (lines - 1 - lines // 2)
        hidden = self.hidden + sum(len(row) for row in rows[first:last])
        return [*rows[:first], _omitted(hidden), *rows[last:]]


def _omitted(hidden: int) -> Text:
    return Text(omitted(hidden), style="dim")


def _cut(row: Text) -> Text:
    row = row.copy()
    row.rstrip()
    return row.append(" …", style="dim")


@dataclass(frozen=True, slots=True)
class Layout:
    """The width of the text, the number of lines, and the labels of roles next to the text."""

    width: int
    lines: int | None

    @property
    def gutter(self) -> int:
        return 11 if self.width >= 60 else 5 if self.width >= 24 else 0

    @property
    def body(self) -> int:
        return max(self.width - self.gutter, 1)

    @property
    def chars(self) -> int | None:
        return None if self.lines is None else self.lines * self.body

    def label(self, role: str) -> Text:
        room = max(self.gutter - 1, 0)
        name = role if self.gutter > 5 else _SHORT.get(role, role)
        return Text(one_line(name, room).ljust(room) + " " * (self.gutter > 0), style=STYLES.get(role, "dim"))

    def text(self, turn: int, role: str, raw: str, style: str = "", kind: str = "said") -> Piece:
        head, tail, hidden = clip(raw, self.chars)
        kind = "system" if role in _SYSTEM else kind
        rows = [self.wrap(Text(clean(part), style)) for part in (head, tail)]
        return Piece(turn, role, rows[0], rows[1] if tail else [], hidden, kind)

    def wrap(self, text: Text) -> list[Text]:
        rows = list(text.wrap(CONSOLE, self.body, tab_size=4))
        for row in rows:
            row.truncate(self.body, overflow="crop")
        return rows


def cut(row: Text, width: int, end: OverflowMethod) -> Text:
    """Cut the row to one line of at most this width."""
    row.truncate(max(width, 1), overflow=end)
    row.no_wrap, row.overflow = True, "crop"
    return row


def body_rows(view: Conversation, layout: Layout) -> list[Text]:
    """Return the turns in as many rows as the layout has."""
    pieces, skipped = _all_pieces(view, layout)
    if layout.lines is None:
        return _labelled(pieces, [piece.need for piece in pieces], layout)
    if not skipped and sum(piece.fair for piece in pieces) <= layout.lines:
        return _labelled(pieces, _shares(pieces, layout.lines), layout)
    # The system prompt is always the same, so it is left out first, then the dataset row.
    left_out = {"system"} if layout.lines >= _ROOMY else {"system", "given"}
    pieces, lines = [piece for piece in pieces if piece.kind not in left_out] or pieces, layout.lines - 1
    first, last = _count_fitting(pieces, lines)
    fitting = [*pieces[:first], *pieces[len(pieces) - last :]]
    shares = _shares(fitting, lines)
    head = _labelled(fitting[:first], shares[:first], layout)
    tail = _labelled(fitting[first:], shares[first:], layout)
    return [*head, _skipped(view, fitting, layout), *tail]


def _count_fitting(pieces: Sequence[Piece], lines: int) -> tuple[int, int]:
    """Return how many pieces from the start and from the end fit; the end, with the answer, takes precedence."""
    first = last = 0
    while first + last < len(pieces):
        from_end = last <= first
        fair = pieces[-1 - last if from_end else first].fair
        if lines < min(fair, 2) and last:
            break
        lines -= fair
        first, last = first + (not from_end), last + from_end
    return first, last


def _shares(pieces: Sequence[Piece], lines: int) -> list[int]:
    """Return the rows for each piece. The system prompt, which is always the same, gets only what others leave."""
    shares = fill([piece.fair if piece.kind == "system" else piece.need for piece in pieces], lines)
    left = lines - sum(shares)
    for place, piece in enumerate(pieces):
        more = min(piece.need - shares[place], left)
        shares[place], left = shares[place] + more, left - more
    return shares


def fill(needs: Sequence[int], lines: int) -> list[int]:
    """Distribute `lines`: small needs are met in full, and the others share the rest evenly."""
    shares = [0] * len(needs)
    waiting = sorted(range(len(needs)), key=lambda place: needs[place])
    for done, place in enumerate(waiting):
        shares[place] = min(needs[place], lines // (len(waiting) - done))
        lines -= shares[place]
    return shares


def _skipped(view: Conversation, visible: Sequence[Piece], layout: Layout) -> Text:
    turns = len(view.turns) - len({piece.turn for piece in visible if piece.turn < len(view.turns)})
    calls = sum(len(turn.calls) for turn in view.turns) - sum(piece.kind == "call" for piece in visible)
    hidden = ((turns, "message"), (calls, "tool call"))
    what = ", ".join(count(number, noun) for number, noun in hidden if number > 0)
    return Text(" " * layout.gutter + f"… {what or 'more of this'} …", style="dim")


def _labelled(pieces: Sequence[Piece], shares: Sequence[int], layout: Layout) -> list[Text]:
    rows: list[Text] = []
    turn = None
    for piece, lines in zip(pieces, shares, strict=True):
        for row in piece.rows(lines):
            label = Text(" " * layout.gutter) if piece.turn == turn else layout.label(piece.role)
            rows.append(Text.assemble(label, row))
            turn = piece.turn
    return rows


def _all_pieces(view: Conversation, layout: Layout) -> tuple[list[Piece], bool]:
    """Return the pieces of all turns, or of as many at either end as a screen can hold."""
    places = list(range(len(view.turns)))
    skipped = layout.lines is not None and len(places) > 2 * layout.lines + 2
    if skipped and layout.lines is not None:
        places = [*places[: layout.lines + 1], *places[len(places) - layout.lines - 1 :]]
    pieces = [piece for place in places for piece in _turn_pieces(place, view.turns[place], layout)]
    return [*pieces, *_facts(view, layout)], skipped


def _turn_pieces(place: int, turn: Turn, layout: Layout) -> Iterator[Piece]:
    thoughts, text = split_reasoning(turn)
    for thought in thoughts:
        yield layout.text(place, turn.role, thought, "dim italic", kind="thought")
    if text:
        yield layout.text(place, turn.role, text)
    elif not (thoughts or turn.calls):
        yield layout.text(place, turn.role, "(empty)", "dim")
    for call in _calls(turn.calls, layout.lines):
        yield _call_piece(place, turn.role, call, layout)


def split_reasoning(turn: Turn) -> tuple[list[str], str]:
    """Return a turn's reasoning, from a separate key or from its text, and its remaining text."""
    thought, text = split_thought(turn.content)
    return [part for part in (turn.reasoning.strip("\n"), thought) if part], text.strip("\n") if text.strip() else ""


def split_thought(content: Any) -> tuple[str, str]:
    """Split text into the reasoning in a <think> block at its start, and the rest."""
    text = content_text(content)
    if text.lstrip()[:7] != "<think>":
        return "", text
    thought, mark, answer = text.partition("</think>")
    return thought.strip() + mark, answer


def _calls(calls: Sequence[ToolCall], lines: int | None) -> Sequence[ToolCall]:
    if lines is None or len(calls) <= 2 * lines:
        return calls
    return (*calls[:lines], *calls[len(calls) - lines :])


def _call_piece(place: int, role: str, call: ToolCall, layout: Layout) -> Piece:
    outcome, style = outcome_of(call)
    took = duration(call.seconds)
    head, tail, hidden = clip(outcome, layout.chars)
    text = _signature(call, layout)
    if outcome:
        text.append(" →\n" if "\n" in outcome else " → ", "dim").append(clean(head), style)
    end = Text(clean(tail), style) if tail else text
    if took:
        end.append(f" ({took})", "dim")
    return Piece(place, role, layout.wrap(text), layout.wrap(end) if tail else [], hidden, "call")


def _signature(call: ToolCall, layout: Layout) -> Text:
    raw = call_signature(call)
    signature = clean(raw if layout.lines is None else shorten(raw, max(3 * layout.body, 40)))
    signature = signature.replace("\n", "␊")
    name, bracket, rest = signature.partition("(")
    return Text.assemble((name, "bold cyan"), (bracket + rest, "cyan"))


def call_signature(call: ToolCall) -> str:
    """Return the call as a person would write it, even if its arguments raise when read."""
    try:
        return call_text(call)
    except Exception:
        return f"{readable(call.name)}({readable(call.arguments)})"


def outcome_of(call: ToolCall) -> tuple[str, str]:
    """Return the result of a call and its colour; "" if the result is unknown."""
    status, result = status_of(call), content_text(call.result)
    style = _OUTCOMES[status]
    if status in FAILURES:
        return failure_text(status, readable(call.error) or result), style
    if result or call.reply is None:
        return result, style
    return "(empty)", "dim"


def content_text(content: Any) -> str:
    """Return content as text, with the name and size of images: `[IMAGE chart.png 640x480]`."""
    if isinstance(content, (list, tuple)):
        return "\n".join(_image(block) or readable([block]) for block in content)
    return _image(content) or readable(content)


def _image(block: Any) -> str:
    image = image_of(block)
    if image is None:
        return ""
    size = f"{image.width}x{image.height}" if isinstance(image.width, int) and isinstance(image.height, int) else ""
    facts = [_name(image), size, f"({image.note})" if isinstance(image.note, str) else ""]
    return f"{IMAGE[:-1]} {' '.join(filter(None, facts))}".rstrip() + IMAGE[-1]


def image_of(block: Any) -> Image | None:
    """Return the image that a content block is or contains."""
    image = block
    if isinstance(block, Mapping):
        try:
            image = next((value for value in block.values() if isinstance(value, Image)), None)
        except Exception:  # a block that raises when read is left to `readable`
            image = None
    return image if isinstance(image, Image) else None


def _name(image: Image) -> str:
    for address in (image.uri, image.path):
        if isinstance(address, str) and address and not address.startswith("data:"):
            return one_line(address.rstrip("/").rpartition("/")[2], 40)
    return ""


def _facts(view: Conversation, layout: Layout) -> Iterator[Piece]:
    """Yield facts other than the conversation: dataset row, values that rewards logged, marks, error."""
    groups = (("columns", view.columns), ("extra", view.extra), ("marks", view.marks))
    for place, (label, values) in enumerate(groups, len(view.turns)):
        if values:
            yield layout.text(place, label, _pairs(values, layout), "dim", kind="given")
    error = readable(view.error)
    if error:
        yield layout.text(len(view.turns) + len(groups), "error", error, "red")


def _pairs(values: Mapping[str, Any], layout: Layout) -> str:
    if layout.lines is None:
        return " · ".join(f"{key}={readable(value)}" for key, value in values.items())
    return one_line(
        " · ".join(f"{key}={brief(value, 2 * layout.body)}" for key, value in values.items()), 2 * layout.body
    )
