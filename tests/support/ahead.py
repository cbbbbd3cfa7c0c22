"""A trainer that generates ahead, with the methods by which axolotl's asynchronous one is known; and what must hold."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer


class Ahead(GRPOTrainer):
    """Small: the next batch is generated on a thread, and scored on the main one when its turn comes."""

    in_parts, past_the_method = False, False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._buffered_inputs = None
        self._pool, self._coming = ThreadPoolExecutor(1), deque()
        self._batches = _batches(self.train_dataset)

    def go_ahead(self):
        """Until it is there: on a busy machine it could be of a later step, or come after the training."""
        self._coming.append(self._pool.submit(self._generate_only, next(self._batches)))
        wait(self._coming)

    def _generate_only(self, inputs, rank0_only=False):
        prompts = [row["prompt"] for row in inputs]
        prompt_ids, ids, mask, completions, *more = self._generate(prompts)
        made = {
            "prompt_ids": _padded(prompt_ids, self.processing_class.pad_token_id, "left"),
            "prompt_mask": _padded([[1] * len(row) for row in prompt_ids], 0, "left"),
            "completion_ids": _padded(ids, self.processing_class.pad_token_id, "right"),
            "completion_mask": _padded([[1] * len(row) for row in ids], 0, "right"),
            "num_items_in_batch": torch.tensor(sum(map(len, ids))),
            "advantages": torch.zeros(len(ids)),
        }
        if mask is not None:
            made["tool_mask"] = _padded(mask, 1, "right")
        for i, row in enumerate(inputs):
            row |= {name: values[i] for one in more if isinstance(one, dict) for name, values in one.items()}
        later = {"inputs": inputs, "prompts": prompts, "completions": completions, "completion_ids_list": ids}
        return made | {f"_deferred_{name}": value for name, value in later.items()} | {"_rank0_only": rank0_only}

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if not self._buffered_inputs:
            if not self._coming:
                self.go_ahead()
            rollout = self._coming.popleft().result()
            self.go_ahead()
            score = self._score_streaming if self.in_parts else self._compute_deferred_scores
            self._buffered_inputs = self._micro_batches(score(rollout)) * self.num_iterations
        return self._buffered_inputs.pop(0)

    def _micro_batches(self, scored):
        tensors = {name: value for name, value in scored.items() if isinstance(value, torch.Tensor)}
        rows = torch.randperm(len(scored["advantages"])).split(len(scored["advantages"]) // self.pieces)
        return [{n: v[some] if v.ndim else v for n, v in tensors.items()} for some in rows]

    @property
    def pieces(self):
        return 2 if self.in_parts else self.args.steps_per_generation

    def _compute_deferred_scores(self, rollout):
        self._score(rollout, slice(None))
        return self._without_what_was_deferred(rollout)

    def _score_streaming(self, rollout):
        for start in range(0, len(rollout["advantages"]), self.num_generations):
            self._score(rollout, slice(start, start + self.num_generations))
        return self._without_what_was_deferred(rollout)

    def _score(self, rollout, rows):
        given = (rollout[f"_deferred_{n}"][rows] for n in ("inputs", "prompts", "completions", "completion_ids_list"))
        totals = self._collect_reward_workers(*given).nansum(1).view(-1, self.num_generations)
        rollout["advantages"][rows] = (totals - totals.mean(1, keepdim=True)).flatten()

    def _without_what_was_deferred(self, rollout):
        for name in [name for name in rollout if name.startswith("_")]:
            del rollout[name]
        return rollout

    def _collect_reward_workers(self, inputs, prompts, completions, completion_ids_list):
        if not self.past_the_method:
            return self._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        columns = {name: [row[name] for row in inputs] for name in inputs[0] if name != "prompt"}
        given = [one(prompts=prompts, completions=completions, **columns) for one in self.reward_funcs]
        return torch.tensor([[float("nan") if value is None else value for value in one] for one in given]).T

    def finish(self):
        self._pool.shutdown()


def _batches(rows):
    """Two rows of the dataset, each twice, again and again."""
    for i in itertools.cycle(range(0, len(rows), 2)):
        yield [dict(rows[i + j // 2]) for j in range(4)]


def _padded(rows, value, side):
    return pad_sequence([torch.tensor(row) for row in rows], True, value, side)


class Spied:
    """What a trainer like that really made and trained on; mixed in before its class."""

    def _note_made(self, step, rows, ids):
        made = vars(self).setdefault("made", [])
        made += [(tuple(own), step, row["prompt"], row["level"]) for own, row in zip(ids, rows, strict=True)]

    def _generate_only(self, inputs, rank0_only=False):
        step = self.state.global_step
        out = super()._generate_only(inputs, rank0_only)
        self._note_made(step, inputs, out["_deferred_completion_ids_list"])
        return out

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if not any(tuple(ids) == made[0] for ids in completion_ids_list for made in vars(self).get("made", ())):
            self._note_made(self.state.global_step, inputs, completion_ids_list)  # the data producer's first batch
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    def _prepare_inputs(self, generation_batch):
        out = super()._prepare_inputs(generation_batch)
        rows = zip(out["completion_ids"], out["completion_mask"], out["advantages"].tolist(), strict=True)
        found = [(tuple(ids[mask.bool()].tolist()), round(advantage, 4)) for ids, mask, advantage in rows]
        vars(self).setdefault("given_out", []).extend(found)
        return out


def assert_all_is_kept(trainer, run):
    """What was generated is stored, what was trained on with its own advantage, and the rest says that it was not."""
    stored = list(run.rollouts(tokens=True))
    ids = {rollout.id: tuple(rollout.tokens.completion) for rollout in stored}
    made = {own: SimpleNamespace(step=step, prompt=prompt, level=level) for own, step, prompt, level in trainer.made}
    assert Counter(ids.values()) == Counter(own for own, *_ in trainer.made)
    for rollout in stored:
        truth = made[ids[rollout.id]]
        assert rollout.policy_step == truth.step
        assert [dict(message) for message in rollout.prompt] == truth.prompt
        assert rollout.columns == {"level": truth.level}
        assert rollout.prompt_tokens == len(rollout.tokens.prompt) > 0
    trained = [rollout for rollout in stored if rollout.marks["trained"] == "yes"]
    kept = {(ids[rollout.id], round(rollout.advantage, 4)) for rollout in trained}
    assert kept == set(trainer.given_out)
    assert len(kept) == len(trained)
    rest = [rollout for rollout in stored if rollout.marks["trained"] != "yes"]
    assert {rollout.marks["trained"] for rollout in rest} <= {"no: left_over"}
    assert (run.health.drops, run.health.untrained) == ({}, {"left_over": len(rest)} if rest else {})
    for rollout in stored:
        is_scored = rollout.advantage is not None
        assert ("rewards" in rollout.marks) is ("advantage" in rollout.marks) is not is_scored
        assert (rollout.reward is not None) is is_scored
        if is_scored:
            assert rollout.extra["staleness"] == rollout.step - 1 - rollout.policy_step
    return trained, rest
