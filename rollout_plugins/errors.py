"""Errors people see. Each message says what was found, what is accepted, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType


class RolloutPluginsError(Exception):
    """Base of all errors raised on purpose by this library."""


class SetupError(RolloutPluginsError):
    """Something is wrong with how the callback, a plugin or the environment was set up."""


class MissingExtraError(SetupError, ImportError):
    """An optional dependency is not installed."""


class RunError(RolloutPluginsError):
    """A run could not be opened or read."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message says what to do, and the frames above it are ours."""
        return [f"{type(self).__name__}: {self}"]


class DamageWarning(UserWarning):
    """Part of a run cannot be read, so what is read of it is not all there was."""


def need(module: str, extra: str = "") -> ModuleType:
    """Import an optional dependency, or raise one line that names the pip command; `extra`: ours that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] not in {package, ""}:
            raise MissingExtraError(f"{package} is installed but does not import: {error}") from error
        wanted = f"'rollout-plugins[{extra}]'" if extra else package
        raise MissingExtraError(f"{package} is not installed: pip install {wanted}") from None


def check_folder(path: Path) -> None:
    """What is written goes into a folder that exists: one that does not is most often a slip of the pen."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SetupError(f"the folder {folder} does not exist; make it, or choose another place")


def check_replaceable(path: Path) -> None:
    """A folder, a device or a pipe is not replaced by a file."""
    if path.is_dir():
        raise RunError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a file")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the near match, or everything that would be accepted.

    Case does not count, and of `reward/correct` or `judge.score` the last word is enough.
    """
    known = list(known)
    by_word: dict[str, str] = {}
    for word in known:
        by_word.setdefault(word.casefold(), word)
    for word in known:
        by_word.setdefault(re.split("[/.]", word)[-1].casefold(), word)
    near = difflib.get_close_matches(name.casefold(), by_word, n=1)
    return f"did you mean {by_word[near[0]]!r}?" if near else f"accepted: {', '.join(sorted(known)) or 'none'}"
