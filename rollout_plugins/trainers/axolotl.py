"""The host of axolotl's asynchronous GRPO trainer, which trains on one batch while it generates the next.

`_generate_only` generates on a thread. `_compute_deferred_scores`, or `_score_streaming` for some groups at a time,
scores on the main thread; reward functions may run in processes of their own. `_prepare_inputs` then returns the
scored rollouts, one micro-batch per call. The first batch of its data producer, and evaluation, use TRL's own methods.

Rollouts are submitted when their fate is known: once all their micro-batches were taken, or when training ends. Of
several ranks, the first one generates for all, and it alone records these rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rollout_hookspecs import Emit, Support

from rollout_plugins.content.rewards import shortest_float
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo import LOGPROBS, SCORED, GRPOObserver
from rollout_plugins.hosts.grpo_leftovers import BROKE_OFF
from rollout_plugins.hosts.grpo_log import LogTail
from rollout_plugins.hosts.grpo_unscored import Sampled
from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.observe_generation import Needs
from rollout_plugins.hosts.kit.observed_rewards import Rewards
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call

_NOT_SCORED: Final = "training ended before it was scored"


class RewardsInParts(Rewards):
    """The rewards of a batch that is scored in parts, one after the other."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._unobserved: set[str] = set()
        self._rows_so_far: list[list[float | None]] = []

    def end_part(self, count: int, gathered: Any) -> None:
        """Read the rewards of the next `count` rollouts; those from other processes are only in the
        trainer's 32 bits.
        """
        self.numbers = lambda index: [shortest_float(value) for value in gathered[:count, index].tolist()]
        self._unobserved.update(super().read(count))
        self._rows_so_far += self.rows
        self.rows, self._raw = [], {}

    def read(self, count: int) -> list[str]:
        if len(self._rows_so_far) != count:
            self._unobserved.update(self.names)
            self._rows_so_far = [[None] * len(self.names) for _ in range(count)]
        self.rows = self._rows_so_far
        return [name for name in self.names if name in self._unobserved]


