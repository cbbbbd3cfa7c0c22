"""Where each family of trainers has its rollouts, and how to observe them without changing anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout_hookspecs import Host

from rollout_plugins.hosts.a2po import A2POHost
from rollout_plugins.hosts.async_queue import AsyncHost
from rollout_plugins.hosts.distillation import DistillationHost
from rollout_plugins.hosts.gkd import GKDHost, GOLDHost, IWOPDHost
from rollout_plugins.hosts.grpo import GRPOHost
from rollout_plugins.hosts.observing import TRLHost
from rollout_plugins.hosts.online_dpo import OnlineDPOHost
from rollout_plugins.hosts.self_distillation import SDFTHost, SDPOHost


def known_hosts() -> list[Host]:
    """The hosts of this library, most specific first."""
    return list(_ours())


def _ours() -> tuple[AsyncHost | TRLHost, ...]:
    return (
        GRPOHost(), AsyncHost(), SDPOHost(), SDFTHost(), DistillationHost(), OnlineDPOHost(), A2POHost(), GKDHost(),
        GOLDHost(), IWOPDHost(),
    )  # fmt: skip


def nearest_to(trainer: Any) -> str:
    """Which known trainer an unknown one is most like, and what it has otherwise; nothing if it is like none."""
    lacking = [(host.missing(trainer), host) for host in _ours()]
    alike = [(missing, host) for missing, host in lacking if len(missing) < len(host.missing(object()))]
    if not alike:
        return ""
    missing, host = min(alike, key=lambda one: len(one[0]))
    return f"it is most like TRL's {host.supports[0].trainer}, but it {' and '.join(missing)}"


def host_for(trainer: Any, more: Iterable[Host] = ()) -> Host | None:
    """The first host that knows the trainer; plugins' hosts come before ours."""
    return next((host for host in [*more, *known_hosts()] if host.matches(trainer)), None)
