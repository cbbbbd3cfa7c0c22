"""Run `rollouts COMMAND …`: import only that command, and turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn

from rollout_plugins import __version__
from rollout_plugins.errors import DamageWarning, RolloutPluginsError, SetupError, suggest

GROUP = "rollout_plugins.commands"
"""The entry point group of commands: each names a module with `configure(parser)` and `run(options)`."""

ABOUT = {
    "record": "run a command and record its trainers, with no change to its code",
    "list": "the runs in a folder, with their size, steps and reward",
    "show": "rollouts, turn by turn: best, worst, a group, or by a filter",
    "view": "a run in the terminal: steps, rollouts, groups, prompts over time",
    "check": "what is wrong with a run: findings and the rollouts that show them",
    "stats": "reward, spread, lengths, truncation, tools and drops, step by step",
    "sql": "query one run or several in SQL",
    "rescore": "score a run again with another reward function, and compare",
    "prompts": "pass rates by prompt: learnt, stuck, forgotten; as a dataset",
    "diff": "two runs on the same prompts: what changed in reward and text",
    "report": "the run as one HTML file: charts, table, every conversation",
    "annotate": "add columns to rollouts, from a file or a function",
    "export": "rollouts as one file, or to a sink",
    "replay": "train a stored step again, and find the rollout that breaks it",
    "compact": "join the many small files of a run into few large ones",
    "push": "send a run to an object store, or to the Hub as a dataset",
    "pull": "fetch a run from an object store or the Hub",
    "prune": "remove the text of old rollouts, and keep their numbers",
    "import": "turn the rollouts of another library into a run",
    "doctor": "check environment, folder, tokenizers or a run before a long run",
    "plugins": "the plugins that are installed, and whether they would run",
    "new-plugin": "write a new plugin as a small project with tests",
    "demo": "train a tiny model with tools, and look at its rollouts",
    "completion": "completion for bash, zsh or fish",
}
"""The help of our own commands, in display order. Other packages' commands show their package's summary."""

DASHED = ("--order", "--step", "--where")
"""Options whose value may start with a dash."""

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, with where to find help."""

    def error(self, message: str) -> NoReturn:
        message += self._near(message)
        see = " See" if message.endswith("?") else "; see"
        self.exit(USAGE, f"{self.prog}: {message}{see} {self.prog} --help\n")

    def _near(self, message: str) -> str:
        """Return a question that suggests a similar option."""
        kind, _, words = message.partition(": ")
        options = [option for action in self._actions for option in action.option_strings]
        word = words.partition(" ")[0].partition("=")[0]
        near = get_close_matches(word, options, n=1) if kind == "unrecognized arguments" else []
        return f"; did you mean {near[0]}?" if near else ""

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the command's name. `argparse.REMAINDER` keeps the rest unchanged."""
        if any(action.nargs == argparse.REMAINDER for action in self._actions):
            return self.parse_args(words)
        return self.parse_intermixed_args(_joined(words))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: it succeeded. 1: it failed. 2: its arguments are wrong. 3: a part of the run cannot be read and is missing from
    the result.
    """
    _take_any_text()
    # Commands report damage in their own words.
    warnings.simplefilter("ignore", DamageWarning)
    words = list(sys.argv[1:] if argv is None else argv)
    top = _top()
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in {"-h", "--help", "help"}:
        _print_help()
        return OK if words else USAGE
    if words[0].startswith("-"):
        top.parse_args(words[:1])
    found = commands()
    if words[0] not in found:
        top.error(_unknown(words[0], found))
    try:
        module = loaded(found[words[0]])
    except RolloutPluginsError as error:
        return _fail(str(error))
    parser = Parser(prog=f"rollouts {words[0]}", description=about(found[words[0]]), allow_abbrev=False)
    module.configure(parser)
    return _guarded(module, parser.read(words[1:]))


def _take_any_text() -> None:
    """Escape characters that the output's encoding does not have, instead of failing.

    A stream that the caller closed discards everything.
    """
    nowhere = Path(os.devnull)
    sys.stdout, sys.stderr = sys.stdout or nowhere.open("w"), sys.stderr or nowhere.open("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def commands() -> dict[str, EntryPoint]:
    """Return every installed command by name, ours first, without importing any. Ours cannot be replaced."""
    entries = sorted(entry_points(group=GROUP), key=lambda entry: (not _is_ours(entry), entry.name))
    entry_by_name = {entry.name: entry for entry in reversed(entries)}
    order = [*ABOUT, *sorted(entry_by_name.keys() - ABOUT.keys())]
    return {name: entry_by_name[name] for name in order if name in entry_by_name}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is None or entry.dist.name == "rollout-plugins"


def about(entry: EntryPoint) -> str:
    """Return a command's help without importing the command."""
    if _is_ours(entry) or entry.dist is None:
        return ABOUT.get(entry.name, "")
    return f"{entry.dist.metadata['Summary'] or ''} ({entry.dist.name})".strip()


def loaded(entry: EntryPoint) -> Any:
    """Import a command's module."""
    try:
        module = entry.load()
    except (Exception, SystemExit) as error:
        raise SetupError(f"command {entry.name!r} does not load from {entry.value}: {error!r}") from error
    lacking = [name for name in ("configure", "run") if not callable(getattr(module, name, None))]
    if lacking:
        raise SetupError(
            f"command {entry.name!r} names {entry.value}, which has no {' and no '.join(lacking)}; "
            "a command is a module with configure(parser) and run(options)"
        )
    return module


def _joined(words: Sequence[str]) -> list[str]:
    """Turn `--order -reward` into `--order=-reward`, because argparse treats a leading dash as an option."""
    result: list[str] = []
    for word in words:
        if result and result[-1] in DASHED and word[:1] == "-" and word[:2] != "--":
            result[-1] += f"={word}"
        else:
            result.append(word)
    return result


def _guarded(module: object, options: argparse.Namespace) -> int:
    try:
        code: int | None = module.run(options)  # type: ignore[attr-defined]
        sys.stdout.flush()
    except RolloutPluginsError as error:
        return _fail(str(error))
    except ImportError as error:
        return _fail(f"a part that this command needs is not installed: {error}")
    # The reader, such as `head`, has closed the pipe.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:
        # DuckDB turns Ctrl-C into this error.
        if str(error) == "Query interrupted":
            return INTERRUPTED
        raise
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    return code or OK


def _fail(message: str) -> int:
    from rollout_plugins.show.text import clean

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
        "Look at, search and export every rollout of an RL fine-tuning run.",
        "",
        *(f"  {name:<12}{about(entry)}" for name, entry in commands().items()),
        "",
        "`rollouts help COMMAND` says more. Name a run by its folder; a folder of runs,",
        "or the trainer's output_dir, stands for the newest run in it. Most commands",
        "also work without a run: on the newest one in or below this folder.",
        "Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 done, but some files cannot",
        "be read, 4 `check` has findings that are severe, or as severe as --fail-on.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _unknown(word: str, known: Iterable[str]) -> str:
    return f"{word!r} is not a command; {suggest(word, known)}"


if __name__ == "__main__":
    sys.exit(main())
