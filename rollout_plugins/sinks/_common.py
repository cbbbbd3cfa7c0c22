"""What the sinks share: their scope, where an image's pixels are, small copies of images."""

from __future__ import annotations

import io
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar, get_args

from rollout_hookspecs import Image, Scope, Step, Trace

from rollout_plugins.content.imaging import small_copy

SCOPES = get_args(Scope)
T = TypeVar("T")
logger = logging.getLogger("rollout_plugins")


def meant_for(scope: Scope, traces: Sequence[Trace], step: Step) -> Sequence[Trace]:
    """The traces a sink of this scope sends: rank 0 may be handed those of all ranks, which send their own."""
    if scope != "rank" or not step.gathered:
        return traces
    return [trace for trace in traces if trace.metadata.get("rank", step.rank) == step.rank]


def image_words(image: Image) -> str:
    """What to show instead of an image whose pixels are not there."""
    why = image.note or ("file is missing" if image.path else "pixels were not kept")
    return f"[IMAGE: {why}{f', {image.uri}' if image.uri else ''}]"


def number(value: object) -> float | None:
    """A number again, where plain JSON had to spell it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"} else None


def integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def thumbnail(path: Path, side: int) -> bytes | None:
    """The image as JPEG, no larger than `side` pixels each way; None when it cannot be read."""
    try:
        out = io.BytesIO()
        small_copy(path, side).save(out, "JPEG", quality=85)
    except Exception as error:
        logger.warning("%s cannot be shown: %r", path, error)
        return None
    return out.getvalue()


class SmallCache(Generic[T]):
    """A few values made once and used again: siblings of a group show the same image."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = self._kept[key] = make()
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return value
