"""The demo's model, a Qwen3 with two thin layers that knows the shop badly. `.ci/checkpoint.py` created it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKPOINT = Path(__file__).parent / "tiny-shop"
_NO_TOOLS_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def load() -> tuple[Any, Any]:
    """Load the model and its tokenizer from files in this package."""
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    tokenizer = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    tokenizer.chat_template = chat_template()
    return Qwen3ForCausalLM.from_pretrained(CHECKPOINT).float(), tokenizer


def chat_template() -> str:
    """Return Qwen3's template from the installed TRL, which finds the parser of tool calls by comparing this text."""
    import trl

    with_tools = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    return with_tools.read_text(encoding="utf-8") if with_tools.exists() else _NO_TOOLS_TEMPLATE
