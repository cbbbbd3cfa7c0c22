"""What waits for the worker is counted as the bytes it holds."""

import gc
import tracemalloc

import pytest
from rig import call, dataset, make
from tools import multiply
from trl import GRPOTrainer

from rollout_plugins.hosts.grpo import HOST


class Emitted(list):
    """The batches of a host, as they wait for the worker thread."""

    __call__ = list.append

    def waits(self, count, emit_pending):
        pass

    def lost(self, reason, count):
        raise AssertionError(reason)


LONG = ["word " * 150 + "end"]

SHAPES = {
    "short": {},
    "a large batch": {"per_device_train_batch_size": 32, "num_generations": 8},
    "long answers": {"script": LONG, "max_completion_length": 400},
    "long prompts": {"rows": dataset(8, note=["语" * 3000] * 8, facts=[list(range(500, 900))] * 8)},
    "tools": {"script": [call("multiply", {"a": 2, "b": 3})] * 3 + ["no", "done", "ok", "six"], "tools": [multiply]},
}


@pytest.mark.parametrize(
    ("shape", "tokens"), [*[(shape, False) for shape in SHAPES], ("short", True), ("tools", True)]
)
@pytest.mark.slow
def test_what_waits_for_the_worker_is_counted_as_it_is_held(tmp_path, shape, tokens):
    trainer = make(tmp_path, cls=GRPOTrainer, max_steps=4, steps_per_generation=1, num_iterations=2, **SHAPES[shape])
    emitted = Emitted()
    detach = HOST.attach(trainer, emitted, {"tokens": tokens})
    tracemalloc.start()
    trainer.train()
    detach()
    gc.collect()
    counted = sum(batch.bytes for batch in emitted)
    kept = [batch.build.args[0].tensors for batch in emitted]
    tensors = sum(tensor.nbytes for some in kept for tensor in some.values())  # which are not Python's memory
    assert len(emitted) == 2
    assert bool(tensors) is tokens
    before = tracemalloc.get_traced_memory()[0]
    del kept[:], emitted[:]
    gc.collect()
    held = before - tracemalloc.get_traced_memory()[0] + tensors
    tracemalloc.stop()
    assert held / 1.3 < counted < held * 1.3
