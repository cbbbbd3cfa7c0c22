"""Observe TRL's GRPOTrainer and its subclasses (GMPO, …), and RLOOTrainer.

Two methods of the trainer instance are wrapped; their names and signatures are the same since TRL 0.22.
`_calculate_rewards` receives prompts and completions as messages, so the snapshot is taken there, before any reward
function runs. `_generate_and_score_completions` returns the advantages. Where the trainer has them, `_generate` adds
token counts and `_tool_call_loop` adds the outcome of each tool call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, Final

from rollout_hookspecs import Batch, Emit, Support

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo_leftovers import LeftoversObserver
from rollout_plugins.hosts.grpo_log import LogTail, batch_from_log
from rollout_plugins.hosts.grpo_shuffle import watch_shuffle
from rollout_plugins.hosts.grpo_trained import Trained
from rollout_plugins.hosts.grpo_unscored import NEVER_SCORED, NO_ADVANTAGE, GeneratedRows, Sampled, Unscored
from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.observe_generation import Needs
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.trainer_facts import is_trls_own
from rollout_plugins.hosts.kit.turns import Turns
from rollout_plugins.hosts.kit.wrapping import Call

LOGPROBS: Final = "sampler, trainer and reference"
SCORED: Final = ("inputs", "prompts", "completions", "completion_ids_list")
LOGGED_ADVANTAGE: Final = "from TRL's log; the trainer trains on another form of it"
WRAPPED_SINCE: Final = "as the trainer's method returned it; code that wrapped that method later may have changed it"
_PER_TOKEN = ("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps")


class GRPOObserver(LeftoversObserver):
    """Observes a trainer that scores groups of completions.

    `generate_method` names the trainer's method that takes the dataset's rows and returns the advantages.
    """

    generate_method: ClassVar[str] = "_generate_and_score_completions"
    needs: ClassVar[Needs] = {generate_method: ("inputs",), "_calculate_rewards": SCORED}

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.unscored = Unscored(self.keep, self._report_waiting)
        self.watch(self.generate_method, self._around_generation)
        self.watch("_calculate_rewards", self._around_rewards)
        self.watch("_generate", self._around_generate, optional=True)
        self.watch("_tool_call_loop", self.tool_loop, optional=True)
        if self._may_change("_generate"):
            self.watch("_generate_single_turn", self._around_turn, optional=True)
        self._has_begun = False
        self._unseen_steps = 0
        self.wraps.wrap(trainer, "training_step", self._after_training_step)

    def begin(self) -> Sampled:
        generation = Sampled(self.trainer, self.options, training=self.is_training)
        self._has_begun |= generation.split == "train"
        return generation

    def _after_training_step(self, call: Call) -> Any:
        """Count the rollouts of a trainer that calls none of the observed methods, so that their loss is reported."""
        out = call.run()
        if not self._has_begun:
            with self.guarded("count what is trained on"):
                args = self.trainer.args
                self._unseen_steps += 1
                per_generation = int(getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps)
                if self._unseen_steps % (per_generation * int(getattr(args, "num_iterations", 1))) == 0:
                    self.count_unobserved(int(args.per_device_train_batch_size) * per_generation)
        return out

    def _around_generation(self, generation: Sampled, call: Call) -> Any:
        self.store_rows(generation, call)
        with self.guarded("see what is in the trainer's log"):
            generation.logged = LogTail.before(self.trainer)
        out = call.run()
        if not generation.count and generation.generated_rows is not None:
            with self.guarded("take a snapshot of a generation"):
                self._complete(generation, generation.generated_rows)
        if generation.count:
            with self.guarded("read the advantages"):
                self._read_advantages(generation, out)
        else:
            generation.returned = out
        if self.options.get("tokens") and not generation.earlier:
            with self.guarded("see the order of training"):
                watch_shuffle(generation, self.trainer)
        return out

    def _around_rewards(self, generation: Sampled, call: Call) -> Any:
        with self.guarded("take a snapshot of a generation"):
            arguments = call.arguments
            self._see_scored(generation, *(arguments[name] for name in SCORED))
        gathered = self.run_rewards(generation, call)
        with self.guarded("read the rewards"):
            self._read_rewards(generation, gathered)
        return gathered

    def _see_scored(self, generation: Sampled, rows: Any, prompts: Any, completions: Any, ids: Any) -> None:
        if generation.count and ids != generation.scored_ids:
            self._set_apart(generation)
        if generation.generated_rows is not None and len(generation.generated_rows.ids) != len(ids):
            self._set_apart(generation)
        if generation.generated_rows is None:
            self._claim(generation, ids)
        prompts, completions = _structured(generation.generated_rows, prompts, completions)
        generation.snapshot(rows, prompts, completions, ids)
        generation.scored_ids = ids

    def _claim(self, generation: Sampled, ids: Any) -> None:
        """Look up the generation of rows that were generated before this call, perhaps on another thread."""
        claims = [claim for claim in self.unscored.claim(ids) if claim is not None]
        if not claims and not generation.generated_count:
            self.unscored.wait_unknown(-len(ids))
        if not claims or len(claims) != len(ids):
            return
        generation.claimed = claims
        generation.claim_fields(claims)
        steps = {earlier.policy_step for earlier, _ in claims}
        generation.policy_step = steps.pop() if len(steps) == 1 else None
        rows = [(earlier.generated_rows, i) for earlier, i in claims if earlier.generated_rows is not None]
        completions = [generated.completions[i] for generated, i in rows if generated.completions is not None]
        generation.generated_rows = GeneratedRows(
            [generated.prompts[i] for generated, i in rows], completions if len(completions) == len(ids) else None, ids
        )
        for name in ("prompt_ids", "tool_mask", "watches"):
            values = [(getattr(earlier, name), i, earlier.width or earlier.count) for earlier, i in claims]
            if all(isinstance(own, list) and len(own) == count for own, _, count in values):
                setattr(generation, name, [own[i] for own, i, _ in values])

    def _set_apart(self, generation: Sampled) -> None:
        """Split off the rollouts observed so far, because the trainer continues with others.

        Scored rollouts are complete; the others wait to be scored.
        """
        earlier = generation.split_off()
        if earlier.count:
            with self.guarded("read the rewards"):
                earlier.read_rewards()
            generation.earlier.append(earlier)
        elif earlier.generated_rows is not None:
            self._complete(earlier, earlier.generated_rows)
            self.unscored.wait(earlier, earlier.generated_rows.ids)

    def _complete(self, generation: Sampled, generated: GeneratedRows) -> None:
        """Take a snapshot of rollouts whose scoring was not observed."""
        rows = generation.rows if len(generation.rows) == len(generated.ids) else ()
        generation.snapshot(rows, generated.prompts, generated.completions, generated.ids)
        generation.unknown.setdefault("rewards", NEVER_SCORED)
        if generated.completions is None or None in generated.prompts:
            generation.decoder = generation.decoder or Decoder(self.trainer, self.options)

    def submit(self, generation: Sampled) -> None:  # type: ignore[override]  # `begin` makes no others
        """Submit the generation, unless it still waits for the batch that scores it."""
        earlier, generation.earlier = generation.earlier, []
        if generation.split == "train" and generation.scored_ids and not generation.error:
            with self.guarded("begin a batch"):
                self.begin_batch(generation.step)
        for split_generation in earlier:
            self.keep(split_generation)
        if not generation.count and generation.generated_rows is not None:
            with self.guarded("take a snapshot of a generation"):
                self._complete(generation, generation.generated_rows)
                if not generation.expected:
                    self.unscored.wait(generation, generation.generated_rows.ids)
                    return
        if not generation.count and not generation.expected:
            self.unscored.wait_unknown(generation.generated_count)
        self.keep(generation)

    def release(self, generation: Sampled) -> None:
        """Submit the generation to the engine."""
        if not generation.advantages:
            generation.unknown.setdefault("advantage", NO_ADVANTAGE)
        if generation.is_played:
            generation.later.append(partial(self._turns.separate, generation))
        super().submit(generation)
        generation.forget_trainers_lists()

    @cached_property
    def _turns(self) -> Turns:
        templating = dict(getattr(self.trainer, "chat_template_kwargs", None) or {})
        if getattr(self.trainer, "chat_template", None):
            templating["chat_template"] = self.trainer.chat_template
        return Turns(Decoder(self.trainer, self.options), templating)

    def detach(self) -> None:
        super().detach()
        self._stop_waiting()

    def _report_waiting(self, count: int) -> None:
        with self.guarded("report how many rollouts wait"):
            self.emit.waits(count + self.held_count, self._stop_waiting)

    def count_waiting(self) -> None:
        self._report_waiting(self.unscored.count)

    def _stop_waiting(self) -> None:
        with self.guarded("submit the rollouts that were not trained on"):
            self.end_batch()
        with self.guarded("submit the rollouts that were never scored"):
            unknown = self.unscored.end()
            if unknown:
                self.count_unobserved(unknown)

    def _may_change(self, method: str) -> bool:
        """Return whether `method` is not TRL's own, so that its result may differ from what TRL logged."""
        return not is_trls_own(self.trainer, method)

    def _read_rewards(self, generation: Sampled, gathered: Any) -> None:
        """Read the rewards, and the values that reward functions passed to `log_extra`."""
        here = slice(generation.rank * generation.count, (generation.rank + 1) * generation.count)
        generation.rewards.numbers = lambda index: gathered[here, index].tolist()
        if self._may_change("_calculate_rewards"):
            generation.rewards.see_used(gathered[here].tolist())
        copier = Snapshot()
        pending = getattr(self.trainer, "_pending_extra_logs", None) or {}
        own_values = {f"rollout_func.{n}" if n in pending else n: values for n, values in generation.extra.items()}
        generation.extra = {**own_values, **{str(name): copier.copy(list(values)) for name, values in pending.items()}}
        generation.bytes += copier.bytes

    def _read_advantages(self, generation: Sampled, out: Mapping[str, Any]) -> None:
        """Read the advantages from the trainer's log, and from its tensor only where the two may differ.

        Reading the tensor synchronises with the device; the log holds plain numbers.
        """
        log = LogTail.of(generation, generation.logged)
        if log is not None and self._log_matches(generation, log):
            self._read_log(generation, log)
        if generation.earlier or not generation.advantages or self._may_change(self.generate_method):
            self._read_returned(generation, out)
        else:
            self._keep_trained(generation, out, self._places(generation, out))
        if not self.wraps.is_outermost(self.trainer, self.generate_method):
            generation.unknown["advantage"] = WRAPPED_SINCE

    def _read_returned(self, generation: Sampled, out: Mapping[str, Any]) -> None:
        """Read the advantages that the trainer returned, which a subclass may have changed.

        Rollouts that the trainer replaced keep their logged advantage.
        """
        returned: Any = out.get("advantages")
        if getattr(returned, "ndim", 0) != 1:
            self._keep_trained(generation, out, self._places(generation, out))
            generation.unknown["advantage"] = LOGGED_ADVANTAGE if generation.advantages else NO_ADVANTAGE
            return
        advantages = returned.tolist()
        if generation.earlier and "completion_ids" in out:
            self._assign_to_several(generation, out, advantages)
            return
        is_changed = len(advantages) != generation.count or generation.advantages not in ([], advantages)
        self._assign(generation, out, advantages, self._places(generation, out, is_in_doubt=is_changed))

    def _assign_to_several(self, generation: Sampled, out: Mapping[str, Any], advantages: Sequence[float]) -> None:
        """Assign the returned advantages to several generations of one call.

        The trainer may return some rollouts of each generation, or those of the last one alone.
        """
        trained = Trained(out)
        generations = (*generation.earlier, generation)
        starts = accumulate((part.count for part in generation.earlier), initial=0)
        are_joined = len(advantages) == sum(part.count for part in generations)
        for part, start in sorted(zip(generations, starts, strict=True), key=lambda pair: pair[0] is not generation):
            places = trained.places(part, start if are_joined else 0)
            if part is generation or any(place is not None for place in places):
                self._assign(part, out, advantages, places)
            else:
                part.replaced = frozenset(range(part.count))

    def _assign(
        self, generation: Sampled, out: Mapping[str, Any], advantages: Sequence[float], places: Sequence[int | None]
    ) -> None:
        logged = generation.advantages or [None] * generation.count
        generation.advantages = [logged[i] if place is None else advantages[place] for i, place in enumerate(places)]
        self._keep_trained(generation, out, places)

    def _keep_trained(self, generation: Sampled, out: Mapping[str, Any], places: Sequence[int | None]) -> None:
        """Store the per-token tensors of each rollout, and which rollouts the trainer replaced by others."""
        generation.replaced = frozenset(i for i, place in enumerate(places) if place is None)
        rows = [place or 0 for place in places]
        moved = None if rows == list(range(generation.count)) else rows
        tensors = {name: tensor for name in _PER_TOKEN if (tensor := out.get(name)) is not None}
        generation.keep(**{name: tensor if moved is None else tensor[moved] for name, tensor in tensors.items()})

    def _log_matches(self, generation: Sampled, log: LogTail) -> bool:
        """Return whether the log holds the rewards of this generation.

        The log has a fixed size, so its last rows may belong to a later generation.
        """
        here = slice(generation.rank * generation.count, (generation.rank + 1) * generation.count)
        logged = enumerate(map(log.reward, generation.rewards.names))
        return all(generation.rewards.may_be(i, row[here]) for i, row in logged if row is not None)

    def _places(
        self, generation: Sampled, out: Mapping[str, Any], *, is_in_doubt: bool = False
    ) -> Sequence[int | None]:
        """Return the row of each rollout in the trainer's result; None where a replay buffer replaced it.

        The comparison reads the device, so it runs only if tensors are stored or rows may have been replaced.
        """
        is_in_doubt |= generation.is_one_of_several or _replays(self.trainer)
        if not (self.options.get("tokens") or is_in_doubt) or "completion_ids" not in out:
            return range(generation.count)
        return Trained(out, _advantages(out) if _replays(self.trainer) else ()).places(generation)

    def _read_log(self, generation: Sampled, log: LogTail) -> None:
        here = slice(generation.rank * generation.count, (generation.rank + 1) * generation.count)
        generation.advantages = log.advantages()[here]
        tensor = generation.rewards.numbers

        def numbers(index: int) -> Sequence[float] | None:
            logged = log.reward(generation.rewards.names[index])
            return tensor(index) if logged is None else logged[here]

        generation.rewards.numbers = numbers
        if self.options.get("gather") and generation.rank == 0 and generation.world > 1:
            generation.peers = log.everything()

    def _around_generate(self, generation: Sampled, call: Call) -> Any:
        if generation.count or generation.generated_rows is not None:
            with self.guarded("store the generated rows"):
                self._set_apart(generation)
        with self.guarded("see the rows of a generation"):
            generation.keep_columns()
        generation.turns = []
        out = call.run()
        with self.guarded("see what was generated"):
            prompts = next(iter((*call.args, *call.kwargs.values())), ())
            generation.generated_count += len(prompts)
            generation.generated_rows = GeneratedRows.of(prompts, out)
            generation.see_fields(out)
            if len(generation.turns) > 1:
                self._count_discarded(generation.turns, prompts, out)
        if isinstance(out, tuple) and out:
            generation.prompt_ids = out[0]
            if len(out) > 3 and generation.tool_mask is None:
                generation.tool_mask = out[2]
        return out

    def _around_turn(self, generation: Sampled, call: Call) -> Any:
        generation.turns.append(next(iter((*call.args, *call.kwargs.values())), ()))
        return call.run()

    def _count_discarded(self, turns: Sequence[Sequence[Any]], prompts: Sequence[Any], out: Any) -> None:
        """Count the answers that a subclass discarded when it sampled the same prompts again.

        Prompts of later tool turns are longer than the original ones, so they are not counted.
        """
        texts = set(map(str, (*prompts, *out[0])))
        answers = sum(str(row) in texts for turn in turns for row in turn)
        if answers > len(out[1]):
            self.count_unobserved(answers - len(out[1]))

    def on_unobserved(self, generation: Sampled) -> None:  # type: ignore[override]
        """Record a generation without a snapshot from the trainer's log, or from the token ids that it returned."""
        with self.guarded("record a generation from what the trainer has of it"):
            batch = batch_from_log(self.trainer, generation.expected, generation.logged)
            if batch is not None:
                self._warn_of_source("its log", "columns, token counts and the results of tools")
                self.emit(batch)
                self.count_refused(batch.count)
                if generation.generated_count > batch.count:
                    self.count_unobserved(generation.generated_count - batch.count)
            elif generation.take_returned(Decoder(self.trainer, self.options)):
                self._warn_of_source("the token ids it trains on", "rewards, the original messages and tool calls")
                super().submit(generation)
            else:
                self.count_unobserved(max(generation.expected, generation.generated_count))

    def _warn_of_source(self, source: str, lacks: str) -> None:
        self.wraps.once.warn(
            "%s generates or scores in its own way: its rollouts are recorded from %s, without %s; "
            "docs/how-to/host.md explains how to write a host for it",
            type(self.trainer).__name__, source, lacks,
        )  # fmt: skip


