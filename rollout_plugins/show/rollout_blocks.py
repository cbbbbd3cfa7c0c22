"""Turn a rollout into blocks for a pager: its facts, the panels of plugins, and its turns with calls and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.style import Style
from rollout_hookspecs import Image, Panel, ToolCall

from rollout_plugins.content.imaging import file_of
from rollout_plugins.content.messages import arguments_of
from rollout_plugins.show.blocks import Block, Spans, cells_of, clean_spans
from rollout_plugins.show.conversation import Conversation, Turn, status_of
from rollout_plugins.show.images import picture
from rollout_plugins.show.layout import call_signature, content_text, image_of, outcome_of, split_reasoning
from rollout_plugins.show.render import header
from rollout_plugins.show.text import brief, clean, duration, local_time, number, one_line, readable

# Rows of a folded block by kind; other kinds do not fold.
LEAST = {"system": 2, "developer": 2, "user": 20, "tool": 8, "reasoning": 6, "call": 8}
_FACTS = "facts"


def rollout_blocks(
    view: Conversation,
    *,
    folder: Path,
    panels: Sequence[Panel] = (),
    producers: Sequence[str] = (),
    rendered: str | None = None,
) -> list[Block]:
    """Return the blocks for everything about a rollout.

    `producers`: the names of the run's annotations, to separate their columns. `rendered`: the prompt as the model
    received it.
    """
    blocks = [Block("head", drawn=lambda width: [cells_of(row) for row in header(view, "", width)])]
    blocks += _fact_blocks(view, producers)
    if rendered:
        blocks.append(Block(_FACTS, clean_spans(rendered), label="rendered", least=1, short=one_line(rendered, 300)))
    for panel in panels:
        if panel.turn is None:
            blocks += _panel(panel, folder)
    turns = list(turn_blocks(view, folder=folder, panels=panels))
    return [*blocks, *turns, *_others(view, folder, {block.image for block in turns})]


def _others(view: Conversation, folder: Path, shown_images: set[Any]) -> Iterator[Block]:
    """Yield the images that no message contains."""
    for image in view.images:
        if isinstance(image, Image) and image not in shown_images:
            yield Block("image", ((clean(content_text(image)), "dim"),), label="image", gap=True)
            yield from _image(image, folder, -1)


def turn_blocks(view: Conversation, *, folder: Path, panels: Sequence[Panel] = (), start: int = 0) -> Iterator[Block]:
    """Yield the turns from `start` on, with the panels that belong to them."""
    placed = [panel for panel in panels if panel.turn is not None]
    replaced = {panel.turn for panel in placed if panel.replaces}
    for at, turn in enumerate(view.turns[start:], start):
        blocks = list(_turn(at, turn, folder, replaced))
        if blocks:
            blocks[0].gap = True
        yield from blocks
        for panel in placed:
            if turn.place is not None and panel.turn in _messages(turn):
                yield from _panel(panel, folder, at)


def _messages(turn: Turn) -> set[int | None]:
    """Return the messages shown in a turn: its own, and those that answered its calls."""
    return {turn.place, *(call.reply for call in turn.calls if call.reply is not None)}


def _fact_blocks(view: Conversation, producers: Sequence[str]) -> Iterator[Block]:
    """Yield facts other than the conversation, each on one row until it is unfolded."""
    error = readable(view.error)
    if error:
        yield Block(_FACTS, clean_spans(error, "red"), label="error", least=3)
    groups: list[tuple[str, Mapping[str, Any]]] = [("columns", view.columns)]
    extra = dict(view.extra)
    for producer in producers:
        names = [name for name in extra if name.startswith(f"{producer}.")]
        groups.append((producer, {name.removeprefix(f"{producer}."): extra.pop(name) for name in names}))
    groups += [("extra", extra), ("marks", view.marks), ("made", dict(_circumstances(view)))]
    for label, values in groups:
        if values:
            short = " · ".join(f"{one_line(key, 40)}={brief(value)}" for key, value in values.items())
            spans = [span for key, value in values.items() for span in _pair(key, value)]
            yield Block(_FACTS, spans[1:], label=one_line(label, 40), least=1, short=short)


def _pair(key: str, value: Any) -> Spans:
    text = readable(value)
    line_break = "\n" if "\n" in text else ""
    return (("\n", ""), (f"{one_line(key, 60)}: ", "bold"), (f"{line_break}{clean(text)}", ""))


def _circumstances(view: Conversation) -> Iterator[tuple[str, Any]]:
    """Yield the circumstances in which the rollout was generated."""
    if isinstance(view.time, (int, float)) and view.time > 0:
        yield "at", local_time(view.time) or view.time
    for name in ("policy_step", "generation", "group_size", "rank", "attempt"):
        value = getattr(view, name)
        if value is not None:
            yield name.replace("_", " "), number(value)


def _turn(place: int, turn: Turn, folder: Path, replaced: set[int | None]) -> Iterator[Block]:
    thoughts, text = split_reasoning(turn)
    for thought in thoughts:
        spans = clean_spans(thought, "dim italic")
        yield Block("reasoning", spans, label=turn.role, turn=place, least=LEAST["reasoning"])
    if text:
        block = Block(turn.role, clean_spans(text), label=turn.role, turn=place, least=LEAST.get(turn.role))
        if turn.place is not None and turn.place in replaced:
            block.least, block.short = 1, "shown below by a plugin; unfold to see the original"
        yield block
    elif not (thoughts or turn.calls):
        yield Block(turn.role, (("(empty)", "dim"),), label=turn.role, turn=place)
    yield from _images(turn.content, folder, place)
    for call in turn.calls:
        yield from _call(place, turn.role, call, folder, replaced)


def _call(place: int, role: str, call: ToolCall, folder: Path, replaced: set[int | None]) -> Iterator[Block]:
    yield Block("call", [*_call_spans(call), *_duration_and_status(call)], label=role, turn=place, least=LEAST["call"])
    outcome, style = outcome_of(call)
    if outcome:
        spans = (("→ ", "dim"), (clean(outcome), style))
        block = Block("tool", spans, label="tool", turn=place, least=LEAST["tool"])
        if call.reply is not None and call.reply in replaced:
            block.least, block.short = 1, "→ shown below by a plugin; unfold to see the original"
        yield block
    yield from _images(call.result, folder, place)


def _call_spans(call: ToolCall) -> Spans:
    """Return `name(argument=value)`; a value of several lines, such as code, starts on its own line."""
    try:
        arguments = arguments_of(call)
        if isinstance(arguments, Mapping) and any(_is_long(value) for value in arguments.values()):
            spans = [(f"{one_line(call.name, 80)}(", "bold cyan")]
            for key, value in arguments.items():
                value_text = clean(value if isinstance(value, str) else readable(value)).strip("\n")
                line_break = "\n    " if "\n" in value_text else ""
                spans.append((f"\n  {one_line(key, 60)}=", "cyan"))
                spans.append((line_break + value_text.replace("\n", "\n    "), ""))
            return [*spans, ("\n)", "bold cyan")]
    except Exception:  # noqa: S110 - arguments that raise when read: the call is shown anyway
        pass
    name, bracket, rest = clean(call_signature(call)).partition("(")
    return [(name, "bold cyan"), (bracket + rest, "cyan")]


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and "\n" in value.strip("\n")


def _duration_and_status(call: ToolCall) -> Iterator[tuple[str, str]]:
    took = duration(call.seconds)
    if took:
        yield f"  {took}", "dim"
    status = status_of(call)
    if status != "ok":
        yield f"  {status.replace('_', ' ')}", "yellow" if status == "not_run" else "red"


def _images(content: Any, folder: Path, turn: int) -> Iterator[Block]:
    """Yield each image in the content; its name and size are in the text."""
    for part in content if isinstance(content, (list, tuple)) else (content,):
        image = image_of(part)
        if image is not None:
            yield from _image(image, folder, turn)


def _image(image: Image, folder: Path, turn: int) -> Iterator[Block]:
    file = file_of(image, folder)
    if file is not None:
        yield Block("image", turn=turn, image=image, drawn=picture(file))


def _panel(panel: Panel, folder: Path, turn: int = -1) -> Iterator[Block]:
    spans: list[tuple[str, str | Style]] = [(clean(f"▪ {panel.title}\n"), "bold magenta")] if panel.title else []
    if panel.text:
        spans.append((clean(panel.text), ""))
    if panel.table:
        spans.append(("\n" if panel.text else "", ""))
        spans += _table(panel.table)
    if spans:
        yield Block("panel", spans, turn=turn, gap=True)
    if isinstance(panel.image, bytes):
        yield Block("image", turn=turn, drawn=picture(panel.image))
    elif panel.image is not None:
        yield Block("image", [(content_text(panel.image), "dim")], turn=turn)
        yield from _image(panel.image, folder, turn)


def _table(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, str | Style]]:
    """Yield the cells as aligned columns; the first row is the header."""
    texts = [[number(cell) if isinstance(cell, (int, float)) else one_line(cell, 40) for cell in row] for row in rows]
    columns = max(map(len, texts), default=0)
    widths = [max((cell_len(row[n]) for row in texts if n < len(row)), default=0) for n in range(columns)]
    for place, row in enumerate(texts):
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False))
        yield "  ".join(padded).rstrip() + "\n", "" if place else "bold"
