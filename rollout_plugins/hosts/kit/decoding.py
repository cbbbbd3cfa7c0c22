"""Decode token ids to text, and determine why a completion ended; all on the worker thread."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rollout_hookspecs import ToolCall

from rollout_plugins.hosts.kit.trainer_facts import tokenizer_of

logger = logging.getLogger("rollout_plugins")


class Decoder:
    """Decodes token ids with its own copy of the tokenizer, since two threads must not share one."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = options.get("rendered") or copy.deepcopy(tokenizer_of(trainer))
        self._eos_ids = eos_ids(trainer)

    def answer(self, ids: Sequence[int]) -> str:
        """Decode a completion without its end token, which `finish` records."""
        return self.text(ids[:-1] if ids and ids[-1] in self._eos_ids else ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def plain(self, ids: Sequence[int]) -> str:
        """Decode without special tokens, as TRL decodes a completion."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def message(self, ids: list[int], before: list[int]) -> dict[str, Any]:
        """Return one turn of the model as a message, parsed as TRL does if the tokenizer defines a response format."""
        schema = getattr(self._tokenizer, "response_schema", None)
        if schema is None and getattr(self._tokenizer, "response_template", None) is None:
            return {"role": "assistant", "content": self.plain(ids)}
        from trl.chat_template_utils import parse_response

        return dict(parse_response(self._tokenizer, ids, **({} if schema else {"prefix": before})))

    def rendered(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str | None:
        """Render messages with the chat template; return None if there is none or it raises."""
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except Exception as error:  # a template may raise anything
            logger.debug("the chat template refused %r: %r", messages, error)
            return None


def unpadded(ids: Any, mask: Any) -> list[list[int]]:
    """Return the rows of a tensor as lists, without the positions that the mask leaves out."""
    return [row[keep].tolist() for row, keep in zip(ids, mask.bool(), strict=True)]


def finish_of(last: int | None, ends: Collection[int], calls: Sequence[ToolCall]) -> Any:
    """Return why a completion ended, from its last token and the status of its calls."""
    if not ends or last is None:
        return "unknown"
    if last not in ends:
        return "length"
    not_run = [call for call in calls if call.status == "not_run"]
    if not_run:
        return "length" if any(call.error for call in not_run) else "tool_limit"
    return "stop"


def end_ids(trainer: Any) -> set[int]:
    """Return the token ids that end a completion or pad it."""
    pad = getattr(tokenizer_of(trainer), "pad_token_id", None)
    return eos_ids(trainer) | ({pad} if isinstance(pad, int) else set())


def eos_ids(trainer: Any) -> set[int]:
    """Return the token ids that end a completion."""
    sources = (
        getattr(trainer, "eos_token_ids", None),
        getattr(trainer, "eos_token_id", None),
        getattr(getattr(trainer, "generation_config", None), "eos_token_id", None),
        getattr(tokenizer_of(trainer), "eos_token_id", None),
    )
    ends = next((ids for ids in sources if ids or ids == 0), ())
    return {token for token in (ends if isinstance(ends, (list, tuple)) else (ends,)) if isinstance(token, int)}
