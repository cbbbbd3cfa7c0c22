"""Whatever a file holds, an import keeps or counts it, and never writes over a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from imported import brought, lines, tinker_row
from rollout_hookspecs import Step
from sink_rollouts import failing, rejected, run_in, tools

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import RunError
from rollout_plugins.shapes.importing import FORMATS, import_rollouts
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.store.write import RunWriter


def test_the_lines_of_our_own_sink_come_back_with_every_number_and_reason(tmp_path):
    given = [
        tools(id="r-nan", reward=math.nan, rewards={"correct": math.inf, "format": None}, advantage=-math.inf),
        failing(index=1),
        rejected(index=2),
    ]
    sink = JsonlSink(tmp_path / "lines")
    sink.on_run_start(run_in(tmp_path / "run"))
    sink.export_traces([default_trace(rollout) for rollout in given], Step(step=3, generation=2))
    run, report = brought("openai-jsonl", tmp_path / "lines")
    assert not report.skipped
    back = list(run.rollouts())
    assert math.isnan(back[0].reward)
    assert (back[0].rewards, back[0].advantage) == (given[0].rewards, -math.inf)
    for name in ("finish", "prompt_tokens", "completion_tokens", "policy_step", "error", "time", "extra", "marks"):
        assert [getattr(r, name) for r in back] == [getattr(r, name) for r in given], name
    assert {r.columns["answer"] for r in back} == {"6"}


HOSTILE: list[Any] = [
    {}, [], None, 3, "x", {"prompt": 1, "completion": 2}, {"messages": [3, None, {"role": 5}]},
    {"input": {"a": 1}, "output": [1], "score": "high", "step": "now", "gts": math.inf},
    {"traces": [{"nodes": [3, {"parent": 0}, {"parent": 99, "message": 1, "sampled": True}], "rewards": []}]},
    {"traces": [{"nodes": [{"parent": 1}, {"parent": 0}]}], "task": 3, "run": []},
    {"example_id": {}, "prompt": [], "completion": [{"role": "assistant", "tool_calls": ["{", 3, {"name": None}]}]},
    {"group_idx": [], "steps": [3, {"trace": []}, {"trace": {"prompt": 1}}], "total_reward": "x"},
    {"prompt": None, "completion": None, "segments": [3, {"role": []}], "version_rle": [1, [1], ["a", "b"]], "reward": {}},
]  # fmt: skip


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "trl"])
def test_strange_rows_are_counted_or_kept_and_never_fatal(tmp_path, format_name):
    names = {"tinker": "train_rollout_summaries.jsonl", "verifiers": "results.jsonl"}
    good = {
        "verl": {"input": "a", "output": "b"},
        "tinker": tinker_row(),
        "areal": {"prompt": "a", "completion": "b"},
    }.get(format_name, {"prompt": "a", "completion": "b"})
    path = lines(tmp_path / names.get(format_name, "1.jsonl"), [*HOSTILE, good], torn="\xff{")
    run, report = brought(format_name, path)
    assert report.rollouts >= 1
    assert sum(report.skipped.values()) >= 5
    assert len(list(run.rollouts())) == report.rollouts
    lost = {"unserialisable_field": report.marked} if report.marked else {}
    assert run.health.drops == {**report.skipped, **lost}
    assert sum(name.startswith("lost:") for r in run.rollouts() for name in r.marks) == report.marked


def test_nothing_to_import_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text("no\n")
    for format_name in FORMATS:
        with pytest.raises(RunError, match=r"contains no .*; give "):
            import_rollouts(format_name, tmp_path / "empty", tmp_path / "out")
        with pytest.raises(RunError, match=r"no rollouts in .*check --from"):
            import_rollouts(format_name, tmp_path / "bad.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(RunError, match="'x' is not a format; the formats are trl, verl"):
        import_rollouts("x", tmp_path, tmp_path)


def test_an_import_is_never_written_over(tmp_path):
    path = lines(tmp_path / "1.jsonl", [{"input": "a", "output": "b"}])
    import_rollouts("verl", path, tmp_path)
    with pytest.raises(RunError, match="exists already: remove it, or choose another folder with --out"):
        import_rollouts("verl", path, tmp_path)


def test_the_command_says_what_came_and_what_is_missing(tmp_path, capsys):
    path = lines(tmp_path / "1.jsonl", [{"input": "a", "output": "b"}], torn="{")
    assert main(["import", "--from", "verl", str(path), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"1 rollout in {tmp_path}/rollouts/verl-1\n"
    assert "skipped: 1 incomplete last line" in printed.err
    assert "not in this format: turns and tool calls" in printed.err
    assert main(["stats", str(tmp_path)]) == 0
    assert main(["show", str(tmp_path)]) == 0


def test_an_import_that_breaks_off_leaves_nothing_that_looks_like_a_run(tmp_path, monkeypatch):
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    path = lines(tmp_path / "a.jsonl", [{**row, "step": step} for step in range(3)])
    write, steps = RunWriter.write, []

    def full(self, split, rollouts):
        steps.append(rollouts[0].step)
        assert open_nothing(tmp_path), "a run is seen before it is whole"
        if len(steps) == 3:
            raise OSError(28, "No space left on device")
        write(self, split, rollouts)

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "write", full)
        with pytest.raises(OSError, match="No space left"):
            import_rollouts("openai-jsonl", path, tmp_path)
    assert steps == [0, 1, 2]
    assert list((tmp_path / "rollouts").iterdir()) == []
    assert len(open_run(import_rollouts("openai-jsonl", path, tmp_path).dir)) == 3


def open_nothing(folder: Path) -> bool:
    try:
        open_run(folder)
    except RunError:
        return True
    return False


def test_steps_that_take_turns_in_a_file_keep_their_groups(tmp_path):
    said = lambda question, answer: [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]  # noqa: E731
    rows = [
        {"messages": said(question, str(number)), "step": step}
        for number in range(4)
        for step in (2, 1)
        for question in ("a?", "b?")
    ]
    run, _ = brought("openai-jsonl", lines(tmp_path / "a.jsonl", rows))
    for step in (1, 2):
        found = list(run.rollouts(step=step))
        assert [(r.group, r.group_size) for r in found] == [(0, 4), (1, 4)] * 4
        assert [r.index for r in found] == list(range(8))
        assert len({r.generation for r in found}) == 1
    assert len({r.id for r in run.rollouts()}) == 16


REWARDED: dict[str, Any] = {
    "verl": lambda value: {"input": "a", "output": "b", "score": value},
    "tinker": lambda value: tinker_row(total_reward=value, final_reward=value, steps=[]),
    "areal": lambda value: {"prompt": "a", "completion": "b", "reward": value},
    "openai-jsonl": lambda value: {"prompt": "a", "completion": "b", "reward": value, "advantage": value},
    "verifiers": lambda value: {"prompt": "a", "completion": "b", "reward": value, "metrics": {"m": value}},
}


@pytest.mark.parametrize("format_name", REWARDED)
def test_a_reward_is_the_number_in_the_file_or_marked(tmp_path, format_name):
    names = {"tinker": "train_rollout_summaries.jsonl", "verifiers": "results.jsonl"}
    given = [0.1, 3, True, None, "0.5", [1.0], {"a": 1.0}]
    rows = [REWARDED[format_name](value) for value in given]
    run, report = brought(format_name, lines(tmp_path / names.get(format_name, "1.jsonl"), rows))
    found = list(run.rollouts())
    assert [r.reward for r in found] == [0.1, 3.0, 1.0, None, None, None, None]
    assert ["lost:reward" in r.marks for r in found] == [False] * 4 + [True] * 3
    assert run.health.drops == {"unserialisable_field": report.marked}
    if format_name == "verifiers":
        assert [r.rewards for r in found[:4]] == [{"m": 0.1}, {"m": 3.0}, {"m": 1.0}, {"m": None}]
        assert found[4].extra == {"metrics": {"m": "0.5"}}
