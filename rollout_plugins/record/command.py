"""The command `rollouts record -- COMMAND`."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import NoReturn

from rollout_plugins.errors import SetupError
from rollout_plugins.record.at_startup.rollouts_at_startup import END, RECORD
from rollout_plugins.record.options import add_options, check_options, from_text, to_text
from rollout_plugins.record.program import find_python, isolating_option, why_not_found

FOLDER = str(Path(__file__).with_name("at_startup"))
NOT_FOUND = 127  # the exit status of shells for a missing command
_CHECK = "import sys; from rollout_plugins.record.command import print_check; print_check(sys.argv[1])"


def configure(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTIONS] -- COMMAND"
    add_options(parser)
    parser.add_argument(
        "--environment", action="store_true", help="print the variables that record, for a shell, and run nothing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run")


def run(options: Namespace) -> int:
    """Replace this process by the command, in an environment that records every trainer."""
    environment = dict(os.environ)  # before plugins are imported to be checked, which may change it
    text = to_text(options)
    if options.environment:
        check_options(options)
        sys.stdout.write(shell_lines(text))
        return 0
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SetupError("no command to run: write rollouts record -- COMMAND, for example -- python train.py")
    program = which(command[0])
    if program is None:
        sys.stderr.write(f"rollouts: {why_not_found(command)}\n")
        return NOT_FOUND
    folder = check(program, command, text)
    environment[RECORD] = text
    environment[END] = f"{os.getpid()}:{_notes_file()}"
    environment["PYTHONPATH"] = _with(folder, environment.get("PYTHONPATH", ""))
    return become(program, command, environment)


def shell_lines(text: str) -> str:
    """Return the lines that a shell evaluates to record every trainer that it starts."""
    path = f"{shlex.quote(FOLDER)}${{PYTHONPATH:+{os.pathsep}$PYTHONPATH}}"
    return f"export {RECORD}={shlex.quote(text)}\nexport PYTHONPATH={path}\n"


def check(program: str, command: list[str], text: str) -> str:
    """Check options and environment with the Python that runs the program, or with ours if that is unknown.

    Return the folder for PYTHONPATH, which is in the installation that the command will use.
    """
    python = find_python(program)
    isolating = isolating_option(command[1:] if python == [program] else python[1:])
    if isolating:
        raise SetupError(
            f"python {isolating} ignores PYTHONPATH, so nothing would be recorded: leave {isolating} out, "
            "or add RolloutPluginCallback() to the trainer in the code"
        )
    if not python or Path(python[0]).absolute() == Path(sys.executable).absolute():
        check_options(from_text(text))
        return FOLDER
    return _check_with(python[0], command[0], text)


def _check_with(python: str, name: str, text: str) -> str:
    command = [python, "-c", _CHECK, text]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise SetupError(
            f"{name} runs on {python}, where rollout-plugins is not installed: {python} -m pip install rollout-plugins"
        ) from None
    if answer["error"]:
        raise SetupError(answer["error"])
    return str(answer["folder"])


def print_check(text: str) -> None:
    """Print the result that `_check_with` reads: the folder of this installation, and the fault of the options."""
    error = ""
    try:
        check_options(from_text(text))
    except SetupError as fault:
        error = str(fault)
    sys.stdout.write(json.dumps({"folder": FOLDER, "error": error}))


def become(program: str, command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, so that signals, exit status and terminal are the command's own."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these signals, and programs that it starts inherit that.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, command, environment)  # noqa: S606 - that is what this command is for
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise SetupError(f"{program} cannot be run: {error.strerror}") from error
        # The script has no line that names its interpreter.
        os.execve("/bin/sh", ["sh", program, *command[1:]], environment)  # noqa: S606 - see above


def _notes_file() -> str:
    return os.path.join(tempfile.gettempdir(), f"rollouts-record-{os.getpid()}-{time.time_ns()}")  # noqa: PTH118 - text


def _with(folder: str, path: str) -> str:
    """Return a PYTHONPATH that starts with `folder`, without empty entries, which would mean the current folder."""
    others = [entry for entry in path.split(os.pathsep) if entry != folder] if path else []
    return os.pathsep.join([folder, *others])
