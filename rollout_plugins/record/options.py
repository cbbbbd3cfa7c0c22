"""The options of `rollouts record`, from the command line or ROLLOUT_PLUGINS_RECORD, as arguments of the callback."""

from __future__ import annotations

import json
import logging
import os
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from rollout_plugins.engine.env_vars import checked_seconds
from rollout_plugins.engine.run_setup import checked_dir, load_plugins
from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.kit.trainer_facts import check_trl
from rollout_plugins.system.remote_runs import is_url, local_path

_ON = [["1"], ["true"], ["yes"], ["on"]]


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the callback that are useful on a command line."""
    add = parser.add_argument
    add("--dir", metavar="FOLDER", help="folder for the runs (default: OUTPUT_DIR-rollouts)")
    add("--plugins", metavar="NAMES", default="", help="plugins to run, in this order, for example redact,console")
    add("--disable", metavar="NAMES", default="", help="plugins that must not run")
    add("--config", metavar="FILE", help="a TOML or JSON file with options for each plugin")
    add("--tokens", action="store_true", help="also record token ids, masks and log-probabilities")
    add("--tokens-on-fault", action="store_true", help="store them only when the loss is NaN or far from what it was")
    add("--rendered", action="store_true", help="also record the exact text of the rendered prompts")
    add("--mirror", metavar="URL", help="copy the run to this URL while it is recorded, for example s3://bucket/runs")
    add("--end-seconds", metavar="SECONDS", help="how long the end of training may wait (default: 30)")


def callback_options(options: Namespace) -> dict[str, Any]:
    """Return the arguments for `RolloutPluginCallback`. Raise `SetupError` if an option is invalid."""
    seconds = options.end_seconds
    return {
        "dir": checked_dir(options.dir),
        "plugins": _names(options.plugins),
        "disable": _names(options.disable),
        "config": None if options.config is None else _read_config(local_path(options.config)),
        "tokens": "on-fault" if options.tokens_on_fault and not options.tokens else options.tokens,
        "rendered": options.rendered,
        "mirror": options.mirror,
        "end_seconds": None if seconds is None else checked_seconds("end_seconds", seconds),
    }


def check_options(options: Namespace) -> None:
    """Raise `SetupError` for everything that the callback would refuse. Its warnings are suppressed here."""
    check_trl()
    callback = callback_options(options)
    names = ("plugins", "config", "disable", "mirror")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        load_plugins(**{name: callback[name] for name in names}, autoload=True)
    finally:
        logging.disable(before)


def to_text(options: Namespace) -> str:
    """Return the options as the value of ROLLOUT_PLUGINS_RECORD, with absolute paths: a process may
    change its folder.
    """
    words: list[str] = []
    for name in ("dir", "plugins", "disable", "config", "mirror", "end_seconds"):
        value = getattr(options, name)
        if value:
            is_path = name in {"dir", "config", "mirror"} and not is_url(value)
            words.append(f"--{name.replace('_', '-')}={local_path(value).absolute() if is_path else value}")
    flags = ("tokens", "tokens_on_fault", "rendered")
    words += [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    return shlex.join(words) or "1"


def from_text(text: str) -> Namespace:
    """Parse the value of ROLLOUT_PLUGINS_RECORD: options, or a word such as `1` for none."""
    parser = _Parser(prog="ROLLOUT_PLUGINS_RECORD", add_help=False, allow_abbrev=False)
    add_options(parser)
    words = shlex.split(text)
    return parser.parse_args([] if [word.lower() for word in words] in _ON else words)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SetupError(f"{self.prog}: {message}; set it to 1, or to options of rollouts record")


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _read_config(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else _read_toml(text)
    except OSError as error:
        raise SetupError(f"config {os.fspath(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise SetupError(f"config {os.fspath(path)!r} is not {kind}: {error}") from error


def _read_toml(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        raise SetupError("TOML needs Python 3.11 or newer; write the config as a .json file") from None
    return tomllib.loads(text)