class AheadObserver(GRPOObserver):
    """Observes a trainer that generates ahead."""

    needs: ClassVar[Needs] = {
        **GRPOObserver.needs,
        "_generate_only": ("inputs",),
        "_compute_deferred_scores": ("rollout",),
        "_collect_reward_workers": SCORED,
    }

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        depth = int(getattr(trainer.args, "prefetch_depth", 1))
        self.unscored.max_waiting += depth
        self._unobserved_batches = 0 if trainer.state.global_step else depth
        self.watch("_generate_only", self._around_generate_only)
        self.watch("_generate_rank0_only", self._around_generate, optional=True)
        self.watch("_compute_deferred_scores", self._around_scoring)
        self.watch("_score_streaming", self._around_scoring, ("rollout",), optional=True)
        self.watch("_collect_reward_workers", self._around_reward_workers)

    # --- generating on a thread, scoring later --------------------------------------------------------------------

    def _around_generate_only(self, generation: Sampled, call: Call) -> Any:
        with self.guarded("see the rows of a generation"):
            generation.rows = call.arguments["inputs"]
            generation.policy_step = self._policy_step()
            generation.split, generation.step = "train", generation.policy_step + 1
            generation.group_size = int(self.trainer.num_generations)
            generation.unknown = dict.fromkeys(("rewards", "advantage"), _NOT_SCORED)
            if call.arguments.get("rank0_only"):
                generation.world = 1
        return call.run()

    def _policy_step(self) -> int:
        """Return the step whose weights generate now. vLLM does not receive the weights of every step."""
        synced = getattr(self.trainer, "_last_synced_step", None) if self.trainer.use_vllm else None
        return int(self.trainer.state.global_step) if synced is None else max(0, int(synced))

    def _around_scoring(self, generation: Sampled, call: Call) -> Any:
        rollout: Mapping[str, Any] = {}
        with self.guarded("take a snapshot of a generation"):
            rollout = call.arguments["rollout"]
            self._see_deferred(generation, rollout)
            generation.rewards = RewardsInParts(self.trainer)
            generation.logged = LogTail.before(self.trainer)
        out = call.run()
        if generation.count:
            with self.guarded("read the advantages"):
                self._read_advantages(generation, rollout)
        return out

    def _see_deferred(self, generation: Sampled, rollout: Mapping[str, Any]) -> None:
        if rollout.get("_rank0_only"):
            generation.world = 1
            if generation.rank:
                return
        rows, prompts, completions, ids = (rollout[f"_deferred_{name}"] for name in SCORED)
        self._see_scored(generation, rows, prompts, completions, ids)
        if not generation.claimed:  # not observed: most of these were generated before the callback was attached
            generation.policy_step = 0 if self._unobserved_batches > 0 else None
            self._unobserved_batches -= 1
            generation.prompt_ids = unpadded(rollout["prompt_ids"], rollout["prompt_mask"])
            if (mask := rollout.get("tool_mask")) is not None:
                generation.tool_mask = [row[: len(own)] for row, own in zip(mask.tolist(), ids, strict=True)]
        generation.extra["staleness"] = [
            None if step is None else generation.step - 1 - step for step in _steps(generation)
        ]
        if generation.claimed:
            times = [earlier.time for earlier, _ in generation.claimed]
            generation.extra["seconds_in_queue"] = [generation.time - time for time in times]

    def _around_reward_workers(self, generation: Sampled, call: Call) -> Any:
        gathered = call.run()
        with self.guarded("read the rewards"):
            if isinstance(generation.rewards, RewardsInParts):
                generation.rewards.end_part(len(call.arguments["prompts"]), gathered)
        return gathered

    def _around_rewards(self, generation: Sampled, call: Call) -> Any:
        if not isinstance(generation.rewards, RewardsInParts):
            return super()._around_rewards(generation, call)
        before: dict[Any, int] = {}
        with self.guarded("see earlier values that reward functions logged"):
            before = {name: len(values) for name, values in self._pending().items()}
        gathered = self.run_rewards(generation, call)
        with self.guarded("read the values that reward functions logged"):
            for name, values in self._pending().items():
                new = Snapshot().copy(list(values)[before.get(name, 0) :])
                generation.extra[str(name)] = [*generation.extra.get(str(name), ()), *new]
        return gathered

    def _pending(self) -> Mapping[str, Any]:
        """Return the values that reward functions passed to `log_extra`. This trainer never removes them."""
        return getattr(self.trainer, "_pending_extra_logs", None) or {}

    # --- the fate of rollouts -------------------------------------------------------------------------------------

    def watch_micro_batches(self) -> None:
        """Watch as part of a generation, because micro-batches are scored when they are taken."""
        self.watch("_prepare_inputs", self._around_prepare_inputs)

    def _around_prepare_inputs(self, generation: Sampled, call: Call) -> Any:
        out = call.run()
        if not self.held:
            self.micro_batches.begin()
        return self.take(out)

    def begin_batch(self, step: int) -> None:
        """Keep the held generations: the next batch is generated before this one is taken."""

    def keep(self, generation: Sampled) -> None:
        if generation.split == "train" and generation.advantages and not generation.error:
            with self.guarded("read the rewards"):
                generation.read_rewards()
            generation.extra.setdefault("staleness", [0] * generation.count)
            self.held.append(generation)
            self.count_waiting()
            self.settle_unless_left()
            return
        if (generation.error and generation.count) or generation.unknown.get("rewards") == _NOT_SCORED:
            self.mark(generation, BROKE_OFF if generation.error else self.rest(), set(range(generation.count)))
        self.release(generation)


def _steps(generation: Sampled) -> list[int | None]:
    return [earlier.policy_step for earlier, _ in generation.claimed] or [generation.policy_step] * generation.count


HOST = TRLHost(
    "axolotl",
    AheadObserver,
    (
        Support(
            trainer="AxolotlAsyncGRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs=LOGPROBS, since="axolotl 0.16", note="untrained rollouts that were generated ahead are marked",
        ),
    ),
)  # fmt: skip
