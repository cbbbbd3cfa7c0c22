"""Define a host for several of TRL's trainers, and what it declares about each of them.

The table of trainers in the docs is generated from these declarations, and tests verify them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_hookspecs import Batch, Emit, Host, Support

from rollout_plugins.hosts.kit.observe_generation import Observer
from rollout_plugins.hosts.kit.trainer_facts import describe_trl
from rollout_plugins.hosts.kit.wrapping import describe_lack


@dataclass(eq=False)
class TRLHost:
    """A host for the trainers that have the methods an observer needs. It does not import TRL."""

    name: str
    observer: type[Observer]
    supports: tuple[Support, ...]

    def matches(self, trainer: Any) -> bool:
        """Return whether the trainer is one of TRL's classes, or has the same methods, as a copy of their source does.

        The name alone is not enough, because another version of TRL may work differently.
        """
        if not self.missing(trainer):
            return True
        return named_support(self, trainer) is not None and any(hasattr(trainer, name) for name in self.observer.needs)

    def missing(self, trainer: Any) -> list[str]:
        """Describe what keeps the trainer from being one of these."""
        lacking = [describe_lack(trainer, name, parameters) for name, parameters in self.observer.needs.items()]
        foreign = [f"has {name}" for name in self.observer.without if hasattr(trainer, name)]
        return [*filter(None, lacking), *foreign]

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        return self.observer(trainer, emit, options).detach

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return describe_trl(trainer)


def supports_of(host: Host) -> Sequence[Support]:
    """Return the trainers that a host declares; see `HostDetails`."""
    supports: Sequence[Support] = getattr(host, "supports", ())
    return supports


def missing_of(host: Host, trainer: Any) -> Sequence[str] | None:
    """Describe what a trainer lacks to fit the host; None if the host does not declare that. See `HostDetails`."""
    missing: Callable[[Any], Sequence[str]] | None = getattr(host, "missing", None)
    return None if missing is None else missing(trainer)


def recovered(host: Host, trainer: Any, count: int) -> Batch | None:
    """Return the trainer's last rollouts from before the host was attached, if it has them; see `HostDetails`."""
    recover: Callable[[Any, int], Batch | None] | None = getattr(host, "recover", None)
    return None if recover is None or not count else recover(trainer, count)


def named_support(host: Host, trainer: Any) -> Support | None:
    """Return the declaration for the nearest of the trainer's TRL classes."""
    support_by_class = {support.trainer: support for support in supports_of(host)}
    trl = (c.__name__ for c in type(trainer).__mro__ if c.__module__.partition(".")[0] == "trl")
    return next((support_by_class[name] for name in trl if name in support_by_class), None)


def support_of(host: Host, trainer: Any) -> Support | None:
    """Return the declaration for a trainer that the host matches. A copy of TRL's source often has
    TRL's class name.
    """
    named = named_support(host, trainer)
    if named is not None:
        return named
    supports = supports_of(host)
    similar = (s for c in type(trainer).__mro__ for s in supports if c.__name__.endswith(s.trainer))
    return next(similar, supports[0] if supports else None)


def may_evaluate(host: Host | None, trainer: Any) -> bool:
    """Return whether evaluation may generate rollouts; True if the host does not declare it."""
    support = None if host is None else support_of(host, trainer)
    return support is None or support.evaluation
