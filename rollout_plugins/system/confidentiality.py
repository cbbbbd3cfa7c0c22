"""Whether something of this process must not leave it: a `required` plugin says so, for as long as its run lasts."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

_discreet: WeakSet[Any] = WeakSet()


def start_confidentiality(owner: object) -> None:
    """Show exceptions without their text, and pictures without words, until `be_open` or the owner is gone."""
    _discreet.add(owner)


def end_confidentiality(owner: object) -> None:
    """Show everything in full again."""
    _discreet.discard(owner)


def is_confidential() -> bool:
    """Whether anybody asks for that."""
    return bool(_discreet)
