"""A vision model that every supported TRL and transformers can train."""

from __future__ import annotations

import torch
from rig import tokenizer
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen3Config

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def seeing(folder):
    """A LLaVA of a few thousand weights, which needs no torchvision on any transformers."""
    try:
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Pictures
    except ImportError:
        from transformers import CLIPImageProcessor as Pictures
    tok = tokenizer()
    tok.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = LlavaProcessor(
        Pictures(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}), tok, patch_size=14,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, image_token="<image>", chat_template=TEMPLATE,
    )  # fmt: skip
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14,
        projection_dim=16,
    )  # fmt: skip
    text = Qwen3Config(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=tok.convert_tokens_to_ids("<image>"), image_seq_length=4
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = tok.eos_token_id, tok.pad_token_id
    model.save_pretrained(folder / "seeing")
    processor.save_pretrained(folder / "seeing")
    return str(folder / "seeing"), processor
