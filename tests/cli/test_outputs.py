"""Where commands write: a terminal of any width, a pipe, an output that takes ASCII alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from reading import called, one, steps, write
from terminal import Terminal

ONE_AFTER_THE_OTHER = """
import json, sys
from rollout_plugins.cli.main import main

for words in json.loads(sys.argv[1]):
    main(words)
    print(end="\\x1e", flush=True)
"""


def running(commands: Sequence[Sequence[object]]) -> list[str]:
    """A program that runs these commands, which takes less time than a program for each."""
    return [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps([[*map(str, words)] for words in commands])]


def on_a_terminal(*commands: Sequence[object], columns: int = 80, lines: int = 24) -> list[list[str]]:
    """What a person sees of each command, without the colours."""
    terminal = Terminal(running(commands), columns, lines, TERM="xterm", PAGER="cat")
    assert terminal.ends() == 0, terminal.written
    *said, rest = terminal.seen.split("\x1e")
    assert (len(said), rest) == (len(commands), ""), rest
    return [re.split(r"[\r\n]+", one) for one in said]


HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07 [bold]x[/bold] [/] \u202eevil\u202c \x00 \ud800 end"


@pytest.mark.slow
def test_nothing_a_model_wrote_is_obeyed(rollouts, tmp_path):
    made = one(1, 0, completion=({"role": "assistant", "content": HOSTILE},), tool_calls=(called(HOSTILE),))
    write(tmp_path, [made], trainer=HOSTILE, model=HOSTILE)
    commands = (
        ["show", tmp_path],
        ["show", tmp_path, "--group", "0"],
        ["stats", tmp_path],
        ["list", tmp_path],
        ["sql", tmp_path, "select content, role from messages"],
        ["sql", tmp_path, f'select 1 as "{HOSTILE.replace(chr(0), "").replace(chr(0xD800), "")}"'],
        ["diff", tmp_path, tmp_path],
        ["doctor", tmp_path, "--offline"],
    )
    for words, seen in zip(commands, on_a_terminal(*commands), strict=True):
        code, out, err = rollouts(*words)
        assert code == 0, (words, err)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", out.replace("\t", "")), words
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", "".join(seen)), words
    assert "[bold]x[/bold]" in rollouts("show", tmp_path)[1]


def test_a_pipe_that_closes_early_is_not_an_error(tmp_path):
    write(tmp_path, steps(300, size=8))
    command = f"{sys.executable} -m rollout_plugins.cli.main sql {tmp_path} 'select * from messages' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.slow
def test_on_a_terminal_nothing_is_wider_than_the_window(run, columns):
    commands = (
        ["stats", run.dir],
        ["list", run.dir.parent],
        ["show", run.dir],
        ["plugins"],
        ["doctor", run.dir, "--offline"],
    )
    shown = on_a_terminal(*commands, columns=columns)
    for words, seen in zip(commands, shown, strict=True):
        assert max(map(len, seen)) <= columns, words
        assert len(seen) > 3, words
    assert any("reward 2.5 → 4.5" in line for line in shown[0])


def test_a_table_that_is_too_wide_gives_up_what_matters_least(tmp_path):
    calls = (called("search"), called("search", "error"))
    made = [
        one(step, n, tool_calls=calls, rewards={"correct": 0.123, "format": 0.456}) for step in (1, 2) for n in (0, 1)
    ]
    write(tmp_path, made)
    narrow, wide = (on_a_terminal(["stats", tmp_path], columns=columns)[0] for columns in (80, 160))
    heads = [next(line for line in seen if line.startswith(" step")) for seen in (narrow, wide)]
    assert "reward" in heads[0]
    assert "max" not in heads[0]
    assert heads[1].split("  ")[-1].strip() == "failed"
    assert max(map(len, narrow)) <= 80


def test_colours_and_charts_stay_out_of_a_pipe(run):
    done = subprocess.run(
        [sys.executable, "-m", "rollout_plugins.cli.main", "show", str(run.dir)],
        capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": ""},
    )  # fmt: skip
    assert "\x1b" not in done.stdout


ODD = "caf\u00e9 \u2014 \U0001f600 \x9b31m \u202eevil\u202c \u2028"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    made = [one(1, index, prompt=({"role": "user", "content": ODD},), columns={"note": ODD}) for index in range(2)]
    return write(tmp_path / "odd", made, trainer=ODD, model=ODD)


def on_ascii(*commands: Sequence[object]) -> tuple[list[str], str]:
    """What each command writes, and what all of them complain of."""
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(running(commands), capture_output=True, env=settings, check=False)
    *said, rest = done.stdout.decode("ascii").split("\x1e")
    errors = done.stderr.decode("ascii")
    assert (len(said), rest) == (len(commands), ""), errors
    return said, errors


NOTES = "select json_extract_string(columns, '$.note') as note from rollouts"


def test_every_command_writes_to_an_output_that_takes_ascii_alone_and_json_says_the_same(odd: Path) -> None:
    commands = {
        "--help": [], "list": [odd], "show": [odd, "--group", "0"], "stats": [odd], "sql": [odd, NOTES],
        "doctor": [odd, "--offline"], "plugins": [], "completion": ["bash"],
    }  # fmt: skip
    as_json = [["show", odd, "--json"], ["export", odd, "--to", "jsonl", "-o", "-"], ["sql", odd, "--json", NOTES]]
    others = [["show", odd], ["stats", odd, "--json"], ["sql", odd, "--csv", NOTES]]
    written, errors = on_ascii(*as_json, *others, *([name, *more] for name, more in commands.items()))
    assert errors == ""
    assert all(written)
    shown, sent, asked = written[:3]
    assert [json.loads(line)["columns"] for line in shown.splitlines()] == [{"note": ODD}] * 2
    assert [json.loads(line)["info"] for line in sent.splitlines()] == [{"note": ODD}] * 2
    assert json.loads(asked) == [{"note": ODD}] * 2
    assert all("caf\\u00e9 \\u2014 \\ud83d\\ude00" in said for said in written[:3])


def test_no_output_is_obeyed_by_a_terminal(odd: Path) -> None:
    commands = (
        ["show", odd, "--json"], ["sql", odd, "--json", NOTES], ["export", odd, "--to", "jsonl", "-o", "-"],
        ["sql", odd, "--csv", NOTES], ["sql", odd, NOTES], ["show", odd],
    )  # fmt: skip
    for words, lines in zip(commands, on_a_terminal(*commands), strict=True):
        seen = "".join(lines)
        assert re.findall("[\x7f-\x9f\u2028-\u202e]", seen) == [], words
        assert "\\u202eevil" in seen, words
