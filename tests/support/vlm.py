"""A vision-language model of a few thousand weights for the real trainers, built from configs, without torchvision."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from datasets import Dataset
from PIL import Image
from rig import make, tokenizer
from transformers import ProcessorMixin, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from trl import GRPOTrainer

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_saved: dict[str, Path] = {}


class ImagesOnly(Qwen3VLProcessor):
    """The stock processor wants a video processor, which wants torchvision."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        names = ("vision_start", "vision_end", "image", "video")
        for name, token in zip(names, VISION, strict=True):
            setattr(self, f"{name}_token", token)
            setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))


def processor():
    words = tokenizer()
    words.add_tokens(VISION, special_tokens=True)
    template = Path(inspect.getfile(GRPOTrainer)).parents[1] / "chat_templates" / "qwen3_vl.jinja"
    pixels = Qwen2VLImageProcessorPil(size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64}, patch_size=16)
    return ImagesOnly(pixels, words, chat_template=template.read_text())


def model(words) -> Qwen3VLForConditionalGeneration:
    text = {
        "vocab_size": len(words), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 16,
        "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    start, end, image, video = words.convert_tokens_to_ids(VISION)
    ids = {
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "image_token_id": image,
        "video_token_id": video,
    }
    torch.manual_seed(0)
    made = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **ids))
    made.generation_config.eos_token_id = words.eos_token_id
    made.generation_config.pad_token_id = words.pad_token_id
    return made


def saved_model(folder: Path, words) -> str:
    """On disk, as RLOO loads its reference model by name; made once per process."""
    if "model" not in _saved:
        _saved["model"] = folder / "tiny-vlm"
        model(words).save_pretrained(_saved["model"])
    return str(_saved["model"])


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (48, 40), (number * 30 % 255, 9, 9))


def look(n: int) -> list:
    """
    Look at a picture.

    Args:
        n: which one
    """
    return [{"type": "image", "image": picture(n)}, {"type": "text", "text": f"seen {n}"}]


def rows(count: int = 4, **columns) -> Dataset:
    prompts = [[{"role": "user", "content": f"what color is {i}"}] for i in range(count)]
    return Dataset.from_dict({"prompt": prompts, **columns})


def make_vlm(folder, dataset, script=None, **config):
    """As `rig.make`, with a model that sees."""
    made = processor()
    model = saved_model(Path(folder), made.tokenizer)
    return make(folder, script, rows=dataset, model=model, processing_class=made, **config)
