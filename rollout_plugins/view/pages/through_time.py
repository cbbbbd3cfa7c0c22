"""The answers to one prompt at several steps of the run, and what changed from each to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from rollout_hookspecs import Rollout
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from rollout_plugins.content.numbers import finite
from rollout_plugins.reading.filters import Filters
from rollout_plugins.reading.lazy_rollouts import Rollouts
from rollout_plugins.reading.prompt_history import is_plain_text, same_prompt
from rollout_plugins.show.blocks import Block, clean_spans
from rollout_plugins.show.chart import sparkline
from rollout_plugins.show.compare import text_changes
from rollout_plugins.show.conversation import conversation, prompt_text
from rollout_plugins.show.rollout_blocks import turn_blocks
from rollout_plugins.show.text import clean, evenly, number, one_line, rank
from rollout_plugins.system.labels import count
from rollout_plugins.view.pages.side_by_side import BesidePage, Side, ruler

_STYLES = {"same": "", "added": "bold green", "removed": "red strike"}
_MODES = ("best", "middle", "worst")


@dataclass(slots=True)
class _Moment:
    """The prompt's answers at one step, best first."""

    step: int
    answers: list[tuple[int, float | None]]
    """For each answer, its index in the query's result and its reward."""

    @property
    def mean(self) -> float | None:
        rewards = [reward for _, reward in self.answers if reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


class TimePage(BesidePage):
    """Steps side by side."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,plus", "move(1)", "Later step", key_display="n"),
        Binding("p,minus", "move(-1)", "Earlier", key_display="p"),
        Binding("m", "mode", "Best/worst"),
        Binding("d", "difference", "Changes", show=False),
    ]

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self._of = rollout
        self._rollouts: Rollouts | None = None
        self._moments: list[_Moment] = []
        self._shown: list[int] = []
        self._mode = 0
        self._changes = True

    def on_mount(self) -> None:
        self.title_is(Text("looking for this prompt in the whole run …"), "esc stops")
        self.job(self._find, self._arrived, group="time")

    def _find(self) -> tuple[Rollouts, list[_Moment]]:
        rollouts = Rollouts.matching(
            self.viewer.stored.session, Filters(messages=self._of.prompt, split=self._of.split)
        )
        moments: dict[int, _Moment] = {}
        for place, step, reward in self._answers(rollouts):
            moments.setdefault(step, _Moment(step, [])).answers.append((place, finite(reward)))
        for moment in moments.values():
            moment.answers.sort(key=lambda answer: rank(answer[1]), reverse=True)
        return rollouts, [moments[step] for step in sorted(moments)]

    def _answers(self, rollouts: Rollouts) -> Iterator[tuple[int, int, Any]]:
        """Yield index, step and reward of each answer; the complete rollouts are read only if they are shown."""
        if all(map(is_plain_text, self._of.prompt)):
            rows = enumerate(rollouts.rows(["step", "reward"]))
            yield from ((place, row["step"], row["reward"]) for place, row in rows if row)
            return
        worker = get_current_worker()
        for place, rollout in same_prompt(
            rollouts.numbered(), self._of.prompt, is_cancelled=lambda: worker.is_cancelled
        ):
            yield place, rollout.step, rollout.reward

    def _arrived(self, answer: tuple[Rollouts, list[_Moment]]) -> None:
        self._rollouts, self._moments = answer
        self._shown = []
        self.fill()

    def fill(self) -> None:
        if not self._moments:
            return
        count = min(self.room, len(self._moments))
        if len(self._shown) != count:
            last = len(self._moments) - 1
            self._shown = evenly(range(last + 1), count) if count > 1 else [last]
            self.at = count - 1
        self._load()

    def _load(self) -> None:
        rollouts, moments = self._rollouts, [self._moments[place] for place in self._shown]
        if rollouts is None:
            return
        places = [_pick(moment, self._mode) for moment in moments]

        def load() -> list[Rollout]:
            return [rollout for place in places for rollout in rollouts.page(place, 1)]

        self.job(load, lambda rollouts: self._show(moments, rollouts), group="moments")

    def _show(self, moments: Sequence[_Moment], rollouts: Sequence[Rollout]) -> None:
        if len(rollouts) < len(moments):
            self.say("a rollout cannot be read; press i to see why", wrong=True)
            return
        texts = [self._text(rollout) for rollout in rollouts]
        self.sides = []
        for place, (moment, rollout, text) in enumerate(zip(moments, rollouts, texts, strict=True)):
            spans = text_changes(texts[place - 1], text) if place and self._changes else [("same", text)]
            block = Block("answer", [(part, _STYLES[kind]) for kind, part in spans] or [("(empty)", "dim")])
            head = Text.assemble(
                (f"step {number(moment.step)} ", "bold"),
                ("reward ", "dim"),
                (number(rollout.reward), "bold"),
                (f" {_MODES[self._mode]} of {len(moment.answers)}, mean {number(moment.mean)}", "dim"),
            )
            self.sides.append(Side(rollout, head, [*_functions(rollout), block]))
        self.above = [self._ruler(), self._prompt()]
        means = [moment.mean for moment in self._moments]
        self.title_is(
            Text(f"one prompt at {count(len(means), 'step')}", style="bold"),
            Text.assemble(("mean reward ", "dim"), (sparkline(means[-40:]), "green"), f" {number(means[-1])}"),
        )
        self.draw(keep=True)

    def _text(self, rollout: Rollout) -> str:
        """Return everything that the model and the environment added, as text to compare."""
        view = conversation(rollout)
        blocks = list(turn_blocks(view, folder=self.viewer.stored.dir))
        own = [block for block in blocks if block.turn >= 0 and view.turns[block.turn].place is not None]
        texts = ("".join(text for text, style in block.spans if style != "dim") for block in own)
        return "\n".join(filter(None, texts))

    def _ruler(self) -> Block:
        """Return a block with the steps, and the shown ones highlighted."""
        steps = [number(moment.step) for moment in self._moments]
        return ruler(steps, self._shown[self.at], marked=self._shown, others="dim")

    def _prompt(self) -> Block:
        text = prompt_text(self._of)
        return Block("system", clean_spans(clean(text)), label="prompt", turn=-2, least=1, short=one_line(text, 300))

    def action_choose(self, columns: int) -> None:
        self.at = max(0, min(self.at + columns, len(self.sides) - 1))
        if self.sides:
            self.above = [self._ruler(), self._prompt()]
            self.draw(keep=True)

    def action_move(self, steps: int) -> None:
        """Show another step in the selected column."""
        if self._shown:
            target = self._shown[self.at] + steps
            self._shown[self.at] = max(0, min(target, len(self._moments) - 1))
            self._load()

    def action_mode(self) -> None:
        self._mode = (self._mode + 1) % len(_MODES)
        self._load()

    def action_difference(self) -> None:
        self._changes = not self._changes
        self._load()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "through_time"


def _functions(rollout: Rollout) -> Iterator[Block]:
    """Yield the values of several reward functions: the best by the sum may be the worst by one of them."""
    if len(rollout.rewards) > 1:
        values = " · ".join(f"{one_line(name, 20)} {number(value)}" for name, value in rollout.rewards.items())
        yield Block("facts", [(values, "dim")])


def _pick(moment: _Moment, mode: int) -> int:
    """Return the index of the best, the middle or the worst answer."""
    candidates = [place for place, reward in moment.answers if reward is not None] or [
        place for place, _ in moment.answers
    ]
    return candidates[mode * (len(candidates) - 1) // 2]
