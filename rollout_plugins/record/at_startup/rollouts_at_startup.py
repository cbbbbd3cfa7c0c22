"""Prepare each process of a recorded command when it starts. Only the standard library is imported here.

Nothing else happens until `transformers.trainer` is imported, which most processes never do.
"""

import atexit
import os
import sys

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

RECORD = "ROLLOUT_PLUGINS_RECORD"
"""`1`, or the options of `rollouts record`; empty or `0` to record nothing."""
END = "ROLLOUT_PLUGINS_RECORD_END"
"""`PID:FILE`, set by `rollouts record`: its process id, which the command keeps, and the file in which all processes
leave notes.

The first Python process removes the PID, so that only one process reports at its end.
"""
TRAINER = "transformers.trainer"
RECORDED = "recorded"


def prepare() -> None:
    if os.environ.get(RECORD, "").strip().lower() not in {"", "0", "false", "no", "off"}:
        sys.meta_path.insert(0, TrainerFinder())
        _report_at_exit()


class TrainerFinder:
    """Lets the other finders find `transformers.trainer`, and adds our callback once the module has run."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != TRAINER:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader, add_callback)
        return spec


def _run_after(loader: "Any", action: "Any") -> None:
    """Make this loader, which loads one module, call the action with the module afterwards."""
    original = loader.exec_module

    def exec_module(module: "Any") -> None:
        original(module)
        action(module)

    loader.exec_module = exec_module


def add_callback(trainer_module: "Any") -> None:
    """Add our callback to the default callbacks of every trainer. If that fails, the command continues."""
    import importlib

    try:
        defaults = importlib.import_module("rollout_plugins.record.defaults")
        defaults.add_to_defaults(trainer_module, os.environ[RECORD])
    except Exception as error:
        is_missing = isinstance(error, ImportError) and (error.name or "").startswith("rollout_")
        reason = f"rollout-plugins is not installed for {sys.executable}" if is_missing else repr(error)
        warn(f"not recorded, because {reason}")


def warn(text: str) -> None:
    """Warn now and at the end that a trainer is not recorded. Only the first of several ranks prints it."""
    note(text)
    if os.environ.get("RANK", "0") == "0":
        _write(text)


def note(text: str) -> None:
    """Write a line for the process that reports at the end."""
    path = os.environ.get(END, "").partition(":")[2]
    if path:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            file = os.open(path, flags, 0o600)
            os.write(file, (" ".join(text.split()) + "\n").encode("utf-8", "replace"))
            os.close(file)
        except OSError:  # the report at the end is then incomplete
            pass


def _report_at_exit() -> None:
    """Make the first Python process of the command report at its end."""
    pid, separator, path = os.environ.get(END, "").partition(":")
    if pid and path:
        os.environ[END] = separator + path
        atexit.register(_report, path, os.getpid(), pid == str(os.getpid()))


def _report(path: str, reporter: int, is_command: bool) -> None:
    """Report that nothing was recorded, and why; for a program in a shell script, only if it had a trainer."""
    if os.getpid() != reporter:  # a forked child
        return
    try:
        with open(path, encoding="utf-8") as file:
            notes = list(dict.fromkeys(file.read().splitlines()))
        os.unlink(path)
    except OSError:
        notes = []
    if RECORDED not in notes and (notes or is_command):
        reason = "; ".join(notes[:3]) or "the command created no transformers Trainer"
        _write(f"nothing was recorded: {reason}")


def _write(text: str) -> None:
    try:
        sys.stderr.write(f"rollouts record: {text}\n")
        sys.stderr.flush()
    except Exception:  # there may be no terminal
        pass
