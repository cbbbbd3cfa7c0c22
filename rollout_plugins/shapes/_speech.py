"""Who said what in a sequence of tokens of which only the model's own are known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from rollout_hookspecs import Tokens

from rollout_plugins.errors import SetupError

Decode = Callable[[list[int]], str]
_TOOL_MARKS = ("<tool_response>", "<|im_start|>tool", "<|start_header_id|>ipython", "[TOOL_RESULTS]")
_copies: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def decoder(tokenizer: Any) -> Decode:
    """A function from ids to text for the worker thread: tokenizers raise when two threads use one at once."""
    if hasattr(tokenizer, "decode"):
        return _own_copy(tokenizer).decode  # type: ignore[no-any-return]
    if callable(tokenizer):
        return tokenizer  # type: ignore[no-any-return]
    raise SetupError(
        f"tokenizer is of type {type(tokenizer).__name__}; give a tokenizer, or a function from ids to text"
    )


def _own_copy(tokenizer: Any) -> Any:
    """A copy, made once; the tokenizer itself if it can't be copied."""
    try:
        if tokenizer not in _copies:
            _copies[tokenizer] = copy.deepcopy(tokenizer)
        return _copies[tokenizer]
    except Exception:
        return tokenizer


class Speech(NamedTuple):
    """A sequence of token ids, 1 in `mask` where the model wrote one."""

    ids: Sequence[int]
    mask: Sequence[int]

    @property
    def prompt_length(self) -> int:
        """Tokens before the model's first."""
        return next((place for place, wrote in enumerate(self.mask) if wrote), len(self.ids))

    def prompt(self, decode: Decode) -> tuple[dict[str, Any], ...]:
        """What the model was given first, as one message of the user: the template's own words are in it."""
        return ({"role": "user", "content": decode(list(self.ids[: self.prompt_length]))},)

    def completion(self, decode: Decode) -> tuple[dict[str, Any], ...]:
        """A message for each stretch: the model's are the assistant's, those between a tool's or the user's."""
        if len(self.ids) != len(self.mask):
            raise ValueError("ids and mask differ in length")
        made, start = [], self.prompt_length
        for wrote, some in groupby(map(bool, self.mask[start:])):
            end = start + sum(1 for _ in some)
            made.append(_message(wrote, decode(list(self.ids[start:end]))))
            start = end
        return tuple(made)

    def tokens(self, logprobs: Sequence[float] | None) -> Tokens:
        """For the store; log-probabilities of the whole sequence."""
        start = self.prompt_length
        return Tokens(
            prompt=list(self.ids[:start]),
            completion=list(self.ids[start:]),
            mask=[int(bool(wrote)) for wrote in self.mask[start:]],
            logprobs=list(logprobs[start:]) if logprobs is not None else None,
        )


def _message(wrote: bool, text: str) -> dict[str, Any]:
    if wrote:
        return {"role": "assistant", "content": text}
    return {"role": "tool" if any(mark in text for mark in _TOOL_MARKS) else "user", "content": text}
