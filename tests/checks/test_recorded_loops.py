"""Checks of what only a loop or a `rollout_func` shows: turns recorded one by one, log-probabilities, and losses."""

import random

from episodes import END, played
from rig import make

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, open_run

EOS = 2


def verdict_of(folder, check):
    (verdict,) = [verdict for verdict in open_run(folder).check().verdicts if verdict.check == check]
    return verdict


def record_turns(folder, *, broken):
    """Record episodes of two turns, each turn as a rollout. `broken`: the later prompt leaves out an earlier token."""
    dice = random.Random(3)
    with RolloutRecorder(dir=folder, tokens=True, autoload=False) as recorder:
        for step in range(1, 7):
            rows = []
            for group in range(8):
                question, answer, further = ({"role": "user", "content": f"question {step} {group}"},
                                             {"role": "assistant", "content": f"answer {dice.random()}"},
                                             {"role": "user", "content": "and then?"})  # fmt: skip
                prompt, ids = [1, 20 + group, 5], [dice.randrange(100, 900) for _ in range(6)] + [EOS]
                later = [*prompt, *(ids[2:] if broken else ids), 5, 30, 5]
                second = [dice.randrange(100, 900) for _ in range(5)] + [EOS]
                rows += [
                    {"prompt": [question], "completion": [answer], "group": group, "group_size": 2, "reward": 1.0,
                     "tokens": {"prompt": prompt, "completion": ids, "mask": [1] * len(ids)}},
                    {"prompt": [question, answer, further], "group": group, "group_size": 2, "reward": 0.0,
                     "completion": [{"role": "assistant", "content": f"more {dice.random()}"}],
                     "tokens": {"prompt": later, "completion": second, "mask": [1] * len(second)}},
                ]  # fmt: skip
            recorder.record(step, rows)


def test_turn_that_does_not_continue_the_turn_before_is_found(tmp_path):
    record_turns(tmp_path, broken=True)
    verdict = verdict_of(tmp_path, "turns-continue")
    assert verdict.verdict == "found"
    assert "do not begin with the tokens of the turn before" in verdict.findings[0].text


def test_turns_that_continue_each_other_are_clear(tmp_path):
    record_turns(tmp_path, broken=False)
    assert verdict_of(tmp_path, "turns-continue").verdict == "clear"
    assert verdict_of(tmp_path, "groups-mixed").verdict == "clear"


def test_checks_of_tokens_say_why_they_saw_nothing(tmp_path):
    with RolloutRecorder(dir=tmp_path, autoload=False) as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}] * 4)
    for check in ("turns-continue", "end-token", "mask-and-roles", "prompt-double-start"):
        verdict = verdict_of(tmp_path, check)
        assert (verdict.verdict, verdict.why) == ("unobserved", "needs tokens=True")
    assert verdict_of(tmp_path, "tools-failing").why == "needs tools"
    assert "log-probabilities" in verdict_of(tmp_path, "sampler-mismatch").why


def test_sampler_with_other_probabilities_than_the_trainer_is_found(tmp_path):
    dice = random.Random(4)
    episodes = [[(" ".join(dice.choices(["hello", "world", "answer", "four"], k=30)) + END, 1)] for _ in range(64)]
    trainer = make(
        tmp_path, rollout_func=played(episodes), max_completion_length=200, per_device_train_batch_size=16,
        num_generations=4, max_steps=8, num_iterations=2, callbacks=[RolloutPluginCallback(tokens=True)],
    )  # fmt: skip
    trainer.train()
    verdict = verdict_of(tmp_path / "out", "sampler-mismatch")
    assert verdict.verdict == "found", verdict
    assert verdict.tokens > 1000


def test_rollouts_that_recording_lost_are_found(tmp_path):
    with RolloutRecorder(dir=tmp_path, autoload=False) as recorder:
        recorder.record(1, [{"prompt": "2+2?", "completion": "4"}] * 4)
        recorder._pipeline.counters.drop("queue_full", 12)
    verdict = verdict_of(tmp_path, "rollouts-lost")
    assert verdict.verdict == "found"
    assert "12 rollouts were generated and are not recorded (queue_full 12)" in verdict.findings[0].text
