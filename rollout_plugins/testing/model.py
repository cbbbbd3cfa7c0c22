"""The demo's model: a Qwen3 of two thin layers that knows the shop, badly. `.ci/checkpoint.py` made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKPOINT = Path(__file__).parent / "tiny-shop"


def load() -> tuple[Any, Any]:
    """The model and its tokenizer, from files in this package."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    tokenizer.chat_template = chat_template()
    return model, tokenizer


def chat_template() -> str:
    """Qwen3's, as the installed TRL ships it: TRL finds the parser of tool calls by comparing this text."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
