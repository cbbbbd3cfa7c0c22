"""TRL's GRPOTrainer and its subclasses (GMPO, …), and RLOOTrainer.

Two instance-level wrappers suffice, with the same names and signatures since TRL 0.22: around
`_calculate_rewards`, where prompts and completions exist as messages (the snapshot is taken before any reward
function runs), and around `_generate_and_score_completions`, at whose end the advantages exist. `_generate` and
`_tool_call_loop`, where the trainer has them, add token counts and what happened in each tool call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, Final

from rollout_hookspecs import Batch, Emit

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo_log import LogTail, batch_from_log
from rollout_plugins.hosts.grpo_trained import Trained
from rollout_plugins.hosts.grpo_unscored import NEVER_SCORED, NO_ADVANTAGE, Made, Sampled, Unscored
from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.observing import Needs, Observer
from rollout_plugins.hosts.kit.support import Support, TRLHost
from rollout_plugins.hosts.kit.trainer_facts import is_trls_own
from rollout_plugins.hosts.kit.turns import Turns
from rollout_plugins.hosts.kit.wrapping import Call

LOGPROBS: Final = "sampler, trainer and reference"
SCORED: Final = ("inputs", "prompts", "completions", "completion_ids_list")
LOGGED_ADVANTAGE: Final = "what TRL logged; the trainer goes on with another form of it"
WRAPPED_SINCE: Final = "as the trainer's method gave it; what was put around that method since may have changed it"
_PER_TOKEN = ("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps")


class GRPOObserver(Observer):
    """Watches a trainer that scores groups of completions; `whole` is its method from the rows to the advantages."""

    whole: ClassVar[str] = "_generate_and_score_completions"
    needs: ClassVar[Needs] = {whole: ("inputs",), "_calculate_rewards": SCORED}

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.unscored = Unscored(self._keep, self._tell_waiting)
        self.watch(self.whole, self._whole)
        self.watch("_calculate_rewards", self._rewards)
        self.watch("_generate", self._tokens, optional=True)
        self.watch("_tool_call_loop", self.tool_loop, optional=True)
        if self._may_change("_generate"):
            self.watch("_generate_single_turn", self._turn, optional=True)
        self._has_begun = False
        self._unseen_steps = 0
        self.wraps.wrap(trainer, "training_step", self._trained)

    def begin(self) -> Sampled:
        now = Sampled(self.trainer, self.options)
        self._has_begun |= now.split == "train"
        return now

    def _trained(self, call: Call) -> Any:
        """A trainer may call none of what is watched: what it trains on is counted, so that it is not lost unsaid."""
        out = call.run()
        if not self._has_begun:
            with self.guarded("count what is trained on"):
                args = self.trainer.args
                self._unseen_steps += 1
                per_generation = int(getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps)
                if self._unseen_steps % (per_generation * int(getattr(args, "num_iterations", 1))) == 0:
                    self.lose(int(args.per_device_train_batch_size) * per_generation)
        return out

    def _whole(self, now: Sampled, call: Call) -> Any:
        self.given(now, call)
        with self.guarded("see what is in the trainer's log"):
            now.logged = LogTail.before(self.trainer)
        out = call.run()
        if not now.count and now.made is not None:
            with self.guarded("take a snapshot of a generation"):
                self._complete(now, now.made)
        if now.count:
            with self.guarded("read the advantages"):
                self._read_advantages(now, out)
        else:
            now.returned = out
        return out

    def _rewards(self, now: Sampled, call: Call) -> Any:
        with self.guarded("take a snapshot of a generation"):
            given = call.arguments
            self._see_scored(now, *(given[name] for name in SCORED))
        gathered = self.scored(now, call)
        with self.guarded("read the rewards"):
            self._read_rewards(now, gathered)
        return gathered

    def _see_scored(self, now: Sampled, rows: Any, prompts: Any, completions: Any, ids: Any) -> None:
        if now.count and ids != now.scored_ids:
            self._set_apart(now)
        if now.made is not None and len(now.made.ids) != len(ids):
            self._set_apart(now)
        if now.made is None:
            self._claim(now, ids)
        prompts, completions = _structured(now.made, prompts, completions)
        now.snapshot(rows, prompts, completions, ids)
        now.scored_ids = ids

    def _claim(self, now: Sampled, ids: Any) -> None:
        """What is scored was generated before, perhaps on another thread."""
        found = [one for one in self.unscored.claim(ids) if one is not None]
        if not found and not now.generated:
            self.unscored.wait_unknown(-len(ids))
        if not found or len(found) != len(ids):
            return
        now.claimed = found
        now.claim_fields(found)
        steps = {made.policy_step for made, _ in found}
        now.policy_step = steps.pop() if len(steps) == 1 else None
        spoken = [made.completions[i] for made, i in found if made.completions is not None]
        now.made = Made([made.prompts[i] for made, i in found], spoken if len(spoken) == len(ids) else None, ids)
        for name in ("prompt_ids", "tool_mask", "watches"):
            known = [(getattr(made, name), i, made.width or made.count) for made, i in found]
            if all(isinstance(values, list) and len(values) == count for values, _, count in known):
                setattr(now, name, [values[i] for values, i, _ in known])

    def _set_apart(self, now: Sampled) -> None:
        """The trainer goes on with other rollouts: those before are scored and done, or wait for that."""
        earlier = now.split_off()
        if earlier.count:
            with self.guarded("read the rewards"):
                earlier.read_rewards()
            now.earlier.append(earlier)
        elif earlier.made is not None:
            self._complete(earlier, earlier.made)
            self.unscored.wait(earlier, earlier.made.ids)

    def _complete(self, now: Sampled, made: Made) -> None:
        """How it was scored was not seen: keep what was generated."""
        now.snapshot(now.rows if len(now.rows) == len(made.ids) else (), made.prompts, made.completions, made.ids)
        now.unknown.setdefault("rewards", NEVER_SCORED)
        if made.completions is None or None in made.prompts:
            now.decoder = now.decoder or Decoder(self.trainer, self.options)

    def hand_over(self, now: Sampled) -> None:  # type: ignore[override]  # `begin` makes no others
        """A `_generate` by itself waits for the batch that scores it."""
        earlier, now.earlier = now.earlier, []
        for one in earlier:
            self._keep(one)
        if not now.count and now.made is not None:
            with self.guarded("take a snapshot of a generation"):
                self._complete(now, now.made)
                if not now.expected:
                    self.unscored.wait(now, now.made.ids)
                    return
        if not now.count and not now.expected:
            self.unscored.wait_unknown(now.generated)
        self._keep(now)

    def _keep(self, now: Sampled) -> None:
        if not now.advantages:
            now.unknown.setdefault("advantage", NO_ADVANTAGE)
        if now.is_played:
            now.later.append(partial(self._turns.tell_apart, now))
        super().hand_over(now)
        now.forget_trainers_lists()

    @cached_property
    def _turns(self) -> Turns:
        templating = dict(getattr(self.trainer, "chat_template_kwargs", None) or {})
        if getattr(self.trainer, "chat_template", None):
            templating["chat_template"] = self.trainer.chat_template
        return Turns(Decoder(self.trainer, self.options), templating)

    def detach(self) -> None:
        super().detach()
        self._stop_waiting()

    def _tell_waiting(self, count: int) -> None:
        with self.guarded("say how many rollouts wait to be scored"):
            self.emit.waits(count, self._stop_waiting)

    def _stop_waiting(self) -> None:
        with self.guarded("hand over what was never scored"):
            unknown = self.unscored.end()
            if unknown:
                self.lose(unknown)

    def _may_change(self, method: str) -> bool:
        """Whether it is not TRL's own: what it gives back need not be what TRL has in its log."""
        return not is_trls_own(self.trainer, method)

    def _read_rewards(self, now: Sampled, gathered: Any) -> None:
        """Rewards exist now, and so does what reward functions gave to log_extra."""
        here = slice(now.rank * now.count, (now.rank + 1) * now.count)
        now.rewards.numbers = lambda index: gathered[here, index].tolist()
        if self._may_change("_calculate_rewards"):
            now.rewards.see_used(gathered[here].tolist())
        copier = Snapshot()
        pending = getattr(self.trainer, "_pending_extra_logs", None) or {}
        fields = {f"rollout_func.{name}" if name in pending else name: some for name, some in now.extra.items()}
        now.extra = {**fields, **{str(name): copier.copy(list(values)) for name, values in pending.items()}}
        now.bytes += copier.bytes

    def _read_advantages(self, now: Sampled, out: Mapping[str, Any]) -> None:
        """Advantages exist now, as numbers in the trainer's log; only if they need not be those is its tensor read."""
        log = LogTail.of(now, now.logged)
        if log is not None and self._is_of(now, log):
            self._read_log(now, log)
        if now.earlier or not now.advantages or self._may_change(self.whole):
            self._read_returned(now, out)
        else:
            self._keep_trained(now, out, self._places(now, out))
        if not self.wraps.is_outermost(self.trainer, self.whole):
            now.unknown["advantage"] = WRAPPED_SINCE

    def _read_returned(self, now: Sampled, out: Mapping[str, Any]) -> None:
        """What the trainer goes on with, which a subclass may have changed; logged ones for rows it replaced."""
        returned: Any = out.get("advantages")
        if getattr(returned, "ndim", 0) != 1:
            self._keep_trained(now, out, self._places(now, out))
            now.unknown["advantage"] = LOGGED_ADVANTAGE if now.advantages else NO_ADVANTAGE
            return
        known = returned.tolist()
        if now.earlier and "completion_ids" in out:
            self._share_out(now, out, known)
            return
        is_changed = len(known) != now.count or (bool(now.advantages) and known != now.advantages)
        self._give(now, out, known, self._places(now, out, is_in_doubt=is_changed))

    def _share_out(self, now: Sampled, out: Mapping[str, Any], known: Sequence[float]) -> None:
        """The trainer generated several times: it may go on with some of each, or with the last ones alone."""
        trained = Trained(out)
        starts = accumulate((one.count for one in now.earlier), initial=0)
        are_joined = len(known) == sum(one.count for one in (*now.earlier, now))
        for one, start in sorted(zip((*now.earlier, now), starts, strict=True), key=lambda pair: pair[0] is not now):
            places = trained.places(one, start if are_joined else 0)
            if one is now or any(place is not None for place in places):
                self._give(one, out, known, places)

    def _give(
        self, now: Sampled, out: Mapping[str, Any], known: Sequence[float], places: Sequence[int | None]
    ) -> None:
        logged = now.advantages or [None] * now.count
        now.advantages = [logged[i] if place is None else known[place] for i, place in enumerate(places)]
        self._keep_trained(now, out, places)

    def _keep_trained(self, now: Sampled, out: Mapping[str, Any], places: Sequence[int | None]) -> None:
        """What the trainer has for each rollout's tokens, and which rollouts it put others in place of."""
        now.replaced = frozenset(i for i, place in enumerate(places) if place is None)
        rows = [place or 0 for place in places]
        moved = None if rows == list(range(now.count)) else rows
        tensors = {name: tensor for name in _PER_TOKEN if (tensor := out.get(name)) is not None}
        now.keep(**{name: tensor if moved is None else tensor[moved] for name, tensor in tensors.items()})

    def _is_of(self, now: Sampled, log: LogTail) -> bool:
        """Whether the log's rewards are those that were given here: it is full, and may have got others since."""
        here = slice(now.rank * now.count, (now.rank + 1) * now.count)
        logged = enumerate(map(log.reward, now.rewards.names))
        return all(now.rewards.may_be(i, row[here]) for i, row in logged if row is not None)

    def _places(self, now: Sampled, out: Mapping[str, Any], *, is_in_doubt: bool = False) -> Sequence[int | None]:
        """Where the trainer has each rollout; None where it put another in its place, as a replay buffer does.

        It reads the device, so only where something of the trainer's tensors is kept or there is a doubt.
        """
        is_in_doubt |= now.is_one_of_several or _replays(self.trainer)
        if not (self.options.get("tokens") or is_in_doubt) or "completion_ids" not in out:
            return range(now.count)
        return Trained(out).places(now)

    def _read_log(self, now: Sampled, log: LogTail) -> None:
        here = slice(now.rank * now.count, (now.rank + 1) * now.count)
        now.advantages = log.advantages()[here]
        tensor = now.rewards.numbers

        def numbers(index: int) -> Sequence[float] | None:
            logged = log.reward(now.rewards.names[index])
            return tensor(index) if logged is None else logged[here]

        now.rewards.numbers = numbers
        if self.options.get("gather") and now.rank == 0 and now.world > 1:
            now.peers = log.everything()

    def _tokens(self, now: Sampled, call: Call) -> Any:
        if now.count or now.made is not None:
            with self.guarded("keep what was generated"):
                self._set_apart(now)
        with self.guarded("see the rows of a generation"):
            now.keep_columns()
        now.turns = []
        out = call.run()
        with self.guarded("see what was generated"):
            prompts = next(iter((*call.args, *call.kwargs.values())), ())
            now.generated += len(prompts)
            now.made = Made.of(prompts, out)
            now.see_fields(out)
            if len(now.turns) > 1:
                self._count_thrown_away(now.turns, prompts, out)
        if isinstance(out, tuple) and out:
            now.prompt_ids = out[0]
            if len(out) > 3 and now.tool_mask is None:
                now.tool_mask = out[2]
        return out

    def _turn(self, now: Sampled, call: Call) -> Any:
        now.turns.append(next(iter((*call.args, *call.kwargs.values())), ()))
        return call.run()

    def _count_thrown_away(self, turns: Sequence[Sequence[Any]], prompts: Sequence[Any], out: Any) -> None:
        """A subclass may have the same prompts answered again. In later turns the model is asked more than these."""
        asked = set(map(str, (*prompts, *out[0])))
        answers = sum(str(row) in asked for turn in turns for row in turn)
        if answers > len(out[1]):
            self.lose(answers - len(out[1]))

    def missed(self, now: Sampled) -> None:  # type: ignore[override]
        """The snapshot was not taken: fall back on what the trainer logged, or on what it goes on with."""
        with self.guarded("record a generation from what the trainer has of it"):
            batch = batch_from_log(self.trainer, now.expected, now.logged)
            if batch is not None:
                self._tell_what_remains("its log", "columns, numbers of tokens and what tools did")
                self.emit(batch)
                self.count_refused(batch.count)
                if now.generated > batch.count:
                    self.lose(now.generated - batch.count)
            elif now.take_returned(Decoder(self.trainer, self.options)):
                self._tell_what_remains("the token ids it trains on", "rewards, messages as they were and tool calls")
                super().hand_over(now)
            else:
                self.lose(max(now.expected, now.generated))

    def _tell_what_remains(self, where: str, lacks: str) -> None:
        self.wraps.once.warn(
            "%s generates or scores in a way of its own: its rollouts are recorded from %s, without %s; "
            "docs/trainers.md says how to write a host for it",
            type(self.trainer).__name__, where, lacks,
        )  # fmt: skip


def _replays(trainer: Any) -> bool:
    names = ("replay_buffer", "_replay_buffer")
    return any(getattr(trainer, name, None) is not None for name in names)


def _structured(made: Made | None, prompts: Any, completions: Any) -> tuple[Any, Any]:
    """Messages as they were generated, where the trainer scores rendered text instead (Unsloth, with images)."""
    if made is None or not _is_text(prompts):
        return prompts, completions
    if not any(prompt is None or isinstance(prompt, str) for prompt in made.prompts):
        prompts = made.prompts
        if made.completions is not None and _is_text(completions):
            completions = made.completions
    return prompts, completions


def _is_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


class GRPOHost(TRLHost):
    """See the module."""

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """The generation in the trainer's own log, made before anything was attached."""
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
