"""A host for some of TRL's trainers, and what it says of each of them.

The table of trainers in the docs is made of that, and tests hold each host to its word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_hookspecs import Emit

from rollout_plugins.hosts.kit.observing import Observer
from rollout_plugins.hosts.kit.trainer_facts import describe_trl
from rollout_plugins.hosts.kit.wrapping import lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One trainer, and what is recorded of its rollouts. What a trainer doesn't have is None in the rollout."""

    trainer: str
    """Class of the trainer."""
    messages: Literal["as they were", "decoded completions", "decoded text"] = "as they were"
    """Whether prompt and completion are the trainer's own messages, or text decoded from its token ids."""
    rewards: Literal["each function", "sum", "none"] = "each function"
    """What is known of rewards."""
    advantage: bool = False
    """Whether the trainer has advantages."""
    tools: bool = False
    """Whether it calls tools, and the calls are recorded with their outcomes."""
    images: bool = False
    """Whether images in its messages are recorded."""
    groups: bool = False
    """Whether several answers to one prompt stand in one group."""
    evaluation: bool = False
    """Whether evaluation makes rollouts, and they are recorded under `eval`."""
    lengths: Literal["prompt and completion", "completion", "with tokens=True"] = "prompt and completion"
    """Which numbers of tokens, and with them why a completion ended, are known without `tokens=True`."""
    logprobs: Literal["", "sampler", "trainer", "sampler, trainer and reference"] = ""
    """Log-probabilities that `tokens=True` keeps, where the trainer has them; the ids are kept for all."""
    since: str = "1.16"
    """Oldest TRL, or other package with its name, on which the host's tests ran."""
    until: str = ""
    """Newest TRL that has this trainer, or has it in this form."""
    note: str = ""
    """What a person should know besides."""

    @property
    def is_of_trl(self) -> bool:
        return " " not in self.since


@dataclass(eq=False)
class TRLHost:
    """A host for some of TRL's trainers and their subclasses. Knowing them takes no import of TRL."""

    name: str
    observer: type[Observer]
    supports: tuple[Support, ...]

    def matches(self, trainer: Any) -> bool:
        """One of TRL's classes, or one that has what they have, as a copy of their source does.

        Not one that has their name alone: another version of TRL may do all of it elsewhere.
        """
        if not self.missing(trainer):
            return True
        return named_support(self, trainer) is not None and any(hasattr(trainer, name) for name in self.observer.needs)

    def missing(self, trainer: Any) -> list[str]:
        """What keeps the trainer from being one of these, in words."""
        lacking = [lacks(trainer, name, parameters) for name, parameters in self.observer.needs.items()]
        foreign = [f"has {name}" for name in self.observer.without if hasattr(trainer, name)]
        return [*filter(None, lacking), *foreign]

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        return self.observer(trainer, emit, options).detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_trl(trainer)


def named_support(host: Any, trainer: Any) -> Support | None:
    """What a host says of the nearest of the trainer's classes that it names and that TRL made."""
    known = {support.trainer: support for support in getattr(host, "supports", ())}
    trl = (c.__name__ for c in type(trainer).__mro__ if c.__module__.partition(".")[0] == "trl")
    return next((known[name] for name in trl if name in known), None)


def support_of(host: Any, trainer: Any) -> Support | None:
    """What a host says of a trainer that it matches. A copy of TRL's source often has TRL's name in its own."""
    found = named_support(host, trainer)
    if found is not None:
        return found
    known = getattr(host, "supports", ())
    alike = (s for c in type(trainer).__mro__ for s in known if c.__name__.endswith(s.trainer))
    return next(alike, known[0] if known else None)


def may_evaluate(host: Any, trainer: Any) -> bool:
    """Whether evaluation makes rollouts, or the host doesn't say."""
    support = support_of(host, trainer)
    return support is None or support.evaluation
