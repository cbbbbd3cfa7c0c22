"""TRL's GRPOTrainer and its subclasses (GMPO, …), and RLOOTrainer.

Two instance-level wrappers suffice, with the same names and signatures since TRL 0.22: around
`_calculate_rewards`, where prompts and completions exist as messages (the snapshot is taken before any reward
function runs), and around `_generate_and_score_completions`, at whose end the advantages exist. `_generate` and
`_tool_call_loop`, where the trainer has them, add token counts and what happened in each tool call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from rollout_hookspecs import Batch, Emit

from rollout_plugins.hosts.generation import Generation
from rollout_plugins.hosts.observing import Needs, Observer, TRLHost
from rollout_plugins.hosts.support import Support
from rollout_plugins.hosts.trl_log import LogTail, batch_from_log
from rollout_plugins.hosts.wrapping import arguments
from rollout_plugins.snapshot import Snapshot

_LOGPROBS: Final = "sampler, trainer and reference"
SCORED: Final = ("inputs", "prompts", "completions", "completion_ids_list")
_PER_TOKEN = ("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps")


class GRPOObserver(Observer):
    """Watches a trainer that scores groups of completions; `whole` is its method from the rows to the advantages."""

    whole: ClassVar[str] = "_generate_and_score_completions"
    needs: ClassVar[Needs] = {whole: ("inputs",), "_calculate_rewards": SCORED}

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch(self.whole, self._whole)
        self.watch("_calculate_rewards", self._rewards)
        for name, around in (("_generate", self._tokens), ("_tool_call_loop", self.tool_loop)):
            if hasattr(trainer, name):
                self.watch(name, around)

    def _whole(self, now: Generation, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.given(now, original, args, kwargs)
        out = original(*args, **kwargs)
        if now.count:
            with self.guarded("read the advantages"):
                self._read_advantages(now, out)
        return out

    def _rewards(self, now: Generation, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.guarded("take a snapshot of a generation"):
            call = arguments(original, args, kwargs)
            now.snapshot(*(call[name] for name in SCORED))
        gathered = self.scored(now, original, args, kwargs)
        with self.guarded("read the rewards"):
            self._read_rewards(now, gathered)
        return gathered

    def _read_rewards(self, now: Generation, gathered: Any) -> None:
        """Rewards exist now, and so does what reward functions gave to log_extra."""
        here = slice(now.rank * now.count, (now.rank + 1) * now.count)
        now.numbers = lambda index: gathered[here, index].tolist()
        copier = Snapshot()
        pending = getattr(self.trainer, "_pending_extra_logs", None) or {}
        now.extra = {str(name): copier.copy(list(values)) for name, values in pending.items()}
        now.bytes += copier.bytes

    def _read_advantages(self, now: Generation, out: Mapping[str, Any]) -> None:
        """Advantages exist now, as numbers in the trainer's log; only if they don't is its tensor read."""
        log = LogTail.of(now)
        if log is None:
            now.advantages = out["advantages"].tolist()
        else:
            self._read_log(now, log)
        now.keep(**{name: out.get(name) for name in _PER_TOKEN})

    def _read_log(self, now: Generation, log: LogTail) -> None:
        here = slice(now.rank * now.count, (now.rank + 1) * now.count)
        now.advantages = log.advantages()[here]
        tensor = now.numbers

        def numbers(index: int) -> Sequence[float] | None:
            logged = log.reward(now.names[index])
            return tensor(index) if logged is None else logged[here]

        now.numbers = numbers
        if self.options.get("gather") and now.rank == 0 and now.world > 1:
            now.peers = log.everything()

    def _tokens(self, now: Generation, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if isinstance(out, tuple) and out:
            now.prompt_ids = out[0]
            if len(out) > 3 and now.tool_mask is None:
                now.tool_mask = out[2]
        return out

    def missed(self, now: Generation) -> None:
        """The snapshot was not taken, so what the trainer logged has to do."""
        with self.guarded("record a generation from the trainer's log"):
            batch = batch_from_log(self.trainer, now.expected)
            if batch is not None:
                self.emit(batch)
            else:
                super().missed(now)


class GRPOHost(TRLHost):
    """See the module."""

    name = "grpo"
    observer = GRPOObserver
    supports = (
        Support(
            trainer="GRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs=_LOGPROBS, since="0.22", note="prompt lengths since 0.24, tools since 0.26, log_extra since 1.0",
        ),
        Support(
            trainer="GMPOTrainer", advantage=True, groups=True, evaluation=True, images=True, logprobs=_LOGPROBS,
            since="1.10",
        ),
        Support(
            trainer="RLOOTrainer", advantage=True, groups=True, evaluation=True, images=True, since="0.22",
            note="prompt lengths since 0.24",
        ),
    )  # fmt: skip

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """The generation that is in the trainer's own log although nobody was attached when it was made."""
        return batch_from_log(trainer, count)
