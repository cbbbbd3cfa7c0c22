"""Every trainer but TRL's GRPO and RLOO, as a plugin: its hosts come in by the hook that everybody's hosts use."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_hookspecs import Host, hookimpl


class Trainers:
    """Knows TRL's other trainers that make rollouts, ms-swift's and axolotl's. Runs wherever there is a trainer."""

    @hookimpl
    def register_hosts(self) -> Sequence[Host]:
        """Most specific first. They are imported here, when a callback looks for the host of its trainer."""
        from rollout_plugins.trainers import a2po, axolotl, distillation, online_dpo, self_distillation
        from rollout_plugins.trainers.async_grpo import queue
        from rollout_plugins.trainers.gkd import observing as gkd
        from rollout_plugins.trainers.swift import observing as swift

        return (
            swift.GRPO, swift.GKD, axolotl.HOST, axolotl.SEQUENCE_PARALLEL, queue.AsyncHost(), self_distillation.SDPO,
            self_distillation.SDFT, self_distillation.BUFFERED, distillation.HOST, online_dpo.HOST, a2po.HOST,
            gkd.GKD, gkd.GOLD, gkd.IWOPD,
        )  # fmt: skip
