"""Forks of one conversation and groups that interleave, in the stream of an asynchronous trainer."""

import numpy as np
from async_rig import ids_of, number_of, sample
from async_streams import forked, said, samples, trained


def test_forks_of_one_conversation_are_one_rollout_and_equal_siblings_are_not(tmp_path, tok):
    stream = [*forked(tok, 0), *forked(tok, 2), *[sample(tok, 4, "same", group=1) for _ in range(8)]]
    assert [len(a.input_ids) for a in stream[:2]] == [len(b.input_ids) for b in stream[2:4]]
    _, run = trained(tmp_path, stream, tokens=True)
    stored = list(run.rollouts(tokens=True))
    assert [r.group for r in stored] == [0, 0, *[1] * 8]
    forks = "received as 2 rows, whose tokens differ"
    assert [r.marks.get("forks") for r in stored] == [forks, forks, *[None] * 8]
    assert [number_of(r.tokens.logprobs[0]) for r in stored[:3]] == [0, 2, 4]
    written = [row.input_ids[row.completion_mask.argmax() :].tolist() for row in stream[:2]]
    tokens = stored[0].tokens
    assert [*tokens.prompt, *written[0]] == stream[0].input_ids.tolist()
    assert tokens.completion == [*written[0], *written[1]]
    assert sum(tokens.mask) == stored[0].completion_tokens == len(tokens.completion)
    assert [number_of(value) for value in tokens.logprobs] == [0] * len(written[0]) + [1] * len(written[1])


def test_siblings_that_say_the_same_in_other_tokens_are_two(tmp_path, tok):
    stream = samples(tok, 12)
    pieces = tok("he", add_special_tokens=False)["input_ids"] + tok("llo 0", add_special_tokens=False)["input_ids"]
    before, _ = ids_of(tok, stream[0].prompt, "")
    ids = [*before, *pieces, tok.eos_token_id]
    stream[1] = sample(tok, 0)
    stream[1].input_ids = np.array(ids)
    stream[1].completion_mask = np.array([0] * len(before) + [1] * (len(pieces) + 1))
    stream[1].old_log_probs = np.zeros(len(ids), np.float32)
    assert stream[1].completion == stream[0].completion
    assert stream[1].input_ids.tolist() != stream[0].input_ids.tolist()
    _, run = trained(tmp_path, stream)
    assert len(list(run.rollouts())) == 12


def test_a_conversation_cut_by_a_step_is_one_rollout_of_its_first_step(tmp_path, tok):
    stream = [*samples(tok, 3), *forked(tok, 20, group=5), *samples(tok, 10)[3:]]
    trainer, run = trained(tmp_path, stream, max_steps=2)
    assert (trainer.truth[20], trainer.truth[21]) == (1, 2)
    (cut,) = [r for r in run.rollouts() if r.group == 5]
    assert (cut.step, cut.marks["trained"]) == (1, "yes")


def test_a_conversation_of_which_a_part_was_trained_says_so(tmp_path, tok):
    stream = [*samples(tok, 7), *forked(tok, 20, group=5), *samples(tok, 10)[7:]]
    _, run = trained(tmp_path, stream)
    (cut,) = [r for r in run.rollouts() if r.group == 5]
    assert (cut.step, cut.marks["trained"]) == (2, "1 of 2 rows; no: left_over")
    assert (run.health.drops, run.health.untrained) == ({}, {"left_over": 3})


def test_groups_that_interleave_and_are_cut_keep_their_number(tmp_path, tok):
    order = [0, 4, 1, 5, 2, 6, 8, 3, 7, 9, 10, 11]
    made = samples(tok, 12)
    _, run = trained(tmp_path, [made[number] for number in order])
    stored = list(run.rollouts())
    assert [said(r) for r in stored] == [f"hello {n}" for n in order]
    assert [r.group for r in stored] == [n // 4 for n in order]
    assert {r.group_size for r in stored} == {4}
    assert [r.index for r in stored if r.step == 1] == [0, 1, 2, 3]
