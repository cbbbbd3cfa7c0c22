"""The real asynchronous trainers with their real worker process, on two ranks, and killed.

Only the generation server is a stand-in; where the worker is one too, it follows TRL's own protocol.
"""

import json
import queue
import signal
import threading
from contextlib import suppress

import pytest
from processes import run_worker

pytest.importorskip("aiohttp", reason="TRL's worker talks to its server with it")

from async_rig import make_async, tokenizer
from rig import call, tiny_model
from tools import multiply
from transformers import TrainerCallback
from vllm_stand_in import StandIn

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow


def by_len(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def sometimes(completions, **kwargs):
    return [None if len(completion) == 1 else 0.25 for completion in completions]


class Received(TrainerCallback):
    """Every sample the trainer took, kept by the queue itself; and the rest drained so that the worker can end."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.samples, self.queue = [], self.trainer.rollout_queue
        self.get = self.queue.get

        def get(*args, **kwargs):
            self.samples.append(self.get(*args, **kwargs))
            return self.samples[-1]

        self.queue.get = get

    def on_train_end(self, args, state, control, **kwargs):
        del self.queue.get
        self.has_ended = threading.Event()
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self):
        while not self.has_ended.is_set():
            with suppress(queue.Empty):
                self.queue.get(timeout=0.2)


@pytest.fixture
def server(tmp_path):
    script = [call("multiply", {"a": 2, "b": 3}), "nothing", "hello world", call("divide", {"a": 1})]
    made = StandIn(tokenizer(tmp_path), script)
    yield made
    made.close()


def trained(folder, server, kind, **more):
    received = Received()
    trainer = make_async(folder, kind=kind, max_steps=3, vllm_server_base_url=server.url, callbacks=[received], **more)
    received.trainer = trainer
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    received.has_ended.set()
    return received.samples, open_run(folder / "out")


def same_as_samples(stored, samples):
    """Each rollout is one sample, in the order in which the trainer took them."""
    assert [list(r.prompt) for r in stored] == [s.prompt for s in samples]
    assert [list(r.completion) for r in stored] == [s.completion for s in samples]
    assert [[*r.tokens.prompt, *r.tokens.completion] for r in stored] == [s.input_ids.tolist() for s in samples]


def test_async_grpo(tmp_path, server):
    samples, run = trained(tmp_path, server, "grpo", rewards=[by_len, sometimes], tools=[multiply])
    stored = list(run.rollouts(tokens=True))
    same_as_samples(stored, samples)
    assert [r.marks["trained"] for r in stored].count("yes") == 12
    assert {(r.step, r.marks["trained"]) for r in stored} == {
        (1, "yes"), (2, "yes"), (3, "yes"), (3, "no: left_over")
    }  # fmt: skip
    assert run.info.reward_names == ("by_len", "sometimes")
    assert [tool["function"]["name"] for tool in run.info.tools] == ["multiply"]
    for r in stored:
        assert r.rewards == {"by_len": len(r.completion), "sometimes": None if len(r.completion) == 1 else 0.25}
        assert r.reward == sum(value for value in r.rewards.values() if value is not None)
    calls = [c for r in stored for c in r.tool_calls]
    assert {(c.name, c.status) for c in calls} >= {("multiply", "ok"), ("divide", "unknown")}
    assert {c.result for c in calls if c.status == "ok"} == {"6"}


def test_async_distillation(tmp_path, server):
    teacher = StandIn(tokenizer(tmp_path), ["x"])
    samples, run = trained(tmp_path, server, "distillation", teacher_server_urls={"t": teacher.url})
    teacher.close()
    stored = list(run.rollouts(tokens=True))
    same_as_samples(stored, samples)
    assert [r.marks["trained"] for r in stored].count("yes") == 12
    assert sorted(r.group for r in stored) == sorted(s.prompt_id for s in samples)


# --- other processes --------------------------------------------------------------------------------------------------


def test_on_two_ranks_the_first_has_everything_and_losses_are_the_same(tmp_path):
    run_worker("async", tmp_path, ranks=2, RIG_MODEL=tiny_model(tmp_path))
    facts = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert facts[0]["plain"] == facts[0]["watched"]
    assert len(facts[0]["plain"]) == 6
    truth = {int(number): step for fact in facts for number, step in fact["truth"].items()}
    assert len(truth) == 48
    stored = list(open_run(tmp_path / "watched" / "out").rollouts())
    number = {r.id: int(r.completion[0]["content"].removeprefix("hello ")) for r in stored}
    assert {number[r.id]: r.step for r in stored if r.marks["trained"] == "yes"} == truth
    assert sorted(number.values()) == list(range(56))
    assert {r.rank for r in stored} == {0}
    assert sorted(map(tuple, facts[0]["seen"])) == sorted((ident, True) for ident in number)
    assert facts[1]["seen"] == []


def test_kill_9_leaves_every_step_that_ended(tmp_path):
    run_worker("async", tmp_path, code=-signal.SIGKILL, RIG_MODEL=tiny_model(tmp_path))
    run = open_run(tmp_path / "out")
    stored = [(r.completion[0]["content"], r.step, r.marks["trained"]) for r in run.rollouts()]
    assert stored == [(f"hello {n}", n // 4 + 1, "yes") for n in range(16)]
    assert not run.health.damaged
