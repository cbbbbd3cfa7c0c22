"""Move images out of messages into files in `media/`, and leave records that identify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

from rollout_hookspecs import Columns, Image, Rollout, Run, Step, ToolCall, hookimpl

from rollout_plugins.content.hashing import is_array, is_pil, is_tensor
from rollout_plugins.content.imaging import IMAGE_NAMES, is_beyond_text, is_image_block
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.plugins.images.media import MediaStore, Unreadable
from rollout_plugins.plugins.images.pixels import keep_image
from rollout_plugins.plugins.rewrite import ATOMS, Place, Rewriter, lost
from rollout_plugins.system.option_checks import check, integer, one_of

MODES = ("keep", "thumbnail", "strip")
FORMATS = ("webp", "jpeg")

_PAYLOADS = frozenset({"image", "image_url", "url", "path", "base64", "data", "bytes", "source"})
_MAX_VALUES = 200_000
_MODEL_FIELDS = frozenset({"tool_calls", "arguments"})


class Slot(IntEnum):
    """Which values count as an image at some position."""

    ANYTHING = 0
    """Only values that can be nothing else are images: PIL objects and encoded image files."""
    NAMED = 1
    """In a field called `image` or `images`, text and arrays may be images too."""
    IMAGE = 2
    """The payload of an image block is always an image."""
    BY_MODEL = 3
    """In tool calls that the model wrote, text stays text."""


class Images:
    """Moves images out of prompts, answers, tool results, dataset columns and extras. On by default.

    An `Image` record replaces the pixels. `Rollout.images` lists the records in order of appearance: first those of
    prompt and completion, then those that occur only in columns and extras. One file is written for each distinct
    image of a run, no matter how many rollouts contain it, or how often. Remote URLs are kept as references and never
    fetched. An image that can't be read, or is larger than `PIL.Image.MAX_IMAGE_PIXELS`, is replaced by a marked
    `Placeholder` and counted.

    mode: `keep` (unmodified), `thumbnail` (small and lossy) or `strip` (only hash and size).
        Images("thumbnail")
    max_side: longest side in pixels; larger images are scaled down. None: no limit (256 for thumbnails).
        Images(max_side=1024)
    format: `webp` or `jpeg`, for thumbnails.
        Images("thumbnail", format="jpeg")
    quality: 1 to 100, for thumbnails.
        Images("thumbnail", quality=60)
    budget: bytes that `media/` may take: full images up to nine tenths of it, then thumbnails, then only references.
        Images(budget=10 * 2**30)
    """

    headlines = ("images/unreadable",)
    skips_text = True

    def __init__(
        self,
        mode: str = "keep",
        *,
        max_side: int | None = None,
        format: str = "webp",  # noqa: A002 - the name in Pillow
        quality: int = 80,
        budget: int | None = None,
    ) -> None:
        check(
            "images",
            one_of("mode", mode, MODES),
            integer("max_side", max_side, 1, optional=True),
            one_of("format", format, FORMATS),
            integer("quality", quality, 1, 100),
            integer("budget", budget, 1, optional=True),
        )
        self._options: dict[str, Any] = {
            "mode": mode,
            "max_side": max_side,
            "format": format,
            "quality": quality,
            "budget": budget,
        }
        self._begin(MediaStore("", mode="strip"))

    def _begin(self, media: MediaStore) -> None:
        self._media = media
        self._unreadable: Counter[str] = Counter()
        self._written = 0

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        media = MediaStore(run.dir, ranks=run.world_size, **self._options) if run.dir else MediaStore("", mode="strip")
        self._begin(media)

    @hookimpl
    def on_rollout(self, rollout: Rollout) -> Rollout | None:
        if not _may_hold_images(rollout):
            return None
        extraction = _Extraction(self._media)
        columns = extraction.field(rollout.columns, "columns")
        column_images = _images_in(columns) if extraction.count else []
        prompt = extraction.field(_fill_bare_blocks(rollout.prompt, column_images), "prompt")
        completion = extraction.field(rollout.completion, "completion")
        tool_calls = tuple(extraction.tool_call(call, i) for i, call in enumerate(rollout.tool_calls))
        extra = extraction.field(rollout.extra, "extra")
        self._unreadable[rollout.split] += extraction.unreadable
        if not extraction.count and not extraction.unreadable:
            return None
        in_messages = (*_images_in(prompt), *_images_in(completion))
        hashes = {image.hash for image in in_messages}
        elsewhere = [image for image in (*column_images, *_images_in(extra)) if image.hash not in hashes]
        images = (*in_messages, *elsewhere)
        return replace(
            rollout,
            prompt=prompt,
            completion=completion,
            tool_calls=tool_calls,
            columns=columns,
            extra=extra,
            images=images,
        )

    @hookimpl
    def rollout_metrics(self, columns: Columns, step: Step) -> Mapping[str, float] | None:
        images_by_rollout = RolloutColumns.from_rollouts(columns)["images"]
        images = [image for rollout_images in images_by_rollout for image in rollout_images]
        unreadable = self._unreadable.pop(step.split, 0)
        if not images and not unreadable:
            return None
        written, self._written = self._media.bytes - self._written, self._media.bytes
        figures = {
            "images/count": len(images) / max(1, len(images_by_rollout)),
            "images/bytes_written": float(written),
        }
        losses = {
            "images/unreadable": unreadable,
            "images/without_pixels": sum(image.path is None for image in images),
            "images/reduced": sum(image.path is not None and image.note is not None for image in images),
        }
        return figures | {name: float(count) for name, count in losses.items() if count}


def _may_hold_images(rollout: Rollout) -> bool:
    calls = [part for call in rollout.tool_calls for part in (call.arguments, call.result)]
    return is_beyond_text((rollout.prompt, rollout.completion, rollout.columns, rollout.extra, *calls))


class _Extraction:
    """Replaces the images of one rollout by records, and counts them."""

    def __init__(self, media: MediaStore) -> None:
        self.count = 0
        self.unreadable = 0
        self._media = media
        self._rewrite = Rewriter(self._change, _slot_inside)
        self._records: dict[int, Any] = {}

    def field(self, value: Any, name: str, slot: Slot = Slot.ANYTHING) -> Any:
        """Return the field without images, or the unmodified field if it can't be walked."""
        new = self._rewrite(value, slot, Place(None, name))
        return new if isinstance(new, type(value)) or isinstance(value, (str, int, float)) else value

    def tool_call(self, call: ToolCall, number: int) -> ToolCall:
        place = Place(Place(None, "tool_calls"), number)
        arguments = self._rewrite(call.arguments, Slot.BY_MODEL, Place(place, "arguments"))
        result = self._rewrite(call.result, Slot.ANYTHING, Place(place, "result"))
        if arguments is call.arguments and result is call.result:
            return call
        return replace(call, arguments=arguments, result=result)

    def _change(self, value: Any, slot: Slot, place: Place) -> Any:
        if type(value) in ATOMS or (isinstance(value, str) and slot not in {Slot.NAMED, Slot.IMAGE}):
            return value
        if not is_pil(value):
            return self._image(value, slot, place)
        if id(value) not in self._records:
            self._records[id(value)] = self._image(value, slot, place)
        return self._records[id(value)]

    def _image(self, value: Any, slot: Slot, place: Place) -> Any:
        certain = slot is Slot.IMAGE and not (isinstance(value, str) and not value)
        guess = slot is Slot.NAMED and (is_array(value) or is_tensor(value))
        try:
            record = keep_image(value, self._media, certain=certain or guess)
        except Exception as error:
            if not is_pil(value) and not certain and (guess or slot is not Slot.NAMED or isinstance(value, str)):
                return value  # it only looked like an image
            self.unreadable += 1
            return lost(value, place, str(error) if isinstance(error, Unreadable) else f"not decodable: {error!r}")
        if record is None:
            return value
        self.count += 1
        return record


