"""The concern plugins give the same result in whatever order a person lists them, by the real pipeline."""

from __future__ import annotations

import inspect
import os
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hostile import batches, encoded, picture
from hypothesis import given
from rollout_hookspecs import Batch, Drop, Finding, Image, Rollout, Run, ToolCall, hookimpl

from examples import thorough
from rollout_plugins import open_run
from rollout_plugins.content.exact_json import encode
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.dedup import Dedup
from rollout_plugins.plugins.images import Images
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.plugins.redact import Redact

KEY = "sk-" + "a1B2" * 8
MAKE = {
    "images": lambda: Images("thumbnail", max_side=8),
    "dedup": lambda: Dedup("completion", window=2),
    "cap": lambda: Cap(6),
    "redact": lambda: Redact(keep_equal=True),
    "metrics": lambda: Metrics("all"),
}


class Sink:
    """Takes what the plugins let through."""

    def __init__(self):
        self.traces = []
        self.alerts = []

    @hookimpl
    def export_traces(self, traces):
        self.traces += traces

    def alert(self, title, text):
        self.alerts.append((title, text))


class Leaky:
    """Somebody's plugin that adds a secret late."""

    @hookimpl(trylast=True)
    def on_rollout(self, rollout):
        return replace(rollout, extra={**rollout.extra, "judge": f"asked with {KEY}"})


