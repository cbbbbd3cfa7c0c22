"""A host for some of TRL's trainers, and what it says of each of them.

The table of trainers in the docs is made of that, and tests hold each host to its word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_hookspecs import Batch, Emit, Host, Support

from rollout_plugins.hosts.kit.observe_generation import Observer
from rollout_plugins.hosts.kit.trainer_facts import describe_trl
from rollout_plugins.hosts.kit.wrapping import lacks


@dataclass(eq=False)
class TRLHost:
    """A host for the trainers that have the methods an observer needs. It does not import TRL."""

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


def supports_of(host: Host) -> Sequence[Support]:
    """The trainers that a host says it knows; see `HostDetails`."""
    supports: Sequence[Support] = getattr(host, "supports", ())
    return supports


def missing_of(host: Host, trainer: Any) -> Sequence[str] | None:
    """What a trainer lacks to be the host's; None if the host does not say. See `HostDetails`."""
    missing: Callable[[Any], Sequence[str]] | None = getattr(host, "missing", None)
    return None if missing is None else missing(trainer)


def recovered(host: Host, trainer: Any, count: int) -> Batch | None:
    """The trainer's last rollouts, made before the host was attached, if it knows them; see `HostDetails`."""
    recover: Callable[[Any, int], Batch | None] | None = getattr(host, "recover", None)
    return None if recover is None or not count else recover(trainer, count)


def named_support(host: Host, trainer: Any) -> Support | None:
    """What a host says of the nearest of the trainer's classes that it names and that TRL made."""
    known = {support.trainer: support for support in supports_of(host)}
    trl = (c.__name__ for c in type(trainer).__mro__ if c.__module__.partition(".")[0] == "trl")
    return next((known[name] for name in trl if name in known), None)


def support_of(host: Host, trainer: Any) -> Support | None:
    """What a host says of a trainer that it matches. A copy of TRL's source often has TRL's name in its own."""
    found = named_support(host, trainer)
    if found is not None:
        return found
    known = supports_of(host)
    alike = (s for c in type(trainer).__mro__ for s in known if c.__name__.endswith(s.trainer))
    return next(alike, known[0] if known else None)


def may_evaluate(host: Host | None, trainer: Any) -> bool:
    """Whether evaluation makes rollouts, or the host doesn't say."""
    support = None if host is None else support_of(host, trainer)
    return support is None or support.evaluation
