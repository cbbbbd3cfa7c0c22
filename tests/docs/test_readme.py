"""The README, run: its snippets, its commands, and what its demo leaves behind."""

import re
import shlex
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from rig import half, make

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.demo import command
from rollout_plugins.engine.check import HOOKS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import make_readme

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^rollouts (?!demo|view)(.+)$", README, re.MULTILINE)  # view needs a terminal: test_view.py


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which the demo ran, briefly."""
    folder = tmp_path_factory.mktemp("readme")
    command.run(Namespace(out=folder / "outputs" / "demo", steps=2))
    return folder


def test_the_demo_leaves_calls_of_every_outcome_and_shows_them(demo, capsys):
    run = open_run(demo / "outputs" / "demo")
    assert len(run) == 128
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
        str(run.dir),
    ):
        assert words in shown


def str_of(renderable):
    from rich.console import Console

    console = Console(record=True, width=200)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_table_of_trainers_is_what_the_hosts_say():
    assert make_readme.trainers() in README


def test_the_first_snippet_is_all_it_takes(tmp_path):
    trainer = make(tmp_path)
    exec(SNIPPETS[0], {"trainer": trainer})
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 4


def test_the_other_snippets_run_as_printed(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    for snippet in SNIPPETS[1:]:
        exec(snippet, {"__name__": "readme"})
    assert capsys.readouterr().out.startswith("128 2 {")


def test_the_plugin_of_the_readme_does_its_work(tmp_path):
    names: dict = {}
    exec(next(snippet for snippet in SNIPPETS if "class Brevity" in snippet), names)
    trainer = make(tmp_path, ["hello big world"], rewards=half)
    trainer.add_callback(names["callback"])
    trainer.train()
    assert [rollout.extra["words"] for rollout in open_run(tmp_path / "out").rollouts()] == [3] * 4


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs_as_printed(demo, monkeypatch, capsys, command):
    monkeypatch.chdir(demo)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.strip()


def test_what_the_demo_says_to_type_next_works(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    view, *others = command.next_commands(demo / "outputs" / "demo")
    assert view.split()[:2] == ["rollouts", "view"]
    for line in others:
        assert main(shlex.split(line)[1:]) == 0


def test_the_options_are_those_of_the_docstrings():
    assert make_readme.fill(README, "options", make_readme.options()) == README


def test_the_comparison_with_trls_table_is_what_it_prints():
    assert make_readme.fill(README, "beside", make_readme.beside()) == README


def test_every_hook_is_in_the_table():
    assert all(f"`{hook}`" in README for hook in HOOKS)