def rollout(i, rank=0):
    look = {
        "role": "tool",
        "content": [{"type": "image", "image": picture(i % 10 % 3)}, {"type": "text", "text": KEY}],
    }
    return Rollout(
        id=f"{i}",
        rank=rank,
        index=i,
        group=i // 4,
        group_size=4,
        prompt=(
            {
                "role": "user",
                "content": [{"type": "image", "image": picture(i // 4)}, {"type": "text", "text": "what?"}],
            },
        ),
        completion=({"role": "assistant", "content": f"say {i % 10} {KEY}"}, look),
        tool_calls=(ToolCall(name="look", arguments={"url": f"http://u:{KEY}@h"}, result=look["content"]),),
        reward=float(i % 7),
        rewards={"r": float(i % 7)},
        columns={"image": encoded(i // 4), "n": i},
    )


def run_pipeline(folder, plugins, rollouts=None, steps=2, **options):
    """Two steps through plugins, store and a sink; what each had in the end."""
    sink = Sink()
    made = Plugins([*plugins, sink], autoload=False)
    pipeline = Pipeline(made, sync=True, **options)
    pipeline.start(Run(id="run", dir=str(folder)))
    for step in range(steps):
        given_ = [rollout(i) for i in range(16)] if rollouts is None else rollouts
        pipeline.submit(Batch(build=lambda given_=given_: given_, step=step, count=len(given_)))
    metrics = pipeline.pop_metrics("train")
    pipeline.close()
    return sink, metrics, pipeline


def _plain(stored):
    """Every field as a value that encodes, marks in one order."""
    values = {
        name: getattr(stored, name) for name in ("id", "prompt", "completion", "columns", "extra", "images", "reward")
    }
    calls = [(call.name, call.arguments, call.result) for call in stored.tool_calls]
    return {**values, "tool_calls": calls, "marks": sorted(stored.marks.items())}


def test_any_order_gives_the_same_store_and_the_same_traces(tmp_path):
    results = []
    for number, order in enumerate(random.Random(0).sample(list(permutations(MAKE)), 12)):
        folder = tmp_path / str(number)
        sink, metrics, pipeline = run_pipeline(folder, [MAKE[name]() for name in order], strict=True)
        stored = [encode(_plain(r)) for r in open_run(folder).rollouts()]
        timeless = {name: value for name, value in metrics.items() if "seconds" not in name}
        results.append(
            (
                stored,
                [encode(t.messages) for t in sink.traces],
                timeless,
                dict(pipeline.counters.drops),
                dict(pipeline.counters.skipped),
            )
        )
    assert all(result == results[0] for result in results)
    stored, traces, metrics, drops, skipped = results[0]
    assert len(stored) == 32
    assert len(traces) == 6
    assert (drops, skipped) == ({}, {"dedup": 6 + 16, "cap": 4})
    assert not any("a1B2" in text for text in [*stored, *traces])
    assert metrics["redacted/openai"] == pytest.approx(2 * 16)
    assert metrics["images/count"] == 2


def test_no_file_of_the_run_holds_a_secret_or_a_picture_twice(tmp_path):
    run_pipeline(tmp_path, ["images", "redact", Leaky()])
    kept = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert len([path for path in kept if path.parent.name == "media"]) == 4
    assert not any(b"a1B2a1B2" in path.read_bytes() for path in kept if path.suffix != ".parquet")
    rollouts = list(open_run(tmp_path).rollouts())
    assert rollouts[0].extra == {"judge": "asked with [REDACTED:openai]"}
    assert all(isinstance(image, Image) and (tmp_path / image.path).exists() for r in rollouts for image in r.images)


def test_why_each_was_kept_or_skipped_is_in_the_store(tmp_path):
    run_pipeline(tmp_path, [Cap(3), "dedup"], steps=1)
    marks = [rollout.marks for rollout in open_run(tmp_path).rollouts()]
    said = [" ".join(f"{name}={text}" for name, text in each.items()) for each in marks]
    assert all("kept" in text or "skipped" in text for text in said)


@pytest.mark.parametrize("kind", [Images, Dedup, Cap, Redact, Metrics])
def test_every_option_is_documented_with_an_example_that_works(kind, monkeypatch):
    monkeypatch.setenv("REDACT_SALT", "pepper")
    text = inspect.getdoc(kind)
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if line.startswith(f"{kind.__name__}(")]
    for example in examples:
        assert isinstance(eval(example, {kind.__name__: kind, "os": os, "post_to_chat": print}), kind)
    parameters = list(inspect.signature(kind).parameters)
    for number, name in enumerate(parameters):
        assert any(line.startswith(f"{name}: ") for line in lines)
        assert any(f"{name}=" in example for example in examples) or number == 0


class FindsOnce:
    """Somebody's check."""

    @hookimpl
    def check_rollouts(self, step):
        return [Finding(check="mine", title="too short", text=f"answers are too short at step {step.step}")]


def test_a_finding_reaches_the_sinks_once(tmp_path):
    same = [Rollout(id=f"{i}", completion=({"role": "assistant", "content": "x"},)) for i in range(10)]
    sink, _, _ = run_pipeline(tmp_path, [FindsOnce()], same, steps=5)
    ((title, text),) = sink.alerts
    assert title == "warning: too short"
    assert text.startswith("answers are too short at step")


def test_names_and_options_by_config(tmp_path):
    plugins = Plugins(list(MAKE), config={"cap": {"max_per_step": 3}, "redact": {"rules": ["aws"]}}, autoload=False)
    pipeline = Pipeline(plugins, sync=True, strict=True)
    pipeline.start(Run(id="run", dir=str(tmp_path)))
    pipeline.submit(Batch(build=lambda: [rollout(0)], count=1))
    pipeline.close()
    assert KEY in open_run(tmp_path).rollouts()[0].completion[0]["content"]


@thorough
@given(batches)
def test_hostile_batches_go_through_all_of_them(tmp_path_factory, batch):
    folder = tmp_path_factory.mktemp("run")
    numbered = [replace(r, index=i) for i, r in enumerate(batch)]
    _, _, pipeline = run_pipeline(folder, [make() for make in MAKE.values()], numbered, steps=1)
    assert dict(pipeline.counters.errors) == {}
    assert len(list(open_run(folder).rollouts())) == len(batch)


def test_drop_is_counted_when_nothing_can_be_searched(tmp_path, monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(Redact, "_redacted", broken)
    _, _, pipeline = run_pipeline(tmp_path, ["redact"], steps=1)
    assert pipeline.counters.drops == {"dropped_by:redact": 16}
    assert issubclass(Drop, BaseException)
