"""The tokens of a rollout, coloured by probability or by whether they are trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rollout_hookspecs import Tokens

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.blocks import Block
from rollout_plugins.show.text import clean, number

_LIKELY = ((0.9, ""), (0.5, "green"), (0.1, "yellow"), (0.01, "dark_orange"), (0.0, "bold red"))
_APART = ((0.02, ""), (0.1, "yellow"), (0.5, "dark_orange"), (math.inf, "bold red"))
_NOTHING = "dim"

Decode = Callable[[int], str]


def colourings(tokens: Tokens | None) -> list[str]:
    """Return the ways in which these tokens can be coloured."""
    if tokens is None or not tokens.completion:
        return []
    available = [
        ("log-prob", bool(tokens.logprobs)),
        ("trainer against sampler", bool(tokens.logprobs and tokens.trainer_logprobs)),
        ("mask", bool(tokens.mask)),
    ]
    return [name for name, is_available in available if is_available] or ["ids"]


def token_blocks(tokens: Tokens, colouring: str, decode: Decode | None) -> Iterator[Block]:
    """Yield the completion's tokens, with a legend above them, and the prompt's tokens below, folded."""
    text = decode or _id
    yield Block("head", list(_legend(tokens, colouring)))
    if decode is None:
        yield Block(
            "head", [("only ids: the run's model is not a folder with a tokenizer.json on this machine", "dim")]
        )
    styles = _styles(tokens, colouring)
    spans = [(clean(text(token)), style) for token, style in zip(tokens.completion or (), styles, strict=False)]
    yield Block("tokens", spans or [("(none)", "dim")], label="completion", turn=0, gap=True)
    if tokens.prompt:
        prompt = "".join(clean(text(token)) for token in tokens.prompt)
        yield Block("system", [(prompt, "dim")], label="prompt", turn=1, least=3, gap=True)


def _id(token: int) -> str:
    return f"{token} "


def _legend(tokens: Tokens, colouring: str) -> Iterator[tuple[str, str]]:
    yield f"{len(tokens.completion or ()):,} tokens by {colouring}   ", "bold"
    if colouring == "log-prob":
        yield from _named(("p ≥ 0.9", "≥ 0.5", "≥ 0.1", "≥ 0.01", "below"), _LIKELY)
        yield f"  {_summary(tokens.logprobs or ())}", "dim"
    elif colouring == "mask":
        yield "written by the model  ", "green"
        yield "not trained", "dim"
    elif colouring != "ids":
        yield from _named(("within 0.02", "0.1", "0.5", "beyond"), _APART)


def _named(names: Sequence[str], scale: Sequence[tuple[float, str]]) -> Iterator[tuple[str, str]]:
    return ((f"{name}  ", style) for name, (_, style) in zip(names, scale, strict=True))


def _summary(logprobs: Sequence[Any]) -> str:
    numbers = [value for value in map(finite, logprobs) if value is not None]
    return f"mean {number(sum(numbers) / len(numbers))}, least {number(min(numbers))}" if numbers else ""


def _styles(tokens: Tokens, colouring: str) -> Iterator[str]:
    """Yield the style of each completion token; dim if its value is unknown."""
    count = len(tokens.completion or ())
    sampler, trainer, mask = (_filled(v, count) for v in (tokens.logprobs, tokens.trainer_logprobs, tokens.mask))
    for logprob, other, trained in zip(sampler, trainer, mask, strict=True):
        if colouring == "mask":
            yield "green" if trained else _NOTHING
        elif colouring == "log-prob":
            likely = None if logprob is None else math.exp(min(logprob, 0.0))
            yield _NOTHING if likely is None else next(style for low, style in _LIKELY if likely >= low)
        elif colouring == "ids" or logprob is None or other is None:
            yield "" if colouring == "ids" else _NOTHING
        else:
            yield next(style for high, style in _APART if abs(other - logprob) <= high)


def _filled(values: Sequence[Any] | None, count: int) -> list[float | None]:
    numbers = [finite(value) for value in values or ()][:count]
    return [*numbers, *([None] * (count - len(numbers)))]


def decoder(model: str) -> Decode | None:
    """Return a function that decodes ids with the tokenizer in the model's folder; None without one. It never
    downloads.
    """
    file = Path(model) / "tokenizer.json"
    try:
        if not model or not file.is_file():
            return None
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # `tokenizers` is missing or cannot read the file, so ids are shown
        return None

    def decode(token: int) -> str:
        piece = tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        text = str(tokenizer.decode([token], skip_special_tokens=False))
        return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text

    return decode
