"""A vision model of a few thousand weights that trains without torchvision, and a tool that returns an image."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from PIL import Image
from rig import GRPO, scripted, tokenizer
from transformers import ProcessorMixin, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from trl import GRPOConfig, GRPOTrainer

MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (48, 40), (number * 60 % 255, 90, 160))


def look(number: int) -> list:
    """
    Look at a picture.

    Args:
        number: which
    """
    return [{"type": "image", "image": picture(number)}, {"type": "text", "text": f"picture {number}"}]


class ImagesOnly(Qwen3VLProcessor):
    """The stock processor insists on one for videos, which insists on torchvision."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.vision_start_token, self.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        for name in ("image", "video", "vision_start", "vision_end"):
            setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(getattr(self, f"{name}_token")))
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def processor() -> ImagesOnly:
    tok = tokenizer()
    tok.add_special_tokens({"additional_special_tokens": MARKS})
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    template = Path(inspect.getfile(GRPOTrainer)).parents[1] / "chat_templates" / "qwen3_vl.jinja"
    return ImagesOnly(Qwen2VLImageProcessorPil(size=size, patch_size=16), tok, chat_template=template.read_text())


def model(tok) -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(0)
    ids = {f"{name}_token_id": tok.convert_tokens_to_ids(mark) for name, mark in zip(_IDS, MARKS, strict=True)}
    config = Qwen3VLConfig(
        **ids,
        text_config={
            "vocab_size": len(tok), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 16,
            "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
    )  # fmt: skip
    made = Qwen3VLForConditionalGeneration(config)
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = tok.eos_token_id, tok.pad_token_id
    return made


_IDS = ("vision_start", "vision_end", "image", "video")


def make_vision(folder, script, *, tools, rows, rewards, callbacks=None, **config):
    """As `rig.make`, with a model that sees."""
    options = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "num_generations": 2,
        "max_completion_length": 200, "report_to": [], "use_cpu": True, "bf16": False, "logging_steps": 1,
        "save_strategy": "no", "disable_tqdm": True, "max_steps": 2, "seed": 7, "max_tool_calling_iterations": 1,
    } | config  # fmt: skip
    proc = processor()
    trainer = GRPO(
        model(proc.tokenizer), reward_funcs=rewards, args=GRPOConfig(**options), train_dataset=rows,
        processing_class=proc, tools=tools, callbacks=callbacks,
    )  # fmt: skip
    trainer.truth = []
    trainer.model.generate = scripted(trainer, script)
    return trainer
