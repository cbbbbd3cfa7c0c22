"""Render rollouts with rich, for the console sink, the commands and the terminal viewer.

    console.print(render_rollout(rollout, width=console.width, max_lines=console.height - 1))

The functions take a `Rollout` or a `Trace`, read nothing else, never raise, and use at most `max_lines` lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from rich.console import Group
from rich.text import Text
from rollout_hookspecs import Rollout, Trace

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.chart import sparkline
from rollout_plugins.show.compare import count_shared_turns, describe_variety, format_times, group_equal
from rollout_plugins.show.conversation import Conversation, Turn, conversation, status_of
from rollout_plugins.show.layout import Layout, body_rows, cut, fill
from rollout_plugins.show.text import evenly, number, one_line, rank, signed, tone
from rollout_plugins.system.labels import count

Source = Rollout | Trace | Conversation
_COLUMN = 30
_RULE = " │ "
# With fewer lines, a rollout is better left out.
_LEAST = 6
# The number of lines for facts below the headline.
_HEADER = 3
_FINISH = {"stop": "", "unknown": "dim"}


def render_rollout(source: Source, *, title: str = "", width: int = 80, max_lines: int | None = 24) -> Group:
    """Render one conversation, turn by turn, below a header with its facts.

    `title` is a word that states why it is shown, such as "best". `max_lines=None` leaves nothing out.
    """
    return _group(_rollout_rows(source, title, max(width, 1), max_lines), width)


def render_rollouts(sources: Sequence[tuple[str, Source]], *, width: int = 80, max_lines: int | None = 24) -> Group:
    """Render several rollouts, `(title, source)` each, within `max_lines`; if too many, the first and last ones."""
    width = max(width, 1)
    if max_lines is not None:
        room = max((max_lines + 1) // (_LEAST + 1), 1)
        first = (room + 1) // 2
        sources = [*sources[:first], *sources[max(len(sources) - room // 2, first) :]]
    blocks = [_rollout_rows(source, title, width, max_lines) for title, source in sources]
    if max_lines is not None and sum(map(len, blocks)) + len(blocks) - 1 > max_lines:
        shares = fill([len(block) for block in blocks], max_lines - len(blocks) + 1)
        pairs = zip(sources, shares, strict=True)
        blocks = [_rollout_rows(source, title, width, share) for (title, source), share in pairs]
    rows = [row for position_facts, block in enumerate(blocks) for row in ([Text()] if position_facts else []) + block]
    return _group(rows if max_lines is None else rows[: max(max_lines, 0)], width)


def _rollout_rows(source: Source, title: str, width: int, max_lines: int | None) -> list[Text]:
    rows = _rows_or_error(
        f"{title} this rollout".strip(), lambda: _rows(conversation(source), title, width, max_lines)
    )
    return rows if max_lines is None else rows[: max(max_lines, 0)]


def _rows_or_error(what: str, make: Callable[[], list[Text]]) -> list[Text]:
    """Return the rows, or a row with the error if rendering raised."""
    try:
        return make()
    except Exception as error:
        return [Text(f"{what} could not be shown: {type(error).__name__}", style="red")]


def render_group(sources: Sequence[Source], *, width: int = 80, max_lines: int | None = 24) -> Group:
    """Render answers to one prompt side by side, best first, below the prompt that they share.

    If not all fit, the best, the worst and some between them are shown, and the summary states how many there are.
    """
    rows = _rows_or_error(
        "this group", lambda: _group_rows(list(map(conversation, sources)), max(width, 1), max_lines)
    )
    return _group(rows if max_lines is None else rows[: max(max_lines, 0)], width)


def render_history(sources: Sequence[Source], *, width: int = 80) -> Group:
    """Render answers to one prompt, step by step: the prompt once, and each distinct answer at its first step."""
    return _group(
        _rows_or_error("these answers", lambda: _history_rows(list(map(conversation, sources)), max(width, 1))), width
    )


def _history_rows(views: Sequence[Conversation], width: int) -> list[Text]:
    common = count_shared_turns(views)
    prompt = Conversation(turns=views[0].turns[:common], columns=views[0].columns)
    rows = body_rows(prompt, Layout(width, None))
    first = {index: views[group[0]] for group in group_equal(views) for index in group}
    views_by_step: dict[tuple[Any, Any, int], list[Conversation]] = {}
    for index, view in enumerate(views):
        views_by_step.setdefault((view.split, view.step, id(first[index])), []).append(view)
    for (split, step, first_id), same in views_by_step.items():
        earliest = next(view for view in first.values() if id(view) == first_id)
        is_repeated = (earliest.split, earliest.step) != (split, step)
        repeats = format_times(len(same))
        head = f"{repeats}  as at step {number(earliest.step)}".strip() if is_repeated else repeats
        own = _rest(same[0], common, with_position=True)
        rows += [_headline(own, head, width)] if is_repeated else [Text(), *_rows(own, head, width, None)]
    return rows


def _group(rows: Sequence[Text], width: int) -> Group:
    return Group(*(cut(row, width, "ellipsis") for row in rows))


def _rows(view: Conversation, title: str, width: int, max_lines: int | None) -> list[Text]:
    head = header(view, title, width, None if max_lines is None else _HEADER)
    lines = None if max_lines is None else max_lines - len(head)
    return head if lines is not None and lines <= 0 else [*head, *body_rows(view, Layout(width, lines))]


def header(view: Conversation, title: str, width: int, lines: int | None = None) -> list[Text]:
    """Return the headline with the rollout's position and reward, and its facts in at most `lines` lines."""
    return [_headline(view, title, width), *_flow(facts(view), width, lines)]