def _slot_inside(container: Any, key: Any, slot: Slot) -> Slot:
    """Return which values count as an image in a child of a dict or list."""
    if slot is Slot.BY_MODEL or not isinstance(container, Mapping):
        return slot
    if key in _MODEL_FIELDS:
        return Slot.BY_MODEL
    if is_image_block(container) or slot is Slot.IMAGE:
        return Slot.IMAGE if key in _PAYLOADS else Slot.ANYTHING
    if key in IMAGE_NAMES or (slot is Slot.NAMED and key in _PAYLOADS):
        return Slot.NAMED
    return Slot.ANYTHING


def _images_in(value: Any) -> list[Image]:
    """Return the image records in order of appearance."""
    records: list[Image] = []
    waiting = [value]
    for _ in range(_MAX_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        value_type = type(value)  # isinstance would call the value's own code, which may raise
        if value_type is Image:
            records.append(value)
        elif issubclass(value_type, dict):
            waiting += reversed(value.values())
        elif issubclass(value_type, (list, tuple)):
            waiting += reversed(value)
    return records


def _fill_bare_blocks(prompt: tuple[Any, ...], images: Sequence[Image]) -> tuple[Any, ...]:
    """Return the prompt with the row's images in its bare `{"type": "image"}` blocks, if there is one for each block.

    Hosts that keep images outside the messages mark their positions with such blocks.
    """
    bare_count = sum(_is_bare(block) for message in prompt for block in _blocks(message))
    if not bare_count or bare_count != len(images):
        return prompt
    remaining = iter(images)
    return tuple(
        {**message, "content": [{**b, "image": next(remaining)} if _is_bare(b) else b for b in _blocks(message)]}
        if any(_is_bare(b) for b in _blocks(message))
        else message
        for message in prompt
    )


def _blocks(message: Any) -> Sequence[Any]:
    content: Any = message.get("content") if issubclass(type(message), Mapping) else None
    return content if issubclass(type(content), (list, tuple)) else ()


def _is_bare(block: Any) -> bool:
    return is_image_block(block) and all(block.get(key) is None for key in _PAYLOADS)
