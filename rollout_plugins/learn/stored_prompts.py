"""Read stored messages back as the trainer had them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_plugins.store.arrow_messages import read_message


def read_conversation(rows: Sequence[Mapping[str, Any]] | None, *, is_text: bool) -> Any:
    """Return a stored prompt or completion: a list of messages, or the text that it was."""
    messages = [read_message(row) for row in rows or ()]
    if is_text:
        return messages[0]["content"] if messages else ""
    return messages
