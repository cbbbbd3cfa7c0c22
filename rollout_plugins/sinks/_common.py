"""What the sinks share: scopes, numbers and texts of a trace, small copies of images."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from rollout_hookspecs import Image, Scope, Step, Trace

from rollout_plugins.content.imaging import small_copy
from rollout_plugins.content.messages import call_text, calls_of, reasoning_of, text_of
from rollout_plugins.content.numbers import real

SCOPES = get_args(Scope)
logger = logging.getLogger("rollout_plugins")


def meant_for(scope: Scope, traces: Sequence[Trace], step: Step) -> Sequence[Trace]:
    """The traces a sink of this scope sends: rank 0 may be handed those of all ranks, which send their own."""
    if scope != "rank" or not step.gathered:
        return traces
    return [trace for trace in traces if trace.metadata.get("rank", step.rank) == step.rank]


def without_images(value: Any, shown: Callable[[Image], Any]) -> Any:
    """The value with each image record in it as `shown` has it."""
    if isinstance(value, Image):
        return shown(value)
    if isinstance(value, Mapping):
        return {key: without_images(item, shown) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_images(item, shown) for item in value]
    return value


def image_words(image: Image) -> str:
    """What to show instead of an image whose pixels are not there."""
    why = image.note or ("file is missing" if image.path else "pixels were not kept")
    return f"[IMAGE: {why}{f', {image.uri}' if image.uri else ''}]"


def number(value: object) -> float | None:
    """A number again, where plain JSON had to spell it."""
    return float(value) if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"} else real(value)


def reward_words(facts: Mapping[str, Any]) -> str:
    """What one looks for in a list of rollouts: the reward, and how it ended unless it simply stopped."""
    reward, finish = number(facts.get("reward")), facts.get("finish")
    said = "no reward" if reward is None else f"reward {reward:.4g}"
    return f"[{said}]" if finish in {"stop", "unknown", None} else f"[{said}, finish {finish}]"


def integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def spoken(message: Mapping[str, Any], call: str = "{}") -> str:
    """All that a message says: reasoning, text and calls, on lines of their own."""
    calls = [call.format(call_text(asked)) for asked in calls_of(message)]
    return "\n".join(part for part in (reasoning_of(message), text_of(message.get("content")), *calls) if part)


@lru_cache(256)  # siblings of a group show the same image
def thumbnail(path: Path, side: int) -> bytes | None:
    """The image as JPEG, no larger than `side` pixels each way; None when it cannot be read."""
    try:
        out = io.BytesIO()
        small_copy(path, side).save(out, "JPEG", quality=85)
    except Exception as error:
        logger.warning("%s cannot be shown: %r", path, error)
        return None
    return out.getvalue()