def _replays(trainer: Any) -> bool:
    names = ("replay_buffer", "_replay_buffer")
    return any(getattr(trainer, name, None) is not None for name in names)


def _advantages(out: Mapping[str, Any]) -> list[float]:
    """Return the advantages in the trainer's result if there is one number per rollout, otherwise an empty list."""
    advantages: Any = out.get("advantages")
    return advantages.tolist() if getattr(advantages, "ndim", 0) == 1 else []


def _structured(generated: GeneratedRows | None, prompts: Any, completions: Any) -> tuple[Any, Any]:
    """Return the generated messages where the trainer scores rendered text instead (Unsloth, with images)."""
    if generated is None or not _is_text(prompts):
        return prompts, completions
    if not any(prompt is None or isinstance(prompt, str) for prompt in generated.prompts):
        prompts = generated.prompts
        if generated.completions is not None and _is_text(completions):
            completions = generated.completions
    return prompts, completions


def _is_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


class GRPOHost(TRLHost):
    """The host of GRPOTrainer, its subclasses and RLOOTrainer."""

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """Return the last generation from the trainer's log if it was made before the callback was attached."""
        return batch_from_log(trainer, count)


HOST = GRPOHost(
    "grpo",
    GRPOObserver,
    (
        Support(
            trainer="GRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs=LOGPROBS, since="0.22", note="prompt lengths since 0.24, tools since 0.26, log_extra since 1.0",
        ),
        Support(
            trainer="GMPOTrainer", advantage=True, groups=True, evaluation=True, images=True, logprobs=LOGPROBS,
            since="1.7",
        ),
        Support(
            trainer="RLOOTrainer", advantage=True, groups=True, evaluation=True, images=True, since="0.22",
            note="prompt lengths since 0.24",
        ),
    ),
)  # fmt: skip
