"""Choose the host of a trainer: the object that knows where its rollouts are and observes them without changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from rollout_hookspecs import Host

from rollout_plugins.hosts import grpo
from rollout_plugins.hosts.kit.support import missing_of, supports_of

logger = logging.getLogger("rollout_plugins")

HOSTS = (grpo.HOST,)
"""The built-in hosts. Plugins register the others: `rollout_plugins.trainers` and third parties."""


def host_for(trainer: Any, more: Iterable[Host] = ()) -> Host | None:
    """Return the first host that matches the trainer; hosts of plugins are tried before the built-in ones.

    A host that finds every method it needs is preferred to one that only matches the class name, because a class may
    have the methods of another trainer: SDPO of TRL 1.0 has those of GRPO.
    """
    hosts = [*more, *HOSTS]
    fitting = next((host for host in hosts if not _lacks_needs(host, trainer) and _matches(host, trainer)), None)
    return fitting or next((host for host in hosts if _matches(host, trainer)), None)


def _lacks_needs(host: Host, trainer: Any) -> bool:
    """Return whether the trainer lacks something that the host needs."""
    return bool(_missing_needs(host, trainer))


def _missing_needs(host: Host, trainer: Any) -> Sequence[str]:
    try:
        return missing_of(host, trainer) or ()
    except Exception as error:
        logger.debug("host %r failed to list what %s lacks: %r", host.name, type(trainer).__name__, error)
        return ()


def _matches(host: Host, trainer: Any) -> bool:
    try:
        return host.matches(trainer)
    except Exception as error:
        trainer_class = type(trainer).__name__
        logger.warning("host %r is ignored: its check of %s failed: %r", host.name, trainer_class, error)
        return False


def nearest_to(trainer: Any, more: Iterable[Host] = ()) -> str:
    """Describe which supported trainer an unknown one resembles most, and what it lacks; empty if none."""
    documented = [host for host in (*HOSTS, *more) if supports_of(host)]
    missing_by_host = [(missing, host) for host in documented if (missing := _missing_needs(host, trainer))]
    similar = [
        (missing, host) for missing, host in missing_by_host if len(missing) < len(_missing_needs(host, object()))
    ]
    if not similar:
        return ""
    missing, host = min(similar, key=lambda pair: len(pair[0]))
    support = supports_of(host)[0]
    owner = "TRL's " if support.is_of_trl else ""
    return f"it is most like {owner}{support.trainer}, but it {' and '.join(missing)}"
