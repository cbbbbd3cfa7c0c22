"""Which file a command runs, and which Python runs that file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import which

_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
#: How pip begins a script where the path of its Python is too long for the system, or has a space.
_LONG_SHEBANG = re.compile(rb"#!/bin/sh\n'''exec' (.+?) \"\$0\" \"\$@\"")
#: Letters of Python's options that take a value, and those that keep `sitecustomize` or PYTHONPATH out.
_WITH_VALUE, _ISOLATING = "cmWX", set("IES")


def why_not_found(command: Sequence[str]) -> str:
    """Say why nothing can be run, and what to write instead."""
    name = command[0]
    if name.endswith(".py") and Path(name).is_file():
        return f"{name!r} is not a program; write: rollouts record -- python {shlex.join(command)}"
    if " " in name and which(name.split()[0]):
        return f"{name!r} is one word; write the command without quotes: rollouts record -- {name}"
    return f"{name!r} is not a command; is it installed, and on PATH?"


def find_python(program: str) -> list[str]:
    """Return the Python that runs the program, with its options; nothing if the program is not Python."""
    if _PYTHON.fullmatch(Path(program).name):
        return [program]
    words = shlex.split(_shebang(program))
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
        words[:1] = [path for word in words[:1] if (path := which(word))]
    return words if words and _PYTHON.fullmatch(Path(words[0]).name) else []


def _shebang(program: str) -> str:
    """Return the interpreter that a script names in its first line, with its options."""
    try:
        with Path(program).open("rb") as file:
            start = file.read(1024)
    except OSError:
        return ""
    long = _LONG_SHEBANG.match(start)
    named = long[1] if long else start[2:].partition(b"\n")[0] if start[:2] == b"#!" else b""
    return named.decode("utf-8", "replace")


def isolating_option(words: Sequence[str]) -> str:
    """Return the option that makes this Python ignore PYTHONPATH or `sitecustomize`; empty if there is none."""
    for word in words:
        letters = re.match(rf"-([^-{_WITH_VALUE}]*)", word)
        if letters is None or not word[1:]:
            break
        if set(letters[1]) & _ISOLATING:
            return word
        if letters[1] != word[1:] and word[len(letters[0])] in "cm":
            break
    return ""