def _headline(view: Conversation, title: str, width: int) -> Text:
    left = Text.assemble((one_line(title, 30), "bold"))
    for fact in position_facts(view):
        left.append("  " if left else "").append(fact)
    return _ruled(left, _scores(view, "advantage" if width >= 60 else "adv"), width)


def _ruled(left: Text, right: Text, width: int) -> Text:
    """Return a line with text at its left and right end, and a rule between them."""
    left.truncate(max(width - right.cell_len - 4, 0), overflow="ellipsis")
    room = width - left.cell_len - right.cell_len - 2
    return Text.assemble(left, (f" {'─' * room} ", "dim") if room > 0 else " ", right)


def position_facts(view: Conversation) -> Iterator[str]:
    """Yield the rollout's position in the run."""
    if view.step is not None:
        evaluated = isinstance(view.split, str) and view.split == "eval"
        yield f"{'eval step' if evaluated else 'step'} {number(view.step)}"
    if view.group is not None:
        yield f"group {number(view.group)}"
    if view.index is not None:
        yield f"#{number(view.index)}"


def _scores(view: Conversation, advantage: str) -> Text:
    return Text.assemble(
        ("reward ", "dim"),
        (number(view.reward), "bold"),
        (f"  {advantage} ", "dim"),
        (signed(view.advantage), tone(view.advantage)),
    )


def facts(view: Conversation) -> Iterator[Text]:
    """Yield the other facts of a rollout."""
    rollout_id = one_line(view.id, 60)
    if rollout_id:
        yield Text(rollout_id, style="dim")
    for name, value in view.rewards.items():
        yield Text.assemble((one_line(name, 28) + " ", "dim"), number(value))
    if view.finish is not None:
        finish = one_line(view.finish, 16)
        yield Text.assemble(("finish ", "dim"), (finish, _FINISH.get(finish, "yellow")))
    if view.prompt_tokens is not None or view.completion_tokens is not None:
        yield Text.assemble(f"{number(view.prompt_tokens)} → {number(view.completion_tokens)}", (" tokens", "dim"))
    yield from _tools(view.turns)


