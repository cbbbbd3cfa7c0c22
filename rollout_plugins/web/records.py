"""Convert a rollout to a record of the report: numbers, and the numbers of its texts and images. Never raises."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from rollout_hookspecs import Image, Panel, Rollout, ToolCall

from rollout_plugins.content.messages import arguments_of, compact
from rollout_plugins.content.numbers import finite
from rollout_plugins.show.conversation import Turn, conversation, status_of
from rollout_plugins.show.layout import image_of, split_thought
from rollout_plugins.show.text import clean, one_line, readable
from rollout_plugins.system.labels import NUMBERS
from rollout_plugins.web.course import value_of
from rollout_plugins.web.pools import Pictures, Texts

_FAILED = frozenset({"error", "unknown"})


class Records:
    """Creates the report's records; their texts and images are added to shared pools."""

    def __init__(self, texts: Texts, pictures: Pictures) -> None:
        self._texts = texts
        self._pictures = pictures
        self._prompts: dict[bytes, int] = {}

    def of(self, rollout: Rollout, panels: Sequence[Panel] = ()) -> dict[str, Any]:
        view = conversation(rollout)
        calls = [call for turn in view.turns if turn.place is not None for call in turn.calls]
        record: dict[str, Any] = {
            "id": clean(str(view.id)),
            "split": clean(str(view.split)),
            **{name: self._texts.scalar(getattr(view, name)) for name in NUMBERS},
            "finish": one_line(view.finish, 60),
            "rewards": {clean(name): self._texts.scalar(value) for name, value in view.rewards.items()},
            "calls": len(calls),
            "failed": sum(status_of(call) in _FAILED for call in calls),
            "prompt": self._prompt(rollout),
            "turns": [self._turn(turn) for turn in view.turns],
        }
        optional: dict[str, Any] = {
            "error": None if view.error is None else self._texts.add(view.error),
            "marks": self._values(view.marks),
            "columns": self._values(view.columns),
            "extra": self._values(view.extra),
            "panels": [self._panel(panel) for panel in panels],
        }
        shown_images = {image for turn in record["turns"] for image in _image_parts(turn)}
        images = [self._pictures.add(image) for image in view.images if isinstance(image, Image)]
        optional["images"] = [image for image in dict.fromkeys(images) if image not in shown_images]
        return record | {name: value for name, value in optional.items() if value not in (None, [], {})}

    def _prompt(self, rollout: Rollout) -> int:
        """Return a number that is equal for equal prompts, including their images."""
        digest = blake2b(_exact(rollout.prompt).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return self._prompts.setdefault(digest, len(self._prompts))

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {clean(name): value_of(value, self._texts) for name, value in values.items()}

    def _turn(self, turn: Turn) -> dict[str, Any]:
        record: dict[str, Any] = {"role": clean(one_line(turn.role, 60))}
        thought, content = split_thought(turn.content) if isinstance(turn.content, str) else ("", turn.content)
        if parts := self._parts(content.lstrip("\n") if thought else content):
            record["parts"] = parts
        if reasoning := "\n\n".join(filter(None, (turn.reasoning, thought))):
            record["reasoning"] = self._texts.add(reasoning)
        if turn.calls:
            record["calls"] = [self._call(call) for call in turn.calls]
        if turn.place is not None:
            record["place"] = turn.place
        return record

    def _parts(self, content: Any) -> list[Any]:
        """Return texts and images in order: the number of a text, or {"image": number}."""
        blocks = list(content) if isinstance(content, (list, tuple)) else [] if content is None else [content]
        parts: list[Any] = []
        text: list[str] = []
        for block in blocks:
            image = image_of(block)
            if image is None:
                text.append(readable([block]))
                continue
            parts += [self._texts.add("\n".join(text))] if text else []
            parts.append({"image": self._pictures.add(image)})
            text = []
        return [*parts, self._texts.add("\n".join(text))] if any(text) else parts

    def _call(self, call: ToolCall) -> dict[str, Any]:
        record: dict[str, Any] = {"name": one_line(call.name, 120), "status": status_of(call)}
        arguments = arguments_of(call)
        if arguments is not None:
            record["arguments"] = self._texts.add(_arguments_text(arguments))
        if result := self._parts(call.result):
            record["result"] = result
        if call.error is not None:
            record["error"] = self._texts.add(call.error)
        if finite(call.seconds) is not None:
            record["seconds"] = finite(call.seconds)
        return record

    def _panel(self, panel: Panel) -> dict[str, Any]:
        record: dict[str, Any] = {"title": one_line(panel.title, 120)}
        if panel.text:
            record["text"] = self._texts.add(panel.text)
        if panel.table:
            record["table"] = [[value_of(cell, self._texts) for cell in row] for row in panel.table]
        if panel.image is not None:
            record["image"] = self._pictures.add(panel.image)
        if panel.turn is not None:
            record |= {"turn": panel.turn, "replaces": panel.replaces}
        return record


def _exact(prompt: Any) -> str:
    try:
        return repr(prompt)
    except Exception:  # nested too deeply, or an object whose repr raises
        return compact(prompt)


def _image_parts(turn: Mapping[str, Any]) -> list[int]:
    parts: list[Any] = [
        *turn.get("parts", ()),
        *(part for call in turn.get("calls", ()) for part in call.get("result", ())),
    ]
    return [part["image"] for part in parts if isinstance(part, dict)]


def _arguments_text(arguments: Any) -> str:
    """Return arguments as lines of `name = value`; as JSON if they have no names."""
    if isinstance(arguments, Mapping) and arguments:
        return "\n".join(f"{key} = {_value(value)}" for key, value in arguments.items())
    return "" if arguments == {} else compact(arguments)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value if "\n" in value else json.dumps(value, ensure_ascii=False)
    return compact(value)
