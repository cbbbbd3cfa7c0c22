"""axolotl's asynchronous GRPO trainer, which trains on one batch while it generates the next.

`_generate_only` generates on a thread. `_compute_deferred_scores` scores on the main one, or `_score_streaming` does,
some groups at a time; reward functions may run in processes of their own. `_prepare_inputs` then gives out what was
scored, one micro-batch a call. The first batch of its data producer, and evaluation, go TRL's own way.

Rollouts are handed over when it is known what became of them: once all their micro-batches were given out, or when
training ends. On several ranks the first one generates for all: it alone keeps these rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rollout_hookspecs import Emit

from rollout_plugins.content.rewards import shortest
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo import LOGPROBS, SCORED, GRPOObserver
from rollout_plugins.hosts.grpo_log import LogTail
from rollout_plugins.hosts.grpo_unscored import Sampled
from rollout_plugins.hosts.kit.decoding import Decoder, unpadded
from rollout_plugins.hosts.kit.observing import Needs
from rollout_plugins.hosts.kit.rewards import Rewards
from rollout_plugins.hosts.kit.support import Support, TRLHost
from rollout_plugins.hosts.kit.wrapping import Call

TRAINED, UNKNOWN, REPLACED, LEFT_OVER, BROKE_OFF = "trained", "unknown", "replaced", "left_over", "broke_off"
_WORDS: Final = {TRAINED: "yes", UNKNOWN: "unknown"}
_NOT_SCORED: Final = "training ended before it was scored"


class RewardsInParts(Rewards):
    """Rewards of a batch that is scored part by part, one part after the other."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._unseen: set[str] = set()
        self._known: list[list[float | None]] = []

    def end_part(self, count: int, gathered: Any) -> None:
        """Read the rewards of so many rollouts; those of other processes are in the trainer's 32 bits."""
        self.numbers = lambda index: [shortest(value) for value in gathered[:count, index].tolist()]
        self._unseen.update(super().read(count))
        self._known += self.rows
        self.rows, self._raw = [], {}

    def read(self, count: int) -> list[str]:
        if len(self._known) != count:
            self._unseen.update(self.names)
            self._known = [[None] * len(self.names) for _ in range(count)]
        self.rows = self._known
        return [name for name in self.names if name in self._unseen]


