"""Which TRL is installed, and what that means."""

from __future__ import annotations

import logging
from typing import Any

from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.kit.trainer_facts import installed

logger = logging.getLogger("rollout_plugins")

TRL_FLOOR = (0, 22)
TRL_LOG_COMPLETIONS_CAN_CRASH = (1, 15)


def check_trl() -> None:
    found = _version("trl")
    if found is not None and found < TRL_FLOOR:
        floor = ".".join(map(str, TRL_FLOOR))
        raise SetupError(
            f"trl {installed('trl')} is too old: rollout-plugins needs {floor} or newer; pip install -U trl"
        )


def _version(package: str) -> tuple[int, ...] | None:
    text = installed(package)
    if text is None:
        return None
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def warn_of_log_completions(trainer: Any) -> None:
    found = _version("trl")
    if found and found >= TRL_LOG_COMPLETIONS_CAN_CRASH and getattr(trainer.args, "log_completions", False):
        logger.warning(
            "log_completions=True: the completions table of trl %s ends training with an exception on ordinary tool "
            "calls and mixed content; every rollout is recorded here anyway, so set log_completions=False",
            installed("trl"),
        )
