"""What our own `jsonl` sink wrote comes back as the same rollouts, whatever they hold."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imported import brought
from rollout_hookspecs import Rollout, Run, Step, hookimpl
from sink_rollouts import batch, tools
from values import kept, same, text

from examples import thorough
from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.content.trace import default_trace
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.store.write import RunWriter

NOT_IN_LINES = {"run_id", "tokens", "rendered"}
FIELDS = [field.name for field in fields(Rollout) if field.name not in NOT_IN_LINES]


def stored(folder: Path, rollouts: list[Rollout]) -> StoredRun:
    """A run with these rollouts, as ranks and attempts would have written it."""
    names = tuple(dict.fromkeys(name for rollout in rollouts for name in rollout.rewards))
    for attempt, rank in sorted({(rollout.attempt, rollout.rank) for rollout in rollouts}):
        writer = RunWriter(Run(id="r1", dir=str(folder), attempt=attempt, rank=rank, reward_names=names))
        own = [one for one in rollouts if (one.attempt, one.rank) == (attempt, rank)]
        for split, step, generation in dict.fromkeys((one.split, one.step, one.generation) for one in own):
            at_once = [one for one in own if (one.split, one.step, one.generation) == (split, step, generation)]
            writer.write(split, at_once)
        writer.close({"rollouts": len(own)})
    return open_run(folder)


def there_and_back(folder: Path, rollouts: list[Rollout], **options: Any) -> tuple[list[Rollout], StoredRun]:
    """The rollouts as the store has them, and the run that an export and an import make of it."""
    run = stored(folder / "rollouts" / "r1", rollouts)
    run.export("jsonl", options={"path": folder / "lines"}, **options)
    back, report = brought("openai-jsonl", folder / "lines")
    assert not report.skipped
    assert not report.marked
    return list(run.rollouts()), back


def assert_equal(before: list[Rollout], after: list[Rollout]) -> None:
    assert [rollout.id for rollout in after] == [rollout.id for rollout in before]
    for one, other in zip(before, after, strict=True):
        for name in FIELDS:
            assert same(getattr(one, name), getattr(other, name)), (name, getattr(one, name), getattr(other, name))


def rollouts_of(generations: int = 3, **changes: Any) -> list[Rollout]:
    """Two groups of two for each generation, all of them in one step."""
    return [
        tools(
            **{
                "id": f"r1.1.{generation}.0.{index}",
                "run_id": "r1",
                "generation": generation,
                "index": index,
                "group": index // 2,
                **changes,
            }
        )
        for generation in range(generations)
        for index in range(4)
    ]


def test_generations_of_one_step_keep_their_groups(tmp_path):
    before, back = there_and_back(tmp_path, rollouts_of())
    after = list(back.rollouts())
    assert [(r.generation, r.group, r.group_size) for r in after] == [
        (generation, group, 2) for generation in range(3) for group in (0, 0, 1, 1)
    ]
    assert_equal(before, after)


def test_everything_that_sinks_are_tried_with_comes_back(tmp_path):
    before, back = there_and_back(tmp_path, [replace(one, run_id="r1") for one in batch()])
    assert_equal(before, list(back.rollouts()))


def test_ranks_attempts_and_evaluations_come_back(tmp_path):
    rollouts = [
        tools(id=f"r1.{attempt}.{split}.{rank}.{index}", run_id="r1", attempt=attempt, split=split, rank=rank, index=index)
        for attempt in (1, 2)
        for split in ("train", "eval")
        for rank in (0, 1)
        for index in (2 * rank, 2 * rank + 1)
    ]  # fmt: skip
    before, back = there_and_back(tmp_path, rollouts)
    assert_equal(before, list(back.rollouts()))
    assert back.health.damaged == {}
    assert main(["stats", str(back.dir)]) == 0


def test_text_that_looks_like_json_stays_text(tmp_path):
    odd = {"text": '{"a": [1]}', "value": {"a": [1]}, "word": "NaN", "number": math.nan, "tag": {"$float": "nan"}}
    asked = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said = ({"role": "assistant", "tool_calls": [asked], "extra": {"deep": [math.inf]}},)
    before, back = there_and_back(tmp_path, [tools(columns=odd, extra=odd, completion=said, tool_calls=())])
    assert_equal(before, list(back.rollouts()))


def test_a_line_that_somebody_edited_counts_as_it_is_written(tmp_path):
    there_and_back(tmp_path, [tools(id="r1.1.0.0.0")])
    (file,) = (tmp_path / "lines").glob("*.jsonl")
    line = json.loads(file.read_text())
    line["reward"], line["info"], line["prompt"] = -3.0, {"mine": "yes"}, [{"role": "user", "content": "edited"}]
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "0.jsonl").write_text(json.dumps(line) + "\n")
    edited, _ = brought("openai-jsonl", tmp_path / "edited")
    (rollout,) = edited.rollouts()
    assert (rollout.reward, rollout.columns) == (-3.0, {"mine": "yes"})
    assert [message["content"] for message in rollout.prompt] == ["edited"]


def test_a_rollout_that_was_sent_twice_is_there_once(tmp_path):
    there_and_back(tmp_path, rollouts_of(1))
    (file,) = (tmp_path / "lines").glob("*.jsonl")
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "0.jsonl").write_text(2 * file.read_text())
    run, report = brought("openai-jsonl", tmp_path / "twice")
    assert (len(run), dict(report.skipped)) == (4, {"rollout that an earlier line has": 4})


class Shortened:
    """Shows the answers without their text."""

    @hookimpl
    def format_trace(self, rollout: Rollout) -> Any:
        trace = default_trace(rollout)
        return replace(trace, messages=tuple({**message, "content": "…"} for message in trace.messages))


def test_what_a_plugin_left_out_of_its_format_is_not_in_the_line(tmp_path):
    _, back = there_and_back(tmp_path, rollouts_of(), plugins=[Shortened()])
    assert "Zürich" not in "".join(m["content"] for r in back.rollouts() for m in r.prompt)
    assert {m["content"] for r in back.rollouts() for m in (*r.prompt, *r.completion)} == {"…"}
    assert [(r.generation, r.group, r.group_size) for r in back.rollouts()] == [
        (generation, group, 2) for generation in range(3) for group in (0, 0, 1, 1)
    ]


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
    optional={"content": kept, "name": text, "reasoning_content": text, "tool_call_id": text, "tool_calls": kept, "x": kept},
)  # fmt: skip
NUMBERS = st.none() | st.floats()
ROLLOUTS = st.builds(
    tools,
    prompt=st.lists(MESSAGES, max_size=2).map(tuple),
    completion=st.lists(MESSAGES, max_size=3).map(tuple),
    tool_calls=st.just(()),
    columns=st.dictionaries(text, kept, max_size=3),
    extra=st.dictionaries(text, kept, max_size=3),
    rewards=st.dictionaries(text, NUMBERS, max_size=3),
    marks=st.dictionaries(text, text, max_size=2),
    reward=NUMBERS,
    advantage=NUMBERS,
    error=st.none() | text,
    time=st.floats(0, 4e9),
    prompt_is_text=st.booleans(),
)


@given(st.lists(ROLLOUTS, min_size=1, max_size=3))
@thorough
def test_whatever_a_rollout_holds_comes_back_equal(tmp_path_factory, rollouts):
    named = [replace(one, id=f"r1.1.0.0.{at}", run_id="r1", index=at) for at, one in enumerate(rollouts)]
    before, back = there_and_back(tmp_path_factory.mktemp("lines"), named)
    assert_equal(before, list(back.rollouts()))


@pytest.mark.parametrize("key", ["generation", "index", "group", "rank", "attempt"])
@pytest.mark.parametrize("value", ["x", -1, 2**70, 1.5, None, [1]])
def test_a_place_that_makes_no_sense_costs_its_place_alone(tmp_path, key, value):
    there_and_back(tmp_path, [tools(id="r1.1.0.0.0")])
    (file,) = (tmp_path / "lines").glob("*.jsonl")
    line = {**json.loads(file.read_text()), key: value}
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "0.jsonl").write_text(json.dumps(line) + "\n")
    run, report = brought("openai-jsonl", tmp_path / "edited")
    assert (len(run), dict(report.skipped), len(list(run.rollouts()))) == (1, {}, 1)


def test_lines_that_lost_their_place_do_not_join_other_groups(tmp_path):
    there_and_back(tmp_path, rollouts_of(2))
    (file,) = (tmp_path / "lines").glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows[:4]:
        del row["exact"]
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, _ = brought("openai-jsonl", tmp_path / "edited")
    assert sorted((r.generation, r.group) for r in run.rollouts()) == [
        (generation, group) for generation in (1, 2) for group in (0, 0, 1, 1)
    ]


def test_a_step_of_the_run_goes_to_a_sink_that_has_no_run(tmp_path):
    from rollout_plugins.sinks.jsonl import JsonlSink

    sink = JsonlSink(tmp_path / "lines")
    sink.export_traces([default_trace(tools(id="r1.1.0.0.0"))], Step())
    back, _ = brought("openai-jsonl", tmp_path / "lines")
    assert_equal([tools(id="r1.1.0.0.0")], list(back.rollouts()))
