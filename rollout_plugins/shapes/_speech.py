"""Turn a sequence of tokens into messages when only the model's own tokens are marked."""

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
    """Return a function from ids to text for the worker thread. Tokenizers raise if two threads use one
    concurrently.
    """
    if hasattr(tokenizer, "decode"):
        return _own_copy(tokenizer).decode  # type: ignore[no-any-return]
    if callable(tokenizer):
        return tokenizer  # type: ignore[no-any-return]
    raise SetupError(
        f"tokenizer is of type {type(tokenizer).__name__}: give a tokenizer, or a function from ids to text"
    )


def _own_copy(tokenizer: Any) -> Any:
    """Return a cached copy, or the tokenizer itself if it can't be copied."""
    try:
        if tokenizer not in _copies:
            _copies[tokenizer] = copy.deepcopy(tokenizer)
        return _copies[tokenizer]
    except Exception:
        return tokenizer


class TokenSpans(NamedTuple):
    """A sequence of token ids, with a `mask` that is 1 for each token that the model wrote."""

    ids: Sequence[int]
    mask: Sequence[int]

    @property
    def prompt_length(self) -> int:
        """How many tokens precede the first token of the model."""
        return next((position for position, is_model in enumerate(self.mask) if is_model), len(self.ids))

    def prompt(self, decode: Decode) -> tuple[dict[str, Any], ...]:
        """Return the tokens before the model's first as one user message, which includes the chat template's own
        tokens.
        """
        return ({"role": "user", "content": decode(list(self.ids[: self.prompt_length]))},)

    def completion(self, decode: Decode) -> tuple[dict[str, Any], ...]:
        """Return one message per stretch of tokens: the model's as assistant, those in between as tool or user."""
        if len(self.ids) != len(self.mask):
            raise ValueError("ids and mask differ in length")
        messages, start = [], self.prompt_length
        for is_model, stretch in groupby(map(bool, self.mask[start:])):
            end = start + sum(1 for _ in stretch)
            messages.append(_message(is_model, decode(list(self.ids[start:end]))))
            start = end
        return tuple(messages)

    def tokens(self, logprobs: Sequence[float] | None) -> Tokens:
        """Return the tokens for the store; `logprobs` are those of the whole sequence."""
        start = self.prompt_length
        return Tokens(
            prompt=list(self.ids[:start]),
            completion=list(self.ids[start:]),
            mask=[int(bool(is_model)) for is_model in self.mask[start:]],
            logprobs=list(logprobs[start:]) if logprobs is not None else None,
        )


def _message(is_model: bool, text: str) -> dict[str, Any]:
    if is_model:
        return {"role": "assistant", "content": text}
    return {"role": "tool" if any(mark in text for mark in _TOOL_MARKS) else "user", "content": text}
