"""Find out what a tokenizer's chat template supports for training with tools, from TRL where it knows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from rollout_plugins.errors import need
from rollout_plugins.show.text import one_line

_TURN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
_ADVICE = {
    "tools": "tool calls do not show: take a model made for tools, or set a tokenizer.chat_template that has them",
    "prefix-preserving": "a later message changes how earlier ones are written: {training}set tokenizer.chat_template "
    "to a variant that keeps reasoning and calls as they were",
    "parses answers": "calls in answers cannot be found: set tokenizer.response_template (transformers 5.13 or newer)",
    "ends its turn": "turns end with {end}, generation stops at {eos}: set generation_config.eos_token_id to {end}, "
    "or every answer runs to its limit",
}


def facts(name: str) -> dict[str, Any]:
    """Return one row of the table; `do` holds a sentence with advice for each no."""
    need("transformers", "trl")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        return {"tokenizer": name, "do": [f"cannot be loaded: {one_line(error, 200)}"]}
    if tokenizer.chat_template is None:
        return {"tokenizer": name, "do": ["no chat template: prompts must be plain text, and tools cannot be used"]}
    end = end_of_turn(tokenizer)
    row = {
        "tokenizer": name,
        "tools": _asked("supports_tool_calling", tokenizer),
        "prefix-preserving": _asked("is_chat_template_prefix_preserving", tokenizer),
        "parses answers": _parses(tokenizer),
        "ends its turn": None if end is None else end in stops(tokenizer, name),
        "end of turn": end,
    }
    words = {"end": end, "eos": tokenizer.eos_token, "training": _training(tokenizer)}
    todo = [advice.format(**words) for fact, advice in _ADVICE.items() if row[fact] is False]
    said = {fact: _yes(value) if fact in _ADVICE else value for fact, value in row.items()}
    return {**said, "do": todo}


def _yes(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, "not known")


def _asked(question: str, tokenizer: Any) -> bool | None:
    """Return TRL's own answer, or None if the installed TRL has none."""
    function = _trl(question)
    if function is None:
        return None
    try:
        return bool(function(tokenizer))
    except Exception:  # a template that fails on these messages does not support the feature
        return False


def _trl(name: str) -> Callable[..., Any] | None:
    try:
        from trl import chat_template_utils
    except ImportError:
        return None
    return getattr(chat_template_utils, name, None)


def _parses(tokenizer: Any) -> bool | None:
    """Return whether answers can be parsed, by the tokenizer itself or by what TRL adds for known templates."""
    if any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema")):
        return True
    add = _trl("add_response_schema")
    if add is None:
        return None
    try:
        add(copy.deepcopy(tokenizer))
    except Exception:
        return False
    return True


def _training(tokenizer: Any) -> str:
    """Return whether TRL replaces the template."""
    patched = _trl("get_training_chat_template")
    try:
        known = patched is not None and patched(tokenizer) is not None
    except Exception:
        known = False
    return "TRL puts its own training template in its place, or " if known else ""


def end_of_turn(tokenizer: Any) -> str | None:
    """Return the special token that ends an assistant's turn."""
    try:
        text = tokenizer.apply_chat_template([*_TURN, {"role": "user", "content": "bye"}], tokenize=False)
    except Exception:
        return None
    after = text.partition("hello")[2].lstrip()
    special = sorted({*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}, key=len, reverse=True)
    return next((token for token in special if after.startswith(token)), None)


def stops(tokenizer: Any, name: str) -> set[str]:
    """Return the tokens that end generation, from the tokenizer and from the model beside it."""
    from transformers import GenerationConfig

    found = {tokenizer.eos_token}
    try:
        ids = GenerationConfig.from_pretrained(name).eos_token_id
    except Exception:  # a tokenizer without a model
        return found
    return found | set(
        tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids]) if ids is not None else []
    )