class AheadObserver(GRPOObserver):
    """Watches a trainer that generates ahead."""

    needs: ClassVar[Needs] = {
        **GRPOObserver.needs,
        "_generate_only": ("inputs",),
        "_compute_deferred_scores": ("rollout",),
        "_collect_reward_workers": SCORED,
    }

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        depth = int(getattr(trainer.args, "prefetch_depth", 1))
        self.unscored.most += depth
        self._made_before = 0 if trainer.state.global_step else depth
        self._held: list[Sampled] = []
        self._given: set[int] = set()
        self.watch("_prepare_inputs", self._prepare)
        self.watch("_generate_only", self._ahead)
        self.watch("_generate_rank0_only", self._tokens, optional=True)
        self.watch("_compute_deferred_scores", self._deferred)
        self.watch("_score_streaming", self._deferred, ("rollout",), optional=True)
        self.watch("_collect_reward_workers", self._collected)

    # --- generated on a thread, scored later ----------------------------------------------------------------------

    def _ahead(self, now: Sampled, call: Call) -> Any:
        with self.guarded("see the rows of a generation"):
            now.rows = call.arguments["inputs"]
            now.policy_step = self._policy_step()
            now.split, now.step = "train", now.policy_step + 1
            now.group_size = int(self.trainer.num_generations)
            now.unknown = dict.fromkeys(("rewards", "advantage"), _NOT_SCORED)
            if call.arguments.get("rank0_only"):
                now.world = 1
        return call.run()

    def _policy_step(self) -> int:
        """The step whose weights generate now. vLLM is not sent the weights of each."""
        synced = getattr(self.trainer, "_last_synced_step", None) if self.trainer.use_vllm else None
        return int(self.trainer.state.global_step) if synced is None else max(0, int(synced))

    def _deferred(self, now: Sampled, call: Call) -> Any:
        rollout: Mapping[str, Any] = {}
        with self.guarded("take a snapshot of a generation"):
            rollout = call.arguments["rollout"]
            self._see_deferred(now, rollout)
            now.rewards = RewardsInParts(self.trainer)
            now.logged = LogTail.before(self.trainer)
        out = call.run()
        if now.count:
            with self.guarded("read the advantages"):
                self._read_advantages(now, rollout)
        return out

    def _see_deferred(self, now: Sampled, rollout: Mapping[str, Any]) -> None:
        if rollout.get("_rank0_only"):
            now.world = 1
            if now.rank:
                return
        rows, prompts, completions, ids = (rollout[f"_deferred_{name}"] for name in SCORED)
        self._see_scored(now, rows, prompts, completions, ids)
        if not now.claimed:  # not seen: most were made before anything was attached
            now.policy_step = 0 if self._made_before > 0 else None
            self._made_before -= 1
            now.prompt_ids = unpadded(rollout["prompt_ids"], rollout["prompt_mask"])
            if (mask := rollout.get("tool_mask")) is not None:
                now.tool_mask = [row[: len(own)] for row, own in zip(mask.tolist(), ids, strict=True)]
        now.extra["staleness"] = [None if step is None else now.step - 1 - step for step in _steps(now)]
        if now.claimed:
            now.extra["seconds_in_queue"] = [now.time - one.time for one, _ in now.claimed]

    def _collected(self, now: Sampled, call: Call) -> Any:
        gathered = call.run()
        with self.guarded("read the rewards"):
            if isinstance(now.rewards, RewardsInParts):
                now.rewards.end_part(len(call.arguments["prompts"]), gathered)
        return gathered

    def _rewards(self, now: Sampled, call: Call) -> Any:
        if not isinstance(now.rewards, RewardsInParts):
            return super()._rewards(now, call)
        before: dict[Any, int] = {}
        with self.guarded("see what reward functions logged before"):
            before = {name: len(values) for name, values in self._pending().items()}
        gathered = self.scored(now, call)
        with self.guarded("read what reward functions logged"):
            for name, values in self._pending().items():
                new = Snapshot().copy(list(values)[before.get(name, 0) :])
                now.extra[str(name)] = [*now.extra.get(str(name), ()), *new]
        return gathered

    def _pending(self) -> Mapping[str, Any]:
        """What reward functions gave to `log_extra`. This trainer never takes it out."""
        return getattr(self.trainer, "_pending_extra_logs", None) or {}

    # --- what became of it ----------------------------------------------------------------------------------------

    def _prepare(self, now: Sampled, call: Call) -> Any:
        out = call.run()
        if not self._held:
            self._given.clear()
        self._given.add(id(out))
        self._settle_unless_left()
        return out

    def _left(self) -> list[Any]:
        """The micro-batches that were not given out yet. Later iterations give out the same ones again."""
        waiting = getattr(self.trainer, "_buffered_inputs", None)
        return [one for one in waiting if id(one) not in self._given] if isinstance(waiting, list) else []

    def _keep(self, now: Sampled) -> None:
        if now.split == "train" and now.advantages and not now.error:
            with self.guarded("read the rewards"):
                now.read_rewards()
            self._held.append(now)
            self._tell_waiting(self.unscored.count)
            self._settle_unless_left()
            return
        if (now.error and now.count) or now.unknown.get("rewards") == _NOT_SCORED:
            self._mark(now, BROKE_OFF if now.error else self._rest(), set(range(now.count)))
        super()._keep(now)

    def _settle_unless_left(self) -> None:
        if self._held and not self._left():
            self._settle()
            self._tell_waiting(self.unscored.count)

    def _settle(self, rest: str = "") -> None:
        """Hand over what was scored; what was not given out got no further than `rest` says."""
        held, self._held = self._held, []
        for now in held:
            with self.guarded("see what was trained on"):
                self._mark(now, rest, _rows_of(now, self._left()) if rest else set())
                now.extra.setdefault("staleness", [0] * now.count)
            super()._keep(now)

    def _mark(self, now: Sampled, rest: str, rows: set[int]) -> None:
        fates = [REPLACED if i in now.replaced else rest if i in rows else TRAINED for i in range(now.count)]
        known = now.marks or [{} for _ in fates]
        words = [_WORDS.get(fate, f"no: {fate}") for fate in fates]
        now.marks = [{**marks, "trained": word} for marks, word in zip(known, words, strict=True)]
        for fate, count in Counter(fates).items():
            if fate not in _WORDS:
                self.emit.untrained(fate, count)

    def _rest(self) -> str:
        """What becomes of rollouts whose turn did not come."""
        if not self.wraps.active:
            return UNKNOWN
        state, control = self.trainer.state, self.trainer.control
        is_over = control.should_training_stop or state.global_step >= state.max_steps
        return LEFT_OVER if is_over else BROKE_OFF

    def _tell_waiting(self, count: int) -> None:
        """Those that were scored wait, too, until they are given out."""
        super()._tell_waiting(count + sum(now.count for now in self._held))

    def _stop_waiting(self) -> None:
        with self.guarded("hand over what was not given out"):
            self._settle(self._rest())
        super()._stop_waiting()


