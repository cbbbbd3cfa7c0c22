"""Where the rollouts of a trainer are, and how to observe them without changing anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from rollout_hookspecs import Host

from rollout_plugins.hosts import grpo
from rollout_plugins.hosts.kit.support import TRLHost

logger = logging.getLogger("rollout_plugins")

HOSTS = (grpo.HOST,)
"""The core's own. Plugins have the others: `rollout_plugins.trainers`, and those of third parties."""


def host_for(trainer: Any, more: Iterable[Host] = ()) -> Host | None:
    """The first host that knows the trainer; plugins' hosts come before ours.

    One that finds all it needs comes before one that knows the name alone: SDPO of TRL 1.0 has the methods of GRPO.
    """
    hosts = [*more, *HOSTS]
    whole = next((host for host in hosts if not _lacks(host, trainer) and _knows(host, trainer)), None)
    return whole or next((host for host in hosts if _knows(host, trainer)), None)


def _lacks(host: Host, trainer: Any) -> bool:
    """Whether it knows the trainer by its name at most."""
    return isinstance(host, TRLHost) and bool(host.missing(trainer))


def _knows(host: Host, trainer: Any) -> bool:
    try:
        return host.matches(trainer)
    except Exception as error:
        kind = type(trainer).__name__
        logger.warning("host %r was left out: it could not say whether it knows %s: %r", host.name, kind, error)
        return False


def nearest_to(trainer: Any, more: Iterable[Any] = ()) -> str:
    """Which trainer of TRL's an unknown one is most like, and how it differs; empty if it is like none of them."""
    telling = [host for host in (*HOSTS, *more) if callable(getattr(host, "missing", None))]
    of_trl = [host for host in telling if any(support.is_of_trl for support in getattr(host, "supports", ()))]
    lacking = [(host.missing(trainer), host) for host in of_trl]
    alike = [(missing, host) for missing, host in lacking if len(missing) < len(host.missing(object()))]
    if not alike:
        return ""
    missing, host = min(alike, key=lambda one: len(one[0]))
    return f"it is most like TRL's {host.supports[0].trainer}, but it {' and '.join(missing)}"
