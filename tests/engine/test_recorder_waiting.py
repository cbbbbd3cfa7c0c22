"""What a recorder holds until it is stored: the queue counts it, and lets it go."""

import gc
import random
import threading
import tracemalloc

import pytest
from loops import numbers, words

from rollout_plugins import Rollout, RolloutRecorder, Tokens, hookimpl
from rollout_plugins.plugins.metrics import Metrics


def whole_numbers(count):
    return [random.randrange(100_000) for _ in range(count)]


def siblings(count):
    prompt = words(count)
    return [{"prompt": prompt, "completion": words(300), "reward": random.random()} for _ in range(8)]


def with_tokens(count):
    tokens = {"prompt": whole_numbers(count), "completion": whole_numbers(count), "logprobs": numbers(count)}
    return {"prompt": words(20), "completion": words(40), "tokens": {**tokens, "mask": [1] * count}}


def record_of(count):
    said = {"prompt": ({"role": "user", "content": words(count)},), "completion": (words(count),)}
    return Rollout(id="", **said, tokens=Tokens(prompt=None, completion=whole_numbers(count), mask=[0] * count))


WAITING = {
    "text": lambda: [{"prompt": words(200), "completion": words(400), "reward": 1.0} for _ in range(8)],
    "long text": lambda: [{"prompt": words(5000), "completion": "语" * 5000, "reward": 1.0} for _ in range(8)],
    "siblings that share a prompt": lambda: siblings(20_000),
    "tokens": lambda: [with_tokens(1000) for _ in range(8)],
    "records": lambda: [record_of(500) for _ in range(8)],
    "columns": lambda: [
        {"prompt": words(99), "columns": {"a": numbers(50), "b": [whole_numbers(9) for _ in range(20)]}}
        for _ in range(8)
    ],
    "bytes": lambda: [{"prompt": words(99), "columns": {"picture": random.randbytes(20_000)}} for _ in range(8)],
}


@pytest.mark.parametrize("shape", sorted(WAITING))
def test_the_queue_reports_its_size(tmp_path, shape):
    entered, done = threading.Event(), threading.Event()

    class Waits:
        @hookimpl
        def on_rollout(self):
            entered.set()
            done.wait(600)

    with RolloutRecorder([Waits(), Metrics("all")], dir=tmp_path, tokens=True) as recorder:
        recorder.record(0, WAITING[shape]())
        assert entered.wait(600)
        counted = recorder.metrics()["rollouts/queue_bytes"]
        tracemalloc.start()
        for step in range(1, 17):
            recorder.record(step, WAITING[shape]())
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        counted = recorder.metrics()["rollouts/queue_bytes"] - counted
        done.set()
    assert held / 1.3 < counted < held * 1.3
