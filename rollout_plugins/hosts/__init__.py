"""Where each family of trainers has its rollouts, and how to observe them without changing anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout_hookspecs import Host

from rollout_plugins.hosts import (
    a2po,
    async_queue,
    axolotl,
    distillation,
    gkd,
    grpo,
    online_dpo,
    self_distillation,
    swift,
)  # fmt: skip

#: The hosts of this library, most specific first.
HOSTS = (
    swift.GRPO, swift.GKD, axolotl.HOST, axolotl.SEQUENCE_PARALLEL, grpo.HOST, async_queue.AsyncHost(),
    self_distillation.SDPO, self_distillation.SDFT, self_distillation.BUFFERED, distillation.HOST, online_dpo.HOST,
    a2po.HOST, gkd.GKD, gkd.GOLD, gkd.IWOPD,
)  # fmt: skip


def known_hosts() -> list[Host]:
    return list(HOSTS)


def nearest_to(trainer: Any) -> str:
    """Which trainer of TRL's an unknown one is most like, and how it differs; empty if it is like none of them."""
    lacking = [(host.missing(trainer), host) for host in HOSTS if host.supports[0].is_of_trl]
    alike = [(missing, host) for missing, host in lacking if len(missing) < len(host.missing(object()))]
    if not alike:
        return ""
    missing, host = min(alike, key=lambda one: len(one[0]))
    return f"it is most like TRL's {host.supports[0].trainer}, but it {' and '.join(missing)}"


def host_for(trainer: Any, more: Iterable[Host] = ()) -> Host | None:
    """The first host that knows the trainer; plugins' hosts come before ours."""
    return next((host for host in (*more, *HOSTS) if host.matches(trainer)), None)
