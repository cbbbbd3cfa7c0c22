"""The answers to one prompt side by side: always the best one, the others beside it, and where they part from it."""

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
from rollout_plugins.show.compare import alike, parting, shared, times, variety, words
from rollout_plugins.show.conversation import Conversation, conversation
from rollout_plugins.show.rollout_blocks import turn_blocks
from rollout_plugins.show.text import number, one_line, rank, signed, tone
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.side_by_side import BesidePage, Side, ruler

_OWN = "bold black on yellow"
_MOST = 24
#: Of a larger group not all are read at once, and so not compared.
_READ = 64


@dataclass(frozen=True, slots=True)
class _Sibling:
    place: int
    """Where it is among those found."""
    index: Any
    reward: Any
    copies: int = 1
    """How many there are that say the same and got the same reward."""


class GroupPage(BesidePage):
    """Siblings, best first."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self._of = rollout
        self._found: Rollouts | None = None
        self._siblings: list[_Sibling] = []
        self._chosen = 0
        self._read_ones: dict[int, Rollout] = {}

    def on_mount(self) -> None:
        self.title_is(Text("looking for its siblings …"))
        self.job(self._find, self._arrived, group="group")

    def _find(self) -> tuple[Rollouts, list[_Sibling]]:
        found = self.viewer.stored.siblings(self._of)
        rows = found.rows(["index", "reward"])
        siblings = [_Sibling(place, row["index"], row["reward"]) for place, row in enumerate(rows) if row]
        if len(siblings) <= _READ:
            siblings = self._different(found, siblings)
        return found, sorted(siblings, key=lambda sibling: rank(sibling.reward), reverse=True)

    def _different(self, found: Rollouts, siblings: Sequence[_Sibling]) -> list[_Sibling]:
        """One of each kind, with how many there are."""
        self._read_ones = dict(found.numbered())
        known = [one for one in siblings if one.place in self._read_ones]
        same = alike([conversation(self._read_ones[one.place]) for one in known])
        lost = [one for one in siblings if one.place not in self._read_ones]
        return [replace(known[places[0]], copies=len(places)) for places in same] + lost

    def _arrived(self, answer: tuple[Rollouts, list[_Sibling]]) -> None:
        self._found, self._siblings = answer
        known = [place for place, one in enumerate(self._siblings) if finite(one.reward) is not None]
        self._chosen = known[-1] if known else len(self._siblings) - 1
        self.fill()

    def fill(self) -> None:
        if self._found is None or not self._siblings:
            return
        shown = _window(len(self._siblings), self._chosen, self.room)
        found, read = self._found, self._read_ones

        def load() -> dict[int, Rollout]:
            """The best one, whether there is room for it or not, and those that are shown."""
            places = {one: self._siblings[one].place for one in sorted({0, *shown})}
            for place in places.values():
                rollout = read.get(place) or next(iter(found.page(place, 1)), None)
                if rollout is not None:
                    read[place] = rollout
            return {one: read[place] for one, place in places.items() if place in read}

        self.job(load, lambda rollouts: self._show(shown, rollouts), group="siblings")

    def _show(self, shown: Sequence[int], rollouts: Mapping[int, Rollout]) -> None:
        if len(rollouts) < len({0, *shown}):
            self.say("a rollout of this group cannot be read; `i` says why", wrong=True)
        if not rollouts:
            return
        folder = self.viewer.stored.dir
        views = {one: conversation(rollout) for one, rollout in rollouts.items()}
        common = shared(list(views.values()))
        blocks = {one: list(turn_blocks(view, folder=folder, start=common)) for one, view in views.items()}
        best, *others = views
        beside = self._chosen if self._chosen in others else others[-1] if others else None
        for one in others:
            _mark_parting(views[best], views[one], blocks[best] if one == beside else None, blocks[one])
        places = [one for one in shown if one in views]
        self.at = places.index(self._chosen) if self._chosen in places else 0
        self.above = [self._ruler(), *_common(list(turn_blocks(views[best], folder=folder)), common)]
        self.sides = [Side(rollouts[one], _head(views[one], self._siblings[one]), blocks[one]) for one in places]
        self._title()
        self.draw(keep=True)

    def _title(self) -> None:
        rewards = [one.reward for one in self._siblings for _ in range(one.copies)]
        answers = filter(None, [count(len(rewards), "answer"), variety(len(self._siblings), len(rewards))])
        name = f"step {number(self._of.step)}  group {number(self._of.group)}  {', '.join(answers)}"
        ends = f"{number(rewards[0])} … {number(rewards[-1])}"
        self.title_is(
            Text(name, style="bold"),
            Text.assemble(("rewards ", "dim"), (sparkline(rewards[:_MOST]), "green"), f" {ends}"),
        )

    def _ruler(self) -> Block:
        """All siblings by reward, with the one that is chosen."""
        return ruler(
            [f"{number(one.reward)} {times(one.copies)}".rstrip() for one in self._siblings], self._chosen, marked={0}
        )

    def action_choose(self, columns: int) -> None:
        wanted = max(0, min(self._chosen + columns, len(self._siblings) - 1))
        if wanted != self._chosen:
            self._chosen = wanted
            self.fill()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "siblings"


def _window(count: int, chosen: int, room: int) -> list[int]:
    """The best one, and as many others as there is room for, the chosen one among them."""
    room = min(room, count)
    if room < 2:
        return [chosen]
    last = max(chosen, room - 1)
    return [0, *range(last - room + 2, last + 1)]


def _head(view: Conversation, sibling: _Sibling) -> Text:
    head = Text.assemble((f"#{number(view.index)} {times(sibling.copies)}".rstrip() + " ", "bold"), ("reward ", "dim"))
    head.append(number(view.reward), "bold")
    if view.advantage is not None:
        head.append(" adv ", "dim").append(signed(view.advantage), tone(view.advantage))
    if view.completion_tokens is not None:
        head.append(f" {number(view.completion_tokens)} tokens", "dim")
    return head.append(f" {one_line(view.finish, 12)}", "dim")


def _common(blocks: Sequence[Block], turns: int) -> Iterator[Block]:
    """The turns that all begin with, as one block to unfold."""
    same = [block for block in blocks if block.turn < turns and block.spans]
    if same:
        spans = [span for block in same for span in ((f"{block.label}: ", "bold"), *block.spans, ("\n", ""))]
        last = same[-1].text
        said = f"{count(turns, 'message')} in common, to “{one_line(last, 200)}”"
        yield Block("system", spans, label="prompt", turn=-2, least=1, short=said)


def _mark_parting(best: Conversation, other: Conversation, left: list[Block] | None, right: list[Block]) -> None:
    """Show in both where they part: the turn, and in it the words that are not in the other."""
    place = parting(best, other)
    if place is None:
        right.insert(0, Block("parting", [("equal to the best, word for word", "yellow")]))
        return
    pairs = ([b for b in left or () if b.turn == place], [b for b in right if b.turn == place])
    for one, two in zip(*pairs, strict=False):
        if one.kind == two.kind and one.spans and two.spans and one.text != two.text:
            changes = words(one.text, two.text)
            one.spans = [(text, _OWN if kind == "removed" else "") for kind, text in changes if kind != "added"]
            two.spans = [(text, _OWN if kind == "added" else "") for kind, text in changes if kind != "removed"]
    for blocks in filter(None, (left, right)):
        at = next((n for n, block in enumerate(blocks) if block.turn >= place), len(blocks))
        blocks.insert(at, Block("parting", [("◆ they diverge here", "bold yellow")], turn=place))
