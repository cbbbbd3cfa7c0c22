"""Compare exported conversations with the token ids that were recorded for them.

A chat template may render a stored conversation differently from what the model read and wrote: some add an empty
`<think>` block, or drop the reasoning of earlier turns. A model that is trained on such a row learns another text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Run

from rollout_plugins.content.json_safe import to_json_safe
from rollout_plugins.errors import RunError, need
from rollout_plugins.learn.stored_messages import Conversation

if TYPE_CHECKING:
    from rollout_plugins.learn.exported import Exported


class RenderingCheck:
    """Renders conversations with a tokenizer and its chat template, and compares them with recorded token ids."""

    def __init__(self, tokenizer: Any, run: Run, exported: Exported) -> None:
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        if not getattr(self._tokenizer, "chat_template", None):
            raise RunError(f"the tokenizer {tokenizer!r} has no chat template, so it cannot render conversations")
        self._options = dict(run.settings.get("chat_template_kwargs") or {})
        self._options["tools"] = [to_json_safe(tool) for tool in run.tools] or None
        self._exported = exported

    def compare(self, rollout_id: str, prompt: Conversation, completion: Conversation, tokens: Any) -> None:
        """Note whether a rollout renders to other token ids than those that were recorded."""
        if not tokens or not tokens["prompt"] or not tokens["completion"]:
            if self._exported.checked is None:
                self._exported.unchecked_reason = "no token ids were recorded: tokens=True records them"
            return
        self._exported.checked = (self._exported.checked or 0) + 1
        recorded = [*tokens["prompt"], *tokens["completion"]]
        if not self._renders_to(recorded, [*prompt.messages, *completion.messages]):
            self._exported.differing.append(rollout_id)

    def _renders_to(self, recorded: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> bool:
        try:
            rendered = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **self._options)
        except Exception:  # a template that refuses the conversation does not render it as recorded
            return False
        ids = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        # Templates end a turn with a line break that the model does not write.
        is_start = list(ids[: len(recorded)]) == recorded
        return is_start and not self._tokenizer.decode(ids[len(recorded) :]).strip()


def load_tokenizer(name: str | os.PathLike[str]) -> Any:
    """Return the tokenizer of this name or folder."""
    transformers = need("transformers", "trl")
    try:
        return transformers.AutoTokenizer.from_pretrained(os.fspath(name))
    except (OSError, ValueError) as error:
        raise RunError(
            f"no tokenizer could be loaded from {os.fspath(name)!r}: {str(error).splitlines()[0]}"
        ) from error