def _steps(now: Sampled) -> list[int | None]:
    return [one.policy_step for one, _ in now.claimed] or [now.policy_step] * now.count


def _rows_of(now: Sampled, micro_batches: list[Any]) -> set[int]:
    """Which rollouts are in these. Rows were shuffled since: they are known by their token ids."""
    found: set[int] = set()
    for one in micro_batches:
        for prompt, completion in zip(one["prompt_ids"].tolist(), one["completion_ids"].tolist(), strict=True):
            alike = (i for i in range(now.count) if i not in found and _is_row(now, i, prompt, completion))
            found |= {*[next(alike, -1)]} - {-1}
    return found


def _is_row(now: Sampled, i: int, prompt: list[int], completion: list[int]) -> bool:
    own = list(now.scored_ids[i])
    asked = list(now.prompt_ids[i]) if isinstance(now.prompt_ids, list) else []
    return completion[: len(own)] == own and prompt[len(prompt) - len(asked) :] == asked


class SequenceParallelObserver(GRPOObserver):
    """Watches a trainer with several ranks to a sequence. With vLLM, all of them are given the same rollouts.

    It calls the reward functions itself, and decodes what they are given.
    """

    needs: ClassVar[Needs] = {
        GRPOObserver.whole: ("inputs",),
        "_create_dataloader_params": ("is_eval", "custom_batch_size"),
    }

    def _whole(self, now: Sampled, call: Call) -> Any:
        self.given(now, call)
        out = self.scored(now, call)
        with self.guarded("take a snapshot of a generation"):
            now.returned = out
            if self.trainer.use_vllm and self.trainer.local_rank:
                now.expected = 0  # the first rank of its group keeps them
            elif now.take_returned(Decoder(self.trainer, self.options)):
                now.unknown.clear()
        return out


SEQUENCE_PARALLEL = TRLHost(
    "axolotl",
    SequenceParallelObserver,
    (
        Support(
            trainer="AxolotlGRPOSequenceParallelTrainer", messages="decoded completions", advantage=True, groups=True,
            since="axolotl 0.16", note="it stops by itself at its first generation; see below",
        ),
    ),
)  # fmt: skip
HOST = TRLHost(
    "axolotl",
    AheadObserver,
    (
        Support(
            trainer="AxolotlAsyncGRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs=LOGPROBS, since="axolotl 0.16", note="what was generated ahead and not trained on is marked",
        ),
    ),
)  # fmt: skip
