"""Track whether exceptions and images must be shown without their contents, as a `required` plugin demands."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

_owners: WeakSet[Any] = WeakSet()


def start_confidentiality(owner: object) -> None:
    """Show exceptions without their texts until `end_confidentiality`, or until the owner is garbage-collected."""
    _owners.add(owner)


def end_confidentiality(owner: object) -> None:
    """Show exceptions in full again, unless another owner forbids it."""
    _owners.discard(owner)


def is_confidential() -> bool:
    """Return whether any owner forbids texts."""
    return bool(_owners)
