"""Find the file that a command runs, and the Python that runs that file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import which

_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
# pip starts a script like this if the path of its Python is too long for the system, or contains a space.
_LONG_SHEBANG = re.compile(rb"#!/bin/sh\n'''exec' (.+?) \"\$0\" \"\$@\"")
# Letters of Python's options that take a value, and of those that disable `sitecustomize` or PYTHONPATH.
_WITH_VALUE, _ISOLATING = "cmWX", set("IES")


def why_not_found(command: Sequence[str]) -> str:
    """Explain why nothing can be run, and what to write instead."""
    name = command[0]
    if name.endswith(".py") and Path(name).is_file():
        return f"{name!r} is a Python file, not a program: write rollouts record -- python {shlex.join(command)}"
    if " " in name and which(name.split()[0]):
        return f"there is no command {name!r}: write it without quotes, rollouts record -- {name}"
    return f"there is no command {name!r}: check that it is installed and on PATH"


def find_python(program: str) -> list[str]:
    """Return the Python that runs the program, with its options; an empty list if the program is not Python."""
    if _PYTHON.fullmatch(Path(program).name):
        return [program]
    words = shlex.split(_shebang(program))
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
        words[:1] = [path for word in words[:1] if (path := which(word))]
    return words if words and _PYTHON.fullmatch(Path(words[0]).name) else []


def _shebang(program: str) -> str:
    """Return the interpreter in a script's first line, with its options."""
    try:
        with Path(program).open("rb") as file:
            start = file.read(1024)
    except OSError:
        return ""
    long = _LONG_SHEBANG.match(start)
    named = long[1] if long else start[2:].partition(b"\n")[0] if start[:2] == b"#!" else b""
    return named.decode("utf-8", "replace")


def isolating_option(words: Sequence[str]) -> str:
    """Return the option that makes this Python ignore PYTHONPATH or `sitecustomize`; "" if there is none."""
    for word in words:
        letters = re.match(rf"-([^-{_WITH_VALUE}]*)", word)
        if letters is None or not word[1:]:
            break
        if set(letters[1]) & _ISOLATING:
            return word
        if letters[1] != word[1:] and word[len(letters[0])] in "cm":
            break
    return ""
