"""Rules that tell a person, once, that a run goes wrong."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rollout_hookspecs import Step

logger = logging.getLogger("rollout_plugins")

TITLE = "rollouts"
FEWEST_ROLLOUTS = 4
FEWEST_CALLS = 10


class Alerts:
    """Looks at each training step's figures; a rule that held for `patience` steps in a row is told once."""

    def __init__(
        self, callables: Sequence[Callable[[str, str], object]], *, collapse: float, tool_failure: float, patience: int
    ) -> None:
        self._callables = callables
        self._collapse = collapse
        self._tool_failure = tool_failure
        self._patience = patience
        self.begin()

    def begin(self) -> None:
        """Before the first step of a run."""
        self._held: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._told: set[str] = set()

    def look(self, figures: Mapping[str, float], states: Mapping[str, Sequence[str]], step: Step) -> list[str]:
        """Texts to tell after this step, already logged and given to the callables.

        `states`: the status of each call, by tool.
        """
        found = {"collapse": self._collapsed(figures, step), "no_spread": self._no_signal(figures)}
        found |= {f"tool {name}": self._failing(name, own) for name, own in states.items()}
        told = [f"{text} (step {step.step})" for rule, text in found.items() if text and rule not in self._told]
        self._told.update(rule for rule, text in found.items() if text)
        for text in told:
            self._tell(text)
        return told

    def look_at_rewards(self, firsts: Mapping[str, tuple[str, str]], step: Step) -> list[str]:
        """Texts about reward functions that gave NaN or infinity for the first time, told like the others.

        `firsts`: what each of them gave ("NaN", "infinite"), and in which rollout; "" for a reward of no function.
        """
        told = []
        for name, (kind, rollout_id) in firsts.items():
            if (rule := f"reward {name}") not in self._told:
                self._told.add(rule)
                what = f"reward function {name!r} gave a reward that" if name else "the reward"
                told.append(
                    f"{what} is {kind}, for the first time in rollout {rollout_id} ({step.split} step {step.step}); "
                    "rollouts stats counts them"
                )
        for text in told:
            self._tell(text)
        return told

    def _collapsed(self, figures: Mapping[str, float], step: Step) -> str | None:
        value = figures.get("duplicated", 0.0)
        if not self._holds("collapse", value >= self._collapse and step.seen >= FEWEST_ROLLOUTS):
            return None
        return f"{value:.0%} of the rollouts repeat others, {self._patience} steps in a row: the model is collapsing"

    def _no_signal(self, figures: Mapping[str, float]) -> str | None:
        if not self._holds("no_spread", figures.get("groups/no_spread") == 1.0):
            return None
        return f"no group had any reward spread, {self._patience} steps in a row: there is nothing to learn from"

    def _failing(self, name: str, states: Sequence[str]) -> str | None:
        failed = states.count("error")
        bad = failed >= self._tool_failure * len(states)
        self._calls[name] = self._calls[name] + len(states) if bad else 0
        self._failed[name] = self._failed[name] + failed if bad else 0
        if not self._holds(f"tool {name}", bad) or self._calls[name] < FEWEST_CALLS:
            return None
        return f"tool {name!r} failed in {self._failed[name]} of its last {self._calls[name]} calls"

    def _holds(self, rule: str, holds: bool) -> bool:
        """Whether the rule has held for long enough."""
        self._held[rule] = self._held[rule] + 1 if holds else 0
        return self._held[rule] >= self._patience

    def _tell(self, text: str) -> None:
        logger.warning("%s", text)
        for function in self._callables:
            self._call(function, text)

    def _call(self, function: Callable[[str, str], object], text: str) -> None:
        try:
            function(TITLE, text)
        except Exception as error:
            logger.warning("an alert function failed: %r", error)
