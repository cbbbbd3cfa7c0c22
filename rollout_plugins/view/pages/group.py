"""The answers to one prompt side by side: always the best one, others next to it, and where they diverge from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text
from rollout_hookspecs import Rollout

from rollout_plugins.content.numbers import finite
from rollout_plugins.reading.lazy_rollouts import Rollouts
from rollout_plugins.show.blocks import Block
from rollout_plugins.show.chart import sparkline
from rollout_plugins.show.compare import (
    count_shared_turns,
    describe_variety,
    first_difference,
    format_times,
    group_equal,
    text_changes,
)
from rollout_plugins.show.conversation import Conversation, conversation
from rollout_plugins.show.rollout_blocks import turn_blocks
from rollout_plugins.show.text import number, one_line, rank, signed, tone
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.side_by_side import BesidePage, Side, ruler

_OWN = "bold black on yellow"
_MAX_REWARDS = 24
# A larger group is not read at once, so its answers are not compared.
_MAX_COMPARED = 64


@dataclass(frozen=True, slots=True)
class _Sibling:
    place: int
    """Its index in the query's result."""
    index: Any
    reward: Any
    copies: int = 1
    """How many rollouts are equal to it, with the same reward."""


class GroupPage(BesidePage):
    """The siblings of a rollout, best first."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self._of = rollout
        self._rollouts: Rollouts | None = None
        self._siblings: list[_Sibling] = []
        self._selected = 0
        self._read_rollouts: dict[int, Rollout] = {}

    def on_mount(self) -> None:
        self.title_is(Text("looking for its siblings …"))
        self.job(self._find, self._arrived, group="group")

    def _find(self) -> tuple[Rollouts, list[_Sibling]]:
        siblings_in_store = self.viewer.stored.siblings(self._of)
        rows = siblings_in_store.rows(["index", "reward"])
        siblings = [_Sibling(place, row["index"], row["reward"]) for place, row in enumerate(rows) if row]
        if len(siblings) <= _MAX_COMPARED:
            siblings = self._different(siblings_in_store, siblings)
        return siblings_in_store, sorted(siblings, key=lambda sibling: rank(sibling.reward), reverse=True)

    def _different(self, rollouts: Rollouts, siblings: Sequence[_Sibling]) -> list[_Sibling]:
        """Return one sibling of each distinct answer, with the number of its copies."""
        self._read_rollouts = dict(rollouts.numbered())
        readable = [sibling for sibling in siblings if sibling.place in self._read_rollouts]
        same = group_equal([conversation(self._read_rollouts[sibling.place]) for sibling in readable])
        unreadable = [sibling for sibling in siblings if sibling.place not in self._read_rollouts]
        return [replace(readable[places[0]], copies=len(places)) for places in same] + unreadable

    def _arrived(self, answer: tuple[Rollouts, list[_Sibling]]) -> None:
        self._rollouts, self._siblings = answer
        with_reward = [place for place, sibling in enumerate(self._siblings) if finite(sibling.reward) is not None]
        self._selected = with_reward[-1] if with_reward else len(self._siblings) - 1
        self.fill()

    def fill(self) -> None:
        if self._rollouts is None or not self._siblings:
            return
        shown = _window(len(self._siblings), self._selected, self.room)
        rollouts, read = self._rollouts, self._read_rollouts

        def load() -> dict[int, Rollout]:
            """Read the best one, even if it does not fit, and those that are shown."""
            places = {index: self._siblings[index].place for index in sorted({0, *shown})}
            for place in places.values():
                rollout = read.get(place) or next(iter(rollouts.page(place, 1)), None)
                if rollout is not None:
                    read[place] = rollout
            return {index: read[place] for index, place in places.items() if place in read}

        self.job(load, lambda loaded: self._show(shown, loaded), group="siblings")

    def _show(self, shown: Sequence[int], rollouts: Mapping[int, Rollout]) -> None:
        if len(rollouts) < len({0, *shown}):
            self.say("a rollout of this group cannot be read; press i to see why", wrong=True)
        if not rollouts:
            return
        folder = self.viewer.stored.dir
        views = {index: conversation(rollout) for index, rollout in rollouts.items()}
        common = count_shared_turns(list(views.values()))
        blocks = {index: list(turn_blocks(view, folder=folder, start=common)) for index, view in views.items()}
        best, *others = views
        beside = self._selected if self._selected in others else others[-1] if others else None
        for index in others:
            _mark_parting(views[best], views[index], blocks[best] if index == beside else None, blocks[index])
        places = [index for index in shown if index in views]
        self.at = places.index(self._selected) if self._selected in places else 0
        self.above = [self._ruler(), *_common(list(turn_blocks(views[best], folder=folder)), common)]
        self.sides = [
            Side(rollouts[index], _head(views[index], self._siblings[index]), blocks[index]) for index in places
        ]
        self._title()
        self.draw(keep=True)

    def _title(self) -> None:
        rewards = [sibling.reward for sibling in self._siblings for _ in range(sibling.copies)]
        answers = filter(None, [count(len(rewards), "answer"), describe_variety(len(self._siblings), len(rewards))])
        name = f"step {number(self._of.step)}  group {number(self._of.group)}  {', '.join(answers)}"
        ends = f"{number(rewards[0])} … {number(rewards[-1])}"
        self.title_is(
            Text(name, style="bold"),
            Text.assemble(("rewards ", "dim"), (sparkline(rewards[:_MAX_REWARDS]), "green"), f" {ends}"),
        )

    def _ruler(self) -> Block:
        """Return a block with all siblings by reward, and the selected one highlighted."""
        return ruler(
            [f"{number(sibling.reward)} {format_times(sibling.copies)}".rstrip() for sibling in self._siblings],
            self._selected,
            marked={0},
        )

    def action_choose(self, columns: int) -> None:
        index = max(0, min(self._selected + columns, len(self._siblings) - 1))
        if index != self._selected:
            self._selected = index
            self.fill()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "siblings"


def _window(count: int, selected: int, room: int) -> list[int]:
    """Return the best one, and as many others as fit, including the selected one."""
    room = min(room, count)
    if room < 2:
        return [selected]
    last = max(selected, room - 1)
    return [0, *range(last - room + 2, last + 1)]


def _head(view: Conversation, sibling: _Sibling) -> Text:
    head = Text.assemble(
        (f"#{number(view.index)} {format_times(sibling.copies)}".rstrip() + " ", "bold"), ("reward ", "dim")
    )
    head.append(number(view.reward), "bold")
    if view.advantage is not None:
        head.append(" adv ", "dim").append(signed(view.advantage), tone(view.advantage))
    if view.completion_tokens is not None:
        head.append(f" {number(view.completion_tokens)} tokens", "dim")
    return head.append(f" {one_line(view.finish, 12)}", "dim")


def _common(blocks: Sequence[Block], turns: int) -> Iterator[Block]:
    """Yield the turns that all share, as one block to unfold."""
    same = [block for block in blocks if block.turn < turns and block.spans]
    if same:
        spans = [span for block in same for span in ((f"{block.label}: ", "bold"), *block.spans, ("\n", ""))]
        last = same[-1].text
        summary = f"{count(turns, 'message')} in common, to “{one_line(last, 200)}”"
        yield Block("system", spans, label="prompt", turn=-2, least=1, short=summary)


def _mark_parting(best: Conversation, other: Conversation, left: list[Block] | None, right: list[Block]) -> None:
    """Mark where two conversations diverge: the turn, and in it the words that the other one lacks."""
    place = first_difference(best, other)
    if place is None:
        right.insert(0, Block("parting", [("equal to the best one", "yellow")]))
        return
    pairs = ([b for b in left or () if b.turn == place], [b for b in right if b.turn == place])
    for left_block, right_block in zip(*pairs, strict=False):
        has_texts = left_block.spans and right_block.spans and left_block.text != right_block.text
        if left_block.kind == right_block.kind and has_texts:
            changes = text_changes(left_block.text, right_block.text)
            left_block.spans = [(text, _OWN if kind == "removed" else "") for kind, text in changes if kind != "added"]
            right_block.spans = [
                (text, _OWN if kind == "added" else "") for kind, text in changes if kind != "removed"
            ]
    for blocks in filter(None, (left, right)):
        at = next((n for n, block in enumerate(blocks) if block.turn >= place), len(blocks))
        blocks.insert(at, Block("parting", [("◆ they diverge here", "bold yellow")], turn=place))
