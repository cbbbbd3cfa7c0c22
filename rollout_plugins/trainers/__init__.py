"""Hosts of all trainers but TRL's GRPO and RLOO, as a plugin that uses the public hook `register_hosts`."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_hookspecs import Host, hookimpl


class Trainers:
    """Registers hosts for TRL's other trainers, ms-swift and axolotl."""

    @hookimpl
    def register_hosts(self) -> Sequence[Host]:
        """Return the hosts, most specific first, importing them only when a callback needs one."""
        from rollout_plugins.trainers import a2po, axolotl, distillation, online_dpo, self_distillation
        from rollout_plugins.trainers.async_grpo import queue
        from rollout_plugins.trainers.gkd import observing as gkd
        from rollout_plugins.trainers.swift import distilling as swift_distilling
        from rollout_plugins.trainers.swift import observing as swift

        return (
            swift.GRPO, swift_distilling.GKD, axolotl.HOST, queue.AsyncHost(),
            self_distillation.SDPO, self_distillation.SDFT, self_distillation.BUFFERED, distillation.HOST,
            online_dpo.HOST, a2po.HOST, gkd.GKD, gkd.GOLD, gkd.IWOPD,
        )  # fmt: skip
