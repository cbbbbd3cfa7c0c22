"""Split the token ids of a `rollout_func` into the turns of model and environment, on the worker thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple

from rollout_plugins.hosts.kit.decoding import Decoder
from rollout_plugins.hosts.kit.observed_generation import Generation

SEPARATED: Final = "separated by env_mask; the trainer had them as one message"
NO_MASK: Final = "not separated: rollout_func returned no env_mask"
BAD_MASK: Final = "not separated: env_mask and the token ids differ in length"
BROKEN: Final = "; the ids of some are not complete characters, and tokens=True stores the ids"
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

    def separate(self, generation: Generation) -> None:
        """Replace the trainer's single message by turns; a mark records that, or why it was impossible."""
        generation.marks = generation.marks or [{} for _ in range(generation.count)]
        masks, prompts = (
            rows if isinstance(rows, list) and len(rows) == generation.count else None
            for rows in (generation.tool_mask, generation.prompt_ids)
        )
        turns_by_row: dict[int, list[dict[str, Any]]] = {}
        for i, ids in enumerate(generation.ids if generation.completions is not None else ()):
            before = list(prompts[i]) if prompts is not None else []
            if masks is None:
                generation.marks[i]["turns"] = NO_MASK
            elif len(masks[i]) != len(ids):
                generation.marks[i]["turns"] = BAD_MASK
            elif not all(masks[i]) and (turns := list(self._turns(list(ids), masks[i], before))):
                turns_by_row[i] = turns
                is_broken = any("\ufffd" in str(turn["content"]) for turn in turns)
                generation.marks[i]["turns"] = SEPARATED + BROKEN * is_broken
        if turns_by_row:
            generation.completions = generation.completions.replace_conversations(turns_by_row)

    def _turns(self, ids: list[int], mask: Sequence[int], before: list[int]) -> Iterator[dict[str, Any]]:
        start = 0
        for is_model, stretch in groupby(map(bool, mask)):
            end = start + sum(1 for _ in stretch)
            if is_model:
                yield self._decoder.message(ids[start:end], before + ids[:start])
            else:
                yield from self._template.messages(ids[start:end])
            start = end


class _RoleMarkup(NamedTuple):
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
        self._roles = sorted(filter(None, map(self._role_markup, _ROLES)), key=lambda markup: -len(markup.head))
        heads = _any_of([markup.head for markup in self._roles])
        prompting = _any_of(self._openings())
        self._start = re.compile(_any_of([self._closing[i:] for i in range(len(self._closing))]))
        self._nothing = re.compile(rf"{prompting}\Z")
        self._message = re.compile(
            "|".join(
                rf"{re.escape(markup.head)}(?P<{markup.role}>.*?)"
                rf"(?:{re.escape(markup.close)}(?={heads[:-1]})|(?:{re.escape(markup.close)})?{prompting}\Z)"
                for markup in self._roles
            )
            or r"(?!)",
            re.DOTALL,
        )

    def messages(self, ids: list[int]) -> list[dict[str, Any]]:
        """Return the messages with their roles; text without the template's markup becomes a user message."""
        text = self._decoder.text(ids)
        closing = self._start.match(text)
        position = closing.end() if closing else 0
        if self._nothing.match(text, position):
            return []
        messages: list[dict[str, Any]] = []
        while position < len(text) and (match := self._message.match(text, position)):
            messages += self._split(match)
            position = match.end()
        if position == len(text):
            return messages
        plain = self._decoder.plain(ids)
        return [{"role": "user", "content": plain}] if plain else []

    def _split(self, match: re.Match[str]) -> list[dict[str, Any]]:
        role = str(match.lastgroup)
        between = next(markup.between for markup in self._roles if markup.role == role)
        return [{"role": role, "content": text} for text in match[role].split(between)]

    @cached_property
    def _closing(self) -> str:
        """The markup after a model's turn."""
        return (self._markup_after([], after=_WORDS[1]) or ("",))[0]

    def _role_markup(self, role: str) -> _RoleMarkup | None:
        messages = [{"role": role, "content": word} for word in _WORDS[2:]]
        parts = self._markup_after(messages, after=_WORDS[1])
        if parts is None or len(parts) != len(_WORDS) - 1 or not parts[0].removeprefix(self._closing):
            return None
        before, between, close = parts
        return _RoleMarkup(role, before.removeprefix(self._closing), close, between or close)

    def _openings(self) -> list[str]:
        """Return the template's generation prompts, with and without thinking."""
        variants: list[dict[str, Any]] = [{}, {"enable_thinking": False}, {"enable_thinking": True}]
        rendered = [
            self._markup_after([], after=_WORDS[1], add_generation_prompt=True, **options) for options in variants
        ]
        openings = {parts[0].removeprefix(self._closing) for parts in rendered if parts}
        return sorted(openings, key=len, reverse=True)

    def _markup_after(self, further_messages: list[dict[str, Any]], *, after: str, **options: Any) -> list[str] | None:
        """Return the markup between the placeholders after `after`; None if the template drops them."""
        conversation = [{"role": "user", "content": _WORDS[0]}, {"role": "assistant", "content": _WORDS[1]}]
        text = self._decoder.rendered([*conversation, *further_messages], **{**self._templating, **options})
        if text is None or after not in text:
            return None
        return re.split("|".join(_WORDS[2:]), text.rpartition(after)[2])


def _any_of(texts: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, texts))})?"
