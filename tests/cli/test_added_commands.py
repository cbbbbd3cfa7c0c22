"""Commands that other packages add, and the shell's completion, which lists them too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loaded import distribution

from rollout_plugins.cli.main import commands

COMMANDS = list(commands())


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a distribution with one command, `words` unless told otherwise, whose source this is."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(source: str, command: str = "words") -> None:
        entries, modules = {command: "rollout_words"}, {"rollout_words": source}
        group, summary = "rollout_plugins.commands", "Count words"
        distribution(tmp_path, "rollout-words", entries, modules, group=group, summary=summary)

    yield add
    sys.modules.pop("rollout_words", None)


WORDS = """
def configure(parser):
    parser.add_argument("run")
    parser.add_argument("--top", type=int, default=3, help="how many words")

def run(options):
    print("the words of", options.run, options.top)
    return 5
"""


def test_another_package_adds_a_command(rollouts, install):
    install(WORDS)
    assert rollouts("words", "here", "--top", "7") == (5, "the words of here 7\n", "")
    assert "\n  words       Count words (rollout-words)\n" in rollouts("--help")[1]
    assert "Count words (rollout-words)" in rollouts("words", "--help")[1]
    assert "-a words" in rollouts("completion", "fish")[1]
    assert "did you mean 'words'?" in rollouts("wrods")[2]


def test_help_does_not_import_another_packages_command(rollouts, install):
    install("raise SystemExit('imported')")
    code, out, _ = rollouts("--help")
    assert (code, "\n  words " in out) == (0, True)
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert err == "rollouts: command 'words' does not load from rollout_words: SystemExit('imported')\n"


def test_completion_bears_a_command_that_does_not_load(rollouts, install):
    install("import a_module_nobody_has")
    code, out, _ = rollouts("completion", "bash")
    assert (code, "--where" in out, " words" in out) == (0, True, True)


def test_a_command_whose_optional_part_is_missing_says_so_in_one_line(rollouts, install):
    install(WORDS.replace("return 5", "import a_module_nobody_has"))
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert err == "rollouts: a part that this command needs is not installed: No module named 'a_module_nobody_has'\n"


def test_a_command_without_its_functions_is_told_what_a_command_is(rollouts, install):
    install("def run(options): ...")
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert "which has no configure; a command is a module with configure(parser) and run(options)" in err


def test_no_package_replaces_one_of_our_commands(rollouts, install, run):
    install(WORDS, "list")
    code, out, _ = rollouts("list", run.dir.parent)
    assert code == 0
    assert "the words of" not in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(rollouts, shell):
    code, out, _ = rollouts("completion", shell)
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "search" in out


def test_bash_completes(rollouts, tmp_path):
    script = tmp_path / "c.sh"
    script.write_text(rollouts("completion", "bash")[1])
    asked = 'source {}; COMP_WORDS=({}); COMP_CWORD={}; _rollouts; echo "${{COMPREPLY[@]}}"'
    for words, at, found in (("rollouts st", 1, "stats"), ("rollouts show --hi", 2, "--history")):
        done = subprocess.run(
            ["bash", "-c", asked.format(script, words, at)], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert done.stdout.split() == [found]
