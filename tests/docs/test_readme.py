"""The README, run: its snippets, its commands, and what its demo leaves behind."""

import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
import trl
from rig import dataset, half, make, tiny_model

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.demo import command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import generate

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
# `view` needs a terminal (test_view.py), and `record` a command to record (tests/record).
COMMANDS = re.findall(r"^rollouts (?!demo|view|record)(.+)$", README, re.MULTILINE)
ON_A_CPU = {
    "use_cpu": True, "bf16": False, "max_steps": 1, "num_generations": 2, "max_completion_length": 8,
    "per_device_train_batch_size": 4, "report_to": [],
}  # fmt: skip


def snippet_with(words):
    (found,) = [snippet for snippet in SNIPPETS if words in snippet]
    return found


def test_the_demo_leaves_calls_of_every_outcome_and_shows_them(demo, capsys):
    run = open_run(demo / "outputs" / "demo")
    assert len(run) == 64
    calls = [call for rollout in run.rollouts() for call in rollout.tool_calls]
    assert {call.status for call in calls} == {"ok", "error", "unknown", "not_run"}
    shown = str_of(command.report(run, demo, 1.0, 100))
    assert re.search(r'price\(item="\w+"\) → \d+', shown)
    for words in (
        "best",
        "worst",
        "reward",
        "tool calls that failed",
        "correct",
        "advantage",
        "rollouts view",
    ):
        assert words in shown


def str_of(renderable):
    from rich.console import Console

    console = Console(record=True, width=200)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_it_fits_on_a_page():
    assert len(README.splitlines()) <= 150


def test_the_first_snippet_is_all_it_takes(tmp_path):
    trainer = make(tmp_path)
    exec(SNIPPETS[0], {"trainer": trainer})
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 4


def test_the_training_script_runs_as_printed_and_open_run_finds_its_rollouts(tmp_path, monkeypatch):
    """On a machine with a GPU; here the defaults of GRPOConfig are made to suit a CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trl, "GRPOConfig", partial(trl.GRPOConfig, **ON_A_CPU))
    exec(snippet_with("GRPOConfig"), {"model": tiny_model(tmp_path), "reward": half, "dataset": dataset()})
    assert len(open_run("outputs/mine")) == 4


def test_the_plugin_does_its_work(tmp_path):
    names: dict = {}
    exec(snippet_with("class Brevity"), names)
    trainer = make(tmp_path, ["hello big world"], rewards=half)
    trainer.add_callback(names["callback"])
    trainer.train()
    assert [rollout.extra["words"] for rollout in open_run(tmp_path / "out").rollouts()] == [3] * 4


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs_as_printed(demo, monkeypatch, capsys, command):
    monkeypatch.chdir(demo)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.strip()


def test_the_demo_shows_a_rollout_of_each_step_and_ends_with_the_path_of_a_report(made_demo):
    lines = (made_demo / "said.txt").read_text(encoding="utf-8").splitlines()
    assert [re.match(r"step (\d) +-?\d\.\d\d  \w.*\?", line)[1] for line in lines if line.startswith("step ")] == [
        "1",
        "2",
    ]
    assert max(map(len, lines[:3])) <= 80
    page = made_demo / "outputs" / "demo" / "report.html"
    assert "".join(lines[-3:]).endswith(f"report  {page}")
    assert page.stat().st_size > 10_000


def test_the_demo_asks_few_questions_so_that_each_comes_back(demo):
    rollouts = list(open_run(demo / "outputs" / "demo").rollouts())
    asked = {rollout.prompt[-1]["content"] for rollout in rollouts}
    assert 4 <= len(asked) <= 8
    assert len({rollout.prompt[-1]["content"] for rollout in rollouts if rollout.step == 1}) == 4


def test_what_the_demo_says_to_type_next_works(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    view, *others = command.next_commands(demo / "outputs" / "demo")
    assert view.split()[:2] == ["rollouts", "view"]
    for line in others:
        assert main(shlex.split(line)[1:]) == 0


def test_the_generated_part_is_what_was_measured():
    assert generate.PART.findall(README)
    assert generate.fill(README) == README
