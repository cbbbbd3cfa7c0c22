"""AsyncGRPO and AsyncDistillation train as they do without the callback, however it is added."""

import weakref

import pytest
import torch
from async_rig import make_async
from async_streams import KINDS, Closed, samples
from store_rig import collected
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_to_the_bit(tmp_path, tok, kind):
    def weights_and_losses(folder, callback):
        folder.mkdir()
        stream = samples(tok, 22, kind)
        for number in (3, 9):
            stream[number].model_version = -9
        trainer = make_async(folder, stream, kind=kind, gradient_accumulation_steps=2, learning_rate=1e-2)
        if callback is not None:
            trainer.add_callback(callback)
        trainer.train()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), losses, torch.rand(3)

    plain = weights_and_losses(tmp_path / "plain", None)
    watched = weights_and_losses(tmp_path / "watched", RolloutPluginCallback(tokens=True, rendered=True))
    assert torch.equal(plain[0], watched[0])
    assert plain[1] == watched[1]
    assert len(plain[1]) == 2
    assert torch.equal(plain[2], watched[2])


def test_everything_is_taken_off_at_the_end(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    before = [set(vars(x)) for x in (trainer, trainer.callback_handler, trainer.rollout_worker, trainer.rollout_queue)]
    callback = RolloutPluginCallback()
    trainer.add_callback(callback)
    trainer.train()
    assert set(vars(trainer.callback_handler)) == before[1] | {"train_dataloader"}
    callback.detach()
    after = [set(vars(x)) for x in (trainer, trainer.callback_handler, trainer.rollout_worker, trainer.rollout_queue)]
    ours = {"training_step", "get_train_dataloader", "log", "on_step_end", "on_epoch_end", "stop", "get"}
    assert not [new - old & ours for old, new in zip(before, after, strict=True) if (new - old) & ours]
    loader = trainer.callback_handler.train_dataloader
    assert "torch_call" not in vars(loader.collate_fn)
    assert trainer._rollout_dataset.queue is trainer.rollout_queue


@pytest.mark.parametrize("way", ["callbacks", "class", "instance", "trainer"])
def test_however_it_is_added(tmp_path, tok, way):
    trainer = make_async(tmp_path, samples(tok, 12), callbacks=[RolloutPluginCallback] if way == "callbacks" else None)
    if way != "callbacks":
        added = {
            "class": RolloutPluginCallback,
            "instance": RolloutPluginCallback(),
            "trainer": RolloutPluginCallback(trainer=trainer),
        }
        trainer.add_callback(added[way])
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 12
    assert open_run(tmp_path / "out").info.host == "async"


def test_two_callbacks_and_a_second_training(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    for name in ("one", "two"):
        trainer.add_callback(RolloutPluginCallback(dir=tmp_path / name))
    trainer.train()
    trainer.rollout_worker.start()
    trainer.train()
    for name in ("one", "two"):
        runs = sorted((tmp_path / name).iterdir())
        assert [len(open_run(run)) for run in runs] == [12, 12]


def test_the_queue_is_read_as_before_in_every_way(tmp_path, tok):
    seen = []

    class Reader(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            watched = trainer._rollout_dataset.queue
            seen.extend([watched.get(True, 1), watched.get(timeout=1), watched.get_nowait(), watched.qsize()])

    trainer = make_async(tmp_path, samples(tok, 18), max_steps=1)
    trainer.add_callback(RolloutPluginCallback())
    trainer.add_callback(Reader())
    trainer.train()
    assert [s.completion[0]["content"] for s in seen[:3]] == ["hello 8", "hello 9", "hello 10"]
    assert seen[3] == 7
    assert len(open_run(tmp_path / "out")) == 11


def test_a_worker_that_takes_no_attributes_is_left_alone(tmp_path, tok):
    trainer = make_async(tmp_path, samples(tok, 12))
    trainer.rollout_worker.__class__ = Closed
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 12


def test_arrays_are_let_go_when_the_trainer_lets_them_go(tmp_path, tok):
    def trained(folder, callbacks):
        folder.mkdir()
        stream = samples(tok, 12)
        trainer = make_async(folder, stream, callbacks=callbacks)
        trainer.train()
        arrays = [weakref.ref(one.input_ids) for one in stream]
        trainer.rollout_worker.samples = stream = None
        return trainer, arrays

    def alive(arrays):
        return sum(array() is not None for array in arrays)

    _plain, arrays = trained(tmp_path / "plain", [])
    collected(lambda: alive(arrays) < 12)
    _watched, others = trained(tmp_path / "watched", [RolloutPluginCallback()])
    collected(lambda: alive(others) <= alive(arrays))
