"""Make the demo's checkpoint: supervised training on shopping dialogues that often go wrong.

    python .ci/checkpoint.py [folder]

The demonstrations mix right calls with wrong arguments, tools that don't exist, broken JSON and plain guesses,
so that GRPO has something to improve. Prices are drawn anew for each dialogue: the model has to read what the
tool answered and can't learn the shop by heart.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout_plugins.demo import shop
from rollout_plugins.testing.model import CHECKPOINT, chat_template

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MARKER = re.compile(r"</?(?:think|tool_call|tool_response)>")
# A number or a word is one token wherever it stands, so that filling in an argument is copying one token.
CHUNKS = r"\p{N}{1,3}|\p{L}+(?: \p{L}+)*|[^\p{N}\p{L}]+"
TURNS = 5
STEPS = 1200
FLAWLESS = 500  # first steps: nothing but copying, which is learned sooner without the mistakes
SHORT = 900  # steps without the long text that lists the tools, to save time
BATCH = 32
LEARNING_RATE = 3e-3

Call = tuple[str, dict[str, Any]]
Move = str | list[Call]  # what the assistant does in one turn: it says something, or calls tools


@dataclass
class Dialogue:
    """A demonstration in the making."""

    rng: random.Random
    item: str
    amount: int
    price: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    flawless: bool = False
    found: int | None = None
    total: int | None = None
    failed: bool = False

    def add(self, move: Move) -> None:
        text = move if isinstance(move, str) else "\n".join(written(*call) for call in move)
        self.messages.append({"role": "assistant", "content": text})
        for call in move if isinstance(move, list) else []:
            self.messages.append({"role": "tool", "name": call[0], "content": str(self._run(*call))})

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Answer as TRL's tool loop does, with this dialogue's own price."""
        self.failed = False
        try:
            result = _tool(name)(**arguments)
        except Exception as error:
            self.failed = True
            return {"error": str(error)}
        if name == "price":
            self.found = self.price
            return self.price
        self.total = result
        return result


def written(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def dialogue(rng: random.Random, *, flawless: bool = False) -> list[dict[str, Any]]:
    """One conversation, from the question to whatever it ends with."""
    item, amount, price = rng.choice(sorted(shop.PRICES)), rng.choice(shop.AMOUNTS), rng.randint(2, 19)
    question = rng.choice(shop.WORDINGS).format(n=amount, item=item)
    talk = Dialogue(rng, item, amount, price, [{"role": "user", "content": question}], flawless)
    for _ in range(TURNS):
        move = _next(talk)
        talk.add(move)
        if isinstance(move, str):
            break
    return talk.messages


def _next(talk: Dialogue) -> Move:
    moves = _finishing(talk) if talk.total else _multiplying(talk) if talk.found else _looking_up(talk)
    if talk.flawless:
        return moves[0][1]
    if talk.failed:
        moves = [(0.7, moves[0][1]), (0.3, "I could not find the price."), *moves]
    weights, choices = zip(*moves, strict=True)
    move: Move = talk.rng.choices(choices, weights)[0]
    return move


def _looking_up(talk: Dialogue) -> list[tuple[float, Move]]:
    guess = talk.rng.randint(2, 19)
    return [
        (0.40, [("price", {"item": talk.item})]),
        (0.11, [("price", {"item": talk.item.removesuffix("s")})]),
        (0.08, [("price", {"name": talk.item})]),
        (0.12, [("get_price", {"item": talk.item})]),
        (0.09, written("price", {"item": talk.item}).replace("}}", "}")),
        (0.12, f"The total is {talk.amount * guess}."),
        (0.04, [("multiply", {"a": talk.amount, "b": guess})]),
        (0.04, [("price", {"item": talk.item}), ("multiply", {"a": talk.amount, "b": guess})]),
    ]


def _multiplying(talk: Dialogue) -> list[tuple[float, Move]]:
    right = {"a": talk.amount, "b": talk.found}
    return [
        (0.46, [("multiply", right)]),
        (0.11, [("multiply", {"a": talk.found, "b": talk.found})]),
        (0.09, [("multiply", {"a": talk.amount})]),
        (0.14, [("calculate", {"expression": f"{talk.amount} * {talk.found}"})]),
        (0.09, written("multiply", right).replace('"multiply"', "multiply")),
        (0.11, f"The total is {talk.found}."),
    ]


def _finishing(talk: Dialogue) -> list[tuple[float, Move]]:
    again: Move = [("multiply", {"a": talk.amount, "b": talk.found or talk.amount})]
    return [(0.85, f"The total is {talk.total}."), (0.09, again), (0.06, f"The total is {talk.found or talk.amount}.")]


def _tool(name: str) -> Any:
    known = {"price": shop.price, "multiply": shop.multiply}
    if name not in known:
        raise ValueError(f"Tool {name} not found.")
    return known[name]


def rendered(talks: Sequence[list[dict[str, Any]]], *, tools: Sequence[Any] | None) -> list[str]:
    """The conversations as TRL builds them up turn by turn: without the empty thoughts of Qwen3's template."""
    template = _tokenizer_around(_untrained())
    texts = (template.apply_chat_template(talk, tools=tools, tokenize=False) for talk in talks)
    return [text.replace("<think>\n\n</think>\n\n", "") for text in texts]


def build_tokenizer(texts: Sequence[str]) -> Any:
    from tokenizers import AddedToken, pre_tokenizers, trainers

    core = _untrained()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, min_frequency=2, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator((MARKER.sub("\n", text) for text in texts), trainer)
    # As in Qwen3, markers are no special tokens: a malformed call keeps them when it is decoded to text.
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKERS])
    return _tokenizer_around(core)


def _untrained() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(CHUNKS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    core.decoder = decoders.ByteLevel()
    return core


def _tokenizer_around(core: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    padding, _, end = CONTROL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, pad_token=padding, padding_side="left")
    tokenizer.chat_template = chat_template()
    return tokenizer


def labelled(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """The ids the assistant wrote, -100 (ignored by the loss) elsewhere."""
    header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    labels, writing = [], False
    for place, token in enumerate(ids):
        labels.append(token if writing else -100)
        if writing and token == tokenizer.eos_token_id:
            writing = False
        elif list(ids[place + 1 - len(header) : place + 1]) == header:
            writing = True
    return labels


def batches(texts: Sequence[str], tokenizer: Any) -> Iterator[dict[str, Any]]:
    import torch

    for start in range(0, len(texts), BATCH):
        rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts[start : start + BATCH]]
        longest = max(map(len, rows))
        ids = [row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows]
        labels = [labelled(row, tokenizer) + [-100] * (longest - len(row)) for row in rows]
        # No attention mask: what pads the right end is never looked at from the left of it.
        yield {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def build_model(tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def warm_up(model: Any, texts: Sequence[str], tokenizer: Any) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    for step, batch in enumerate(batches(texts, tokenizer), start=1):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}/{STEPS}: loss {loss.item():.3f}", flush=True)


def main(folder: Path = CHECKPOINT) -> None:
    import torch

    torch.set_num_threads(1)  # sums in one order: the same checkpoint each time
    rng = random.Random(0)
    talks = [dialogue(rng, flawless=place < FLAWLESS * BATCH) for place in range(STEPS * BATCH)]
    short = SHORT * BATCH
    texts = rendered(talks[:short], tools=None) + rendered(talks[short:], tools=[shop.price, shop.multiply])
    tokenizer = build_tokenizer(texts[-5000:])
    model = build_model(tokenizer)
    warm_up(model, texts, tokenizer)
    tokenizer.chat_template = None  # `load` takes the one of the installed TRL
    tokenizer.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
