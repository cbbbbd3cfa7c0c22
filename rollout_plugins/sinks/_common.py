"""Helpers that several sinks share: scopes, numbers and labels of a trace, and thumbnails."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from rollout_hookspecs import Image, Scope, Step, Trace

from rollout_plugins.content.imaging import load_thumbnail
from rollout_plugins.content.messages import call_text, calls_of, reasoning_of, text_of
from rollout_plugins.content.numbers import real

SCOPES = get_args(Scope)
logger = logging.getLogger("rollout_plugins")


def traces_for_scope(scope: Scope, traces: Sequence[Trace], step: Step) -> Sequence[Trace]:
    """Return the traces that a sink with this scope sends.

    With the scope `rank`, each rank sends its own traces, so rank 0 skips those that it gathered from the others.
    """
    if scope != "rank" or not step.gathered:
        return traces
    return [trace for trace in traces if trace.metadata.get("rank", step.rank) == step.rank]


def replace_images(value: Any, replacement: Callable[[Image], Any]) -> Any:
    """Return `value` with `replacement(image)` in place of each image record."""
    if isinstance(value, Image):
        return replacement(value)
    if isinstance(value, Mapping):
        return {key: replace_images(item, replacement) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_images(item, replacement) for item in value]
    return value


def describe_image(image: Image) -> str:
    """Return the text to show for an image without pixels."""
    reason = image.note or ("file is missing" if image.path else "pixels were not kept")
    return f"[IMAGE: {reason}{f', {image.uri}' if image.uri else ''}]"


def number(value: object) -> float | None:
    """Return `value` as a float, also where JSON spells NaN or an infinity as text; None if it is not a number."""
    return float(value) if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"} else real(value)


def reward_label(facts: Mapping[str, Any]) -> str:
    """Return the label of a rollout in lists: its reward, and its finish reason unless it simply stopped."""
    reward, finish = number(facts.get("reward")), facts.get("finish")
    label = "no reward" if reward is None else f"reward {reward:.4g}"
    return f"[{label}]" if finish in {"stop", "unknown", None} else f"[{label}, finish {finish}]"


def as_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def message_text(message: Mapping[str, Any], call_format: str = "{}") -> str:
    """Return a message as text: reasoning, content and tool calls, each on lines of its own."""
    calls = [call_format.format(call_text(call)) for call in calls_of(message)]
    return "\n".join(part for part in (reasoning_of(message), text_of(message.get("content")), *calls) if part)


@lru_cache(256)  # Siblings of a group show the same image.
def thumbnail(path: Path, side: int) -> bytes | None:
    """Return the image as JPEG, at most `side` pixels wide and high; None if it cannot be read."""
    try:
        out = io.BytesIO()
        load_thumbnail(path, side).save(out, "JPEG", quality=85)
    except Exception as error:
        logger.warning("The image %s cannot be shown: %r", path, error)
        return None
    return out.getvalue()
