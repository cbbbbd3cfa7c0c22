"""Text of token ids, for trainers that have nothing else; on the worker thread."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_plugins.hosts.kit.building import eos_ids
from rollout_plugins.hosts.kit.trainer_facts import tokenizer_of


class Decoder:
    """Decodes with a tokenizer of its own: tokenizers object when two threads use one at the same time."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = options.get("rendered") or copy.deepcopy(tokenizer_of(trainer))
        self._eos_ids = eos_ids(trainer)

    def answer(self, ids: Sequence[int]) -> str:
        """All that the model wrote but the token that ended it, which `finish` tells."""
        return self.text(ids[:-1] if ids and ids[-1] in self._eos_ids else ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