def _tools(turns: Sequence[Turn]) -> Iterator[Text]:
    statuses = [status_of(call) for turn in turns for call in turn.calls]
    if statuses:
        failed = sum(status in {"error", "unknown"} for status in statuses)
        calls = f"{len(statuses):,} {'call' if len(statuses) == 1 else 'calls'}"
        yield Text.assemble(calls, (f", {failed:,} failed", "red") if failed else "")


def _flow(facts: Iterator[Text], width: int, limit: int | None) -> list[Text]:
    """Return the facts next to each other, in as many lines as they need, at most `limit`."""
    rows: list[Text] = []
    for fact in facts:
        if rows and rows[-1].cell_len + fact.cell_len + 3 <= width:
            rows[-1].append(" · ", "dim").append_text(fact)
        else:
            rows.append(Text().append_text(fact))
    return rows[:limit]


def _group_rows(views: list[Conversation], width: int, max_lines: int | None) -> list[Text]:
    if len(views) < 2:
        return [row for view in views for row in _rows(view, "", width, max_lines)]
    views = sorted(views, key=lambda view: rank(view.reward), reverse=True)
    kinds = {id(views[places[0]]): len(places) for places in group_equal(views)}
    different = [view for view in views if id(view) in kinds]
    selected = _spread(different, max((width + len(_RULE)) // (_COLUMN + len(_RULE)), 1))
    common = count_shared_turns(views)
    prompt = Conversation(turns=views[0].turns[:common], columns=views[0].columns)
    rows = [_summary(views, len(selected), len(different), width)]
    rows += body_rows(prompt, Layout(width, None if max_lines is None else max(max_lines // 4, 1)))
    lines = None if max_lines is None else max_lines - len(rows)
    if lines is not None and lines <= 0:
        return rows
    titled = [(format_times(kinds[id(view)]), _rest(view, common)) for view in selected]
    return [*rows, *_side_by_side(titled, width, lines)]


def _spread(views: list[Conversation], room: int) -> list[Conversation]:
    """Return at most `room` views, with the best and the worst; those without a reward only if there is room."""
    if len(views) > room:
        views = [view for view in views if finite(view.reward) is not None] or views
    return evenly(views, room)


def _rest(view: Conversation, common: int, *, with_position: bool = False) -> Conversation:
    """Return a conversation without the shared prompt, and without its position in the run unless `with_position`."""
    rollout_id = view.id if view.index is None or with_position else ""
    own = replace(view, id=rollout_id, turns=view.turns[common:], columns={})
    return own if with_position else replace(own, split=None, step=None, group=None)


def _summary(views: Sequence[Conversation], shown_count: int, different: int, width: int) -> Text:
    first = views[0]
    left = Text("  ".join(position_facts(replace(first, index=None))), style="bold")
    variety_text = describe_variety(different, len(views))
    variety_text += f"{', ' * bool(variety_text)}{shown_count} of them shown" if shown_count < different else ""
    left = Text.assemble(left, f"  {count(len(views), 'answer')}{', ' * bool(variety_text)}{variety_text}")
    rewards = [view.reward for view in views]
    ends = [reward for reward in rewards if finite(reward) is not None] or rewards
    right = Text.assemble(
        ("rewards ", "dim"), (sparkline(rewards[:24]), "green"), f" {number(ends[0])} … {number(ends[-1])}"
    )
    return _ruled(left, right, width)


def _side_by_side(views: Sequence[tuple[str, Conversation]], width: int, lines: int | None) -> list[Text]:
    room = max((width - len(_RULE) * (len(views) - 1)) // len(views), 1)
    columns = [_rows(view, title, room, lines) for title, view in views]
    return [_joined(cells, room) for cells in zip_longest(*columns)]


def _joined(cells: Sequence[Text | None], room: int) -> Text:
    row = Text()
    for position_facts, cell in enumerate(cells):
        text = cell or Text()
        text.truncate(room, overflow="ellipsis", pad=position_facts < len(cells) - 1)
        row.append(_RULE if position_facts else "", "dim").append_text(text)
    return row
