"""The errors that users see. Each message names what is wrong, what is accepted, and how to fix it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType


class RolloutPluginsError(Exception):
    """Base of all errors that this library raises on purpose."""


class SetupError(RolloutPluginsError):
    """The callback, a plugin or the environment is set up incorrectly."""


class MissingExtraError(SetupError, ImportError):
    """An optional dependency is not installed."""


class RunError(RolloutPluginsError):
    """A run cannot be opened or read."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: only the message, because it contains the fix."""
        return [f"{type(self).__name__}: {self}"]


class DamageWarning(UserWarning):
    """Part of a run cannot be read, so results about it are incomplete."""


def need(module: str, extra: str = "") -> ModuleType:
    """Import an optional dependency, which our `extra` installs, or raise an error with the pip command."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] not in {package, ""}:
            raise MissingExtraError(f"{package} is installed but cannot be imported: {error}") from error
        requirement = f"'rollout-plugins[{extra}]'" if extra else package
        raise MissingExtraError(f"{package} is not installed: pip install {requirement}") from None


def check_folder(path: Path) -> None:
    """Raise if the folder of a new file does not exist, because its path is probably misspelled."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SetupError(f"the folder {folder} does not exist; create it, or choose another place")


def check_replaceable(path: Path) -> None:
    """Raise if a folder, a device or a pipe is at `path`, because a file must not replace it."""
    if path.is_dir():
        raise RunError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a file")


def suggest(name: str, accepted: Iterable[str]) -> str:
    """Return "did you mean …" if one of the `accepted` names is similar, or else all of them.

    The comparison ignores case, and the last word of `reward/correct` or `judge.score` is enough.
    """
    accepted = list(accepted)
    by_word: dict[str, str] = {}
    for word in accepted:
        by_word.setdefault(word.casefold(), word)
    for word in accepted:
        by_word.setdefault(re.split("[/.]", word)[-1].casefold(), word)
    near = difflib.get_close_matches(name.casefold(), by_word, n=1)
    return f"did you mean {by_word[near[0]]!r}?" if near else f"accepted: {', '.join(sorted(accepted)) or 'none'}"
