"""`rollout_func`s that play what a test wrote, and the messages that come of it."""

from __future__ import annotations

from itertools import cycle

import pytest
import trl
from packaging.version import Version

since_1 = pytest.mark.skipif(
    Version(trl.__version__) < Version("1.0"), reason="log_extra, and response templates, came with TRL 1.0"
)
END = "<|im_end|>"
TOLD = {"turns": "separated by env_mask; the trainer had them as one message"}


def said(text):
    return {"role": "assistant", "content": text}


def heard(text, role="user"):
    return {"role": role, "content": text}


def played(episodes, *, masked=True, **fields):
    """A `rollout_func` that plays these episodes: pieces of text or ids, each with whether the model wrote it."""
    waiting = cycle(episodes)

    def play(prompts, trainer):
        def ids_of(piece):
            return (
                piece
                if isinstance(piece, list)
                else trainer.processing_class(piece, add_special_tokens=False)["input_ids"]
            )

        made = [[(ids_of(piece), wrote) for piece, wrote in next(waiting)] for _ in prompts]
        out = {
            "prompt_ids": [
                ids_of(f"<|im_start|>user\n{i}{END}\n<|im_start|>assistant\n") for i in range(len(prompts))
            ],
            "completion_ids": [[token for ids, _ in one for token in ids] for one in made],
            "env_mask": [[wrote for ids, wrote in one for _ in ids] for one in made],
        }
        out["logprobs"] = [[-0.5] * len(ids) for ids in out["completion_ids"]]
        if not masked:
            del out["env_mask"]
        return out | {name: value(len(prompts)) for name, value in fields.items()}

    return play


def between(text, role="user"):
    return f"\n<|im_start|>{role}\n{text}{END}\n<|im_start|>assistant\n"
