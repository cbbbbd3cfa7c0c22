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
from rollout_plugins.hosts.online_dpo import OnlineDPOHost
from rollout_plugins.hosts.self_distillation import SDFTHost, SDPOHost


def known_hosts() -> list[Host]:
    """The hosts of this library, most specific first."""
    return [
        GRPOHost(), AsyncHost(), SDPOHost(), SDFTHost(), DistillationHost(), OnlineDPOHost(), A2POHost(), GKDHost(),
        GOLDHost(), IWOPDHost(),
    ]  # fmt: skip


def host_for(trainer: Any, more: Iterable[Host] = ()) -> Host | None:
    """The first host that knows the trainer; plugins' hosts come before ours."""
    return next((host for host in [*more, *known_hosts()] if host.matches(trainer)), None)
