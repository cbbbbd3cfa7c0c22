"""`rollouts COMMAND …`: finds the command, imports that one alone, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from rollout_plugins import __version__
from rollout_plugins.errors import RolloutPluginsError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("rollout_plugins.cli.list_runs", "the runs in a folder, with their size, steps and reward"),
    "show": ("rollout_plugins.cli.show", "rollouts, turn by turn: best, worst, a group, one, or what a filter finds"),
    "view": ("rollout_plugins.cli.view", "a run on the terminal: steps, rollouts, groups, the same prompt over time"),
    "stats": ("rollout_plugins.cli.stats", "reward, spread, lengths, truncation, tools and drops, step by step"),
    "sql": ("rollout_plugins.cli.sql", "ask one run or several in SQL"),
    "diff": ("rollout_plugins.cli.diff", "two runs on the same prompts: what changed in reward and text"),
    "report": ("rollout_plugins.cli.report", "one HTML file that shows the run: charts, table, every conversation"),
    "annotate": ("rollout_plugins.cli.annotate", "add columns to rollouts from a file"),
    "export": ("rollout_plugins.cli.export", "rollouts as one file"),
    "import": ("rollout_plugins.cli.import_", "turn the rollouts of another library into a run"),
    "doctor": ("rollout_plugins.cli.doctor", "check the environment, a folder, tokenizers or a run before a long run"),
    "plugins": ("rollout_plugins.cli.plugins", "the plugins that are installed, and whether they would run"),
    "new-plugin": ("rollout_plugins.cli.new_plugin", "write a new plugin as a small project with tests"),
    "demo": ("rollout_plugins.cli.demo", "train a tiny model with tools, here and now, and look at its rollouts"),
    "completion": ("rollout_plugins.cli.completion", "completion for bash, zsh or fish"),
}
"""Command → module and what it does. A command is imported when it is called."""

DASHED = ("--order", "--step", "--where")
"""Options whose value may start with a dash."""

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 when it did its work, 1 when it could not, 2 when it was not understood."""
    _take_any_text()
    words = list(sys.argv[1:] if argv is None else argv)
    top = _top()
    if not words or words[0] in {"-h", "--help", "help"}:
        _print_help()
        return OK if words else USAGE
    if words[0].startswith("-"):
        top.parse_args(words[:1])
    if words[0] not in COMMANDS:
        top.error(_unknown(words[0]))
    module = import_module(COMMANDS[words[0]][0])
    parser = Parser(prog=f"rollouts {words[0]}", description=COMMANDS[words[0]][1], allow_abbrev=False)
    module.configure(parser)
    return _guarded(module, parser.parse_intermixed_args(_joined(words[1:])))


def _take_any_text() -> None:
    """What the output's encoding cannot write is written out, as \\u2026, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _joined(words: Sequence[str]) -> list[str]:
    """`--order -reward` as `--order=-reward`, since argparse takes what starts with a dash for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in DASHED and word[:1] == "-" and word[:2] != "--":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _guarded(module: object, options: argparse.Namespace) -> int:
    try:
        code: int | None = module.run(options)  # type: ignore[attr-defined]
        sys.stdout.flush()
    except RolloutPluginsError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    return code or OK


def _fail(message: str) -> int:
    from rollout_plugins.view.text import clean

    sys.stderr.write(f"rollouts: {' '.join(clean(message).split())}\n")
    return ERROR


def _top() -> Parser:
    parser = Parser(prog="rollouts", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"rollouts {__version__}")
    return parser


def _print_help() -> None:
    lines = [
        "usage: rollouts COMMAND …",
        "",
        "Every rollout of an RL fine-tuning run, kept, to look at and to ask.",
        "",
    ]
    lines += [f"  {name:<12}{said}" for name, (_, said) in COMMANDS.items()]
    lines += [
        "",
        "`rollouts COMMAND --help` says more. A run is named by its folder, a folder of runs, or the trainer's",
    ]
    lines += ["output_dir, where the newest run is meant. Exit codes: 0 done, 1 could not, 2 not understood."]
    sys.stdout.write("\n".join(lines) + "\n")


def _unknown(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
    return f"no command {word!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
