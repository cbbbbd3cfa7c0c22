"""When an asynchronous training dies, what was received is stored."""

import pytest
from async_rig import make_async, sample
from async_streams import Closed, fates, said, samples
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run, runs


class Dies(TrainerCallback):
    """Raises in one of the trainer's events, in step 2."""

    def __init__(self, event, error):
        self.error = error
        setattr(self, event, self.die)

    def die(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise self.error


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["get", "training_step", "on_optimizer_step", "on_step_end", "on_log"])
def test_whatever_ends_training_what_was_received_is_stored(tmp_path, tok, place, kind):
    error = kind("no more")  # of this test alone: it holds on to the trainer
    trainer = make_async(tmp_path, samples(tok, 10 if place == "get" else 24), max_steps=5)
    if place == "get":
        trainer.rollout_worker.death = error
    elif place == "training_step":
        original = trainer.training_step

        def fail(*args, **kwargs):
            if trainer.state.global_step == 1:
                raise error
            return original(*args, **kwargs)

        trainer.training_step = fail
    else:
        trainer.add_callback(Dies(place, error))
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(kind) as caught:
        trainer.train()
    assert caught.value is error
    assert trainer.rollout_worker.stopped == 1
    callback.flush(600)
    stored = fates(open_run(tmp_path / "out"))
    received = len(trainer.rollout_worker.samples) - trainer.rollout_queue.qsize()
    assert set(stored) == {f"hello {n}" for n in range(received)}
    for number in range(received):
        is_trained = trainer.truth.get(number, 99) <= trainer.state.global_step
        assert stored[f"hello {number}"][1] == ("yes" if is_trained else "no: broke_off")


def test_a_training_that_dies_unseen_hands_over_when_the_run_ends(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 10), max_steps=5)
    trainer.rollout_worker.__class__ = Closed
    trainer.rollout_worker.death = RuntimeError("no more")
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(RuntimeError):
        trainer.train()
    make_async(tmp_path / "next", samples(tok, 12), callbacks=[callback]).train()
    assert set(fates(open_run(tmp_path / "out"))) == {f"hello {n}" for n in range(10)}


def test_after_a_training_that_died_the_next_one_is_recorded(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 6))
    trainer.add_callback(RolloutPluginCallback())
    with pytest.raises(RuntimeError):
        trainer.train()
    trainer.rollout_worker.samples = [sample(tok, n, group=9) for n in range(20, 32)]
    trainer.rollout_worker.start()
    trainer.train()
    died, run = runs(tmp_path / "out")
    assert [said(r) for r in run.rollouts(where="marks like '%yes%'")] == [f"hello {n}" for n in range(20, 28)]
    assert (len(died), len(run)) == (6, 12)
