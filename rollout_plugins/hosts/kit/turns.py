"""Split the token ids of a `rollout_func` into the turns of model and environment, on the worker thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple

from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.observed_generation import Generation

TOLD_APART: Final = "told apart by env_mask; the trainer had them as one message"
NO_MASK: Final = "not told apart: rollout_func gave no env_mask"
BAD_MASK: Final = "not told apart: env_mask has another length than the token ids"
BROKEN: Final = "; the ids of some do not make whole characters, and tokens=True keeps them as ids"
_ROLES: Final = ("tool", "user", "system")
_WORDS: Final = ("<first>", "<second>", "<third>", "<fourth>")


class Turns:
    """Splits the completions of a generation into turns, using its `env_mask`."""

    def __init__(self, decoder: Decoder, templating: Mapping[str, Any]) -> None:
        self._decoder = decoder
        self._templating = templating

    @cached_property
    def _template(self) -> Template:
        return Template(self._decoder, self._templating)

    def tell_apart(self, generation: Generation) -> None:
        """Replace the trainer's single message by turns; a mark records that, or why it was impossible."""
        generation.marks = generation.marks or [{} for _ in range(generation.count)]
        masks, prompts = (
            rows if isinstance(rows, list) and len(rows) == generation.count else None
            for rows in (generation.tool_mask, generation.prompt_ids)
        )
        found: dict[int, list[dict[str, Any]]] = {}
        for i, ids in enumerate(generation.ids if generation.completions is not None else ()):
            before = list(prompts[i]) if prompts is not None else []
            if masks is None:
                generation.marks[i]["turns"] = NO_MASK
            elif len(masks[i]) != len(ids):
                generation.marks[i]["turns"] = BAD_MASK
            elif not all(masks[i]) and (turns := list(self._turns(list(ids), masks[i], before))):
                found[i] = turns
                is_broken = any("\ufffd" in str(turn["content"]) for turn in turns)
                generation.marks[i]["turns"] = TOLD_APART + BROKEN * is_broken
        if found:
            generation.completions = generation.completions.replace_conversations(found)

    def _turns(self, ids: list[int], mask: Sequence[int], before: list[int]) -> Iterator[dict[str, Any]]:
        start = 0
        for wrote, some in groupby(map(bool, mask)):
            end = start + sum(1 for _ in some)
            if wrote:
                yield self._decoder.message(ids[start:end], before + ids[:start])
            else:
                yield from self._template.messages(ids[start:end])
            start = end


class _Around(NamedTuple):
    """The text that a template puts before a message, after it, and between two of the same role."""

    role: str
    head: str
    close: str
    between: str


class Template:
    """Parses the text between two turns of a model into messages, without the template's markup.

    The markup is learnt by rendering a conversation of placeholder words.
    """

    def __init__(self, decoder: Decoder, templating: Mapping[str, Any]) -> None:
        self._decoder = decoder
        self._templating = templating
        self._roles = sorted(filter(None, map(self._around, _ROLES)), key=lambda one: -len(one.head))
        heads = _any_of([one.head for one in self._roles])
        prompting = _any_of(self._openings())
        self._start = re.compile(_any_of([self._closing[i:] for i in range(len(self._closing))]))
        self._nothing = re.compile(rf"{prompting}\Z")
        self._message = re.compile(
            "|".join(
                rf"{re.escape(one.head)}(?P<{one.role}>.*?)"
                rf"(?:{re.escape(one.close)}(?={heads[:-1]})|(?:{re.escape(one.close)})?{prompting}\Z)"
                for one in self._roles
            )
            or r"(?!)",
            re.DOTALL,
        )

    def messages(self, ids: list[int]) -> list[dict[str, Any]]:
        """Return the messages with their roles; text without the template's markup becomes a user message."""
        text = self._decoder.text(ids)
        found = self._start.match(text)
        place = found.end() if found else 0
        if self._nothing.match(text, place):
            return []
        made: list[dict[str, Any]] = []
        while place < len(text) and (one := self._message.match(text, place)):
            made += self._split(one)
            place = one.end()
        if place == len(text):
            return made
        plain = self._decoder.plain(ids)
        return [{"role": "user", "content": plain}] if plain else []

    def _split(self, found: re.Match[str]) -> list[dict[str, Any]]:
        role = str(found.lastgroup)
        between = next(one.between for one in self._roles if one.role == role)
        return [{"role": role, "content": text} for text in found[role].split(between)]

    @cached_property
    def _closing(self) -> str:
        """The markup after a model's turn."""
        return (self._rendered([], after=_WORDS[1]) or ("",))[0]

    def _around(self, role: str) -> _Around | None:
        said = [{"role": role, "content": word} for word in _WORDS[2:]]
        parts = self._rendered(said, after=_WORDS[1])
        if parts is None or len(parts) != len(_WORDS) - 1 or not parts[0].removeprefix(self._closing):
            return None
        before, between, close = parts
        return _Around(role, before.removeprefix(self._closing), close, between or close)

    def _openings(self) -> list[str]:
        """Return the template's generation prompts, with and without thinking."""
        ways: list[dict[str, Any]] = [{}, {"enable_thinking": False}, {"enable_thinking": True}]
        opened = [self._rendered([], after=_WORDS[1], add_generation_prompt=True, **way) for way in ways]
        found = {parts[0].removeprefix(self._closing) for parts in opened if parts}
        return sorted(found, key=len, reverse=True)

    def _rendered(self, more: list[dict[str, Any]], *, after: str, **how: Any) -> list[str] | None:
        """Return the markup between the placeholders after `after`; None if the template drops them."""
        asked = [{"role": "user", "content": _WORDS[0]}, {"role": "assistant", "content": _WORDS[1]}]
        text = self._decoder.rendered([*asked, *more], **{**self._templating, **how})
        if text is None or after not in text:
            return None
        return re.split("|".join(_WORDS[2:]), text.rpartition(after)[2])


def _any_of(texts: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, texts))})?"
