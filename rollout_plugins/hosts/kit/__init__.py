"""The public toolkit for writing a host, for anyone's trainer: see docs/how-to/host.md.

The names exported here are as stable as the hooks: while `VERSION` is the same, names and arguments stay, and only
additions are made. Everything else in this folder may change at any time.
"""

from __future__ import annotations

from typing import Final

from rollout_plugins.hosts.kit.build_rollouts import batch_of
from rollout_plugins.hosts.kit.decoding import Decoder, unpadded
from rollout_plugins.hosts.kit.observe_generation import Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.trainer_facts import describe_trl, tokenizer_of
from rollout_plugins.hosts.kit.wrapping import Call, Wraps

VERSION: Final = 1
"""Increases with each change that requires hosts to change."""

__all__ = [
    "VERSION",
    "Call",
    "Decoder",
    "Generation",
    "Observer",
    "TRLHost",
    "Wraps",
    "batch_of",
    "describe_trl",
    "tokenizer_of",
    "unpadded",
]
