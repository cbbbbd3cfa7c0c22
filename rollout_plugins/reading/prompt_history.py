"""Compare prompts, to follow one prompt through a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.exact_json import is_valid_unicode
from rollout_plugins.content.hashing import content_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rollout_hookspecs import Rollout


def is_plain_text(message: Any) -> bool:
    """Return True if a message is a role and a text and nothing else, so that two columns of the store hold it."""
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        return False
    return all(isinstance(text, str) and is_valid_unicode(text) for text in message.values())


def same_prompt(
    candidates: Iterable[tuple[int, Rollout]],
    prompt: Sequence[Any],
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Rollout]]:
    """Yield position and rollout of each candidate whose prompt equals `prompt`, images and tool calls included.

    `is_cancelled` is called before each comparison, because a run with images may have very many candidates.
    """
    expected = content_hash(prompt)  # `==` is false for a prompt that contains a NaN, even compared with itself
    for position, rollout in candidates:
        if is_cancelled():
            return
        if content_hash(rollout.prompt) == expected:
            yield position, rollout
