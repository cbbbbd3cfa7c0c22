"""Runs for the report's tests, written by the real pipeline: of every kind that people have."""

from __future__ import annotations

import random
from dataclasses import replace
from io import BytesIO

from faults import raises
from PIL import Image as Pil
from PIL import ImageDraw
from rollout_hookspecs import Panel, Rollout, ToolCall
from store_rig import Sink, batch, pipeline, run_in

from rollout_plugins import RolloutRecorder, hookimpl, open_run
from rollout_plugins.plugins.images import Images
from rollout_plugins.testing import hostile_rollouts

SYSTEM = "You are a careful assistant in a shop. Use the tools, and say the total in one sentence."
ITEMS = ("books", "hats", "lamps", "pens", "chairs", "cups", "maps", "keys")
TOOLS = (
    {"type": "function", "function": {"name": "price", "description": "The price of an item.", "parameters": {}}},
    {"type": "function", "function": {"name": "multiply", "description": "Multiply.", "parameters": {}}},
)
SETTINGS = {"learning_rate": 1e-5, "temperature": 0.9, "max_completion_length": 512, "beta": 0.0}


def shop(step, group, index, *, rng, **fields):
    """One of eight answers to a question that comes back every few steps; better ones later."""
    item, number, price = ITEMS[group % 8], 2 + group % 7, 3 + group % 5
    good = rng.random() < 0.25 + 0.06 * step
    seconds = rng.random() / 20
    asked = {"type": "function", "function": {"name": "price", "arguments": {"item": item}}}
    first = {
        "role": "assistant",
        "content": "",
        "reasoning_content": f"I need the price of {item} first.",
        "tool_calls": [asked],
    }
    found = {"role": "tool", "content": str(price)}
    calls = [ToolCall(name="price", arguments={"item": item}, turn=0, reply=1, result=str(price), seconds=seconds)]
    if good:
        last = {"role": "assistant", "content": f"{number} {item} at {price} each: the total is {number * price}."}
        completion = (first, found, last)
    else:
        wrong = {"type": "function", "function": {"name": "multiply", "arguments": {"a": number}}}
        failed = {"role": "tool", "content": "{'error': \"multiply() missing 1 required argument: 'b'\"}"}
        error = "TypeError: multiply() missing 1 required argument: 'b'"
        calls.append(
            ToolCall(
                name="multiply",
                arguments={"a": number},
                turn=2,
                reply=3,
                result=failed["content"],
                error=error,
                status="error",
                seconds=0.002,
            )
        )
        completion = (
            first,
            found,
            {"role": "assistant", "content": None, "tool_calls": [wrong]},
            failed,
            {"role": "assistant", "content": f"I guess the total is {number + price}, but I am not sure."},
        )
    rewards = {"correct": float(good), "brief": round(rng.uniform(0.2, 1.0), 3)}
    return Rollout(**{
        "id": "", "step": step, "policy_step": step - 1, "generation": step, "index": group * 8 + index, "group": group, "group_size": 8,
        "prompt": ({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"I buy {number} {item}. What is the total?"}),
        "completion": completion, "tool_calls": tuple(calls), "rewards": rewards, "reward": 0.8 * rewards["correct"] + 0.2 * rewards["brief"],
        "advantage": rng.gauss(0, 1), "prompt_tokens": 58, "completion_tokens": rng.randrange(30, 140), "finish": "stop" if good or rng.random() < 0.6 else "length",
        "columns": {"item": item, "total": number * price}, "marks": {"cap": "kept: best of its step"} if index == 0 else {},
    } | fields)  # fmt: skip


def fill(folder, steps, *, attempt=1, plugins=(), evaluate=True, groups=2, close=True, untrained=None, **facts):
    """Train for these steps: two groups of eight each, and an evaluation every four."""
    rng = random.Random(attempt)
    named = {
        "reward_names": ("correct", "brief"),
        "reward_weights": (0.8, 0.2),
        "num_generations": 8,
        "trainer": "GRPOTrainer",
    }
    about = {
        "model": "Qwen/Qwen3-0.6B",
        "tools": TOOLS,
        "settings": SETTINGS,
        "versions": {"trl": "1.16.0", "torch": "2.13.0"},
    }
    line = pipeline(*plugins)
    line.start(run_in(folder, **{**named, **about, "attempt": attempt, **facts}))
    for step in steps:
        train = [shop(step, (step * groups + g) % 8, i, rng=rng) for g in range(groups) for i in range(8)]
        line.submit(batch(train, step=step))
        if evaluate and step % 4 == 0:
            tests = [shop(step, g, i, rng=rng, split="eval", group_size=2) for g in range(4) for i in range(2)]
            line.submit(batch(tests, step=step, split="eval"))
    for reason, count in (untrained or {}).items():
        line.count_untrained(reason, count, None)
    assert line.drain(600)
    if close:
        line.close()
    return folder / "r1"


def picture(number, side=160):
    image = Pil.new("RGB", (side * 2, side), (245, 240, 228))
    draw = ImageDraw.Draw(image)
    for place in range(number % 5 + 2):
        draw.rectangle(
            [12 + place * 56, side - 20 - (place * 37 + number * 23) % (side - 50), 52 + place * 56, side - 14],
            fill=(40 + number * 20 % 180, 100, 160),
        )
    return image


def seen(folder, *, count=6, side=160):
    """A run whose prompts and tool results hold images; siblings share theirs."""
    line = pipeline(Images())
    line.start(run_in(folder, model="Qwen/Qwen3-VL-2B", reward_names=("half",)))
    for step in range(1, count + 1):
        look = {"type": "image", "image": picture(step, side)}
        tool = {"type": "image", "image": picture(step + 20, side)}
        rollouts = [
            Rollout(
                id="", step=step, generation=step, index=index, group=0, group_size=4,
                prompt=({"role": "user", "content": [look, {"type": "text", "text": "How many bars are there, and which is the tallest?"}]},),
                completion=(
                    {"role": "assistant", "content": "Let me look closer.", "tool_calls": [{"type": "function", "function": {"name": "zoom", "arguments": {"x": index}}}]},
                    {"role": "tool", "content": [tool, {"type": "text", "text": "the left half"}]},
                    {"role": "assistant", "content": f"There are {step % 5 + 2} bars."},
                ),
                tool_calls=(ToolCall(name="zoom", arguments={"x": index}, turn=0, reply=1, result=[tool, {"type": "text", "text": "the left half"}], seconds=0.4),),
                rewards={"half": index / 2}, reward=index / 2,
            )
            for index in range(4)
        ]  # fmt: skip
        line.submit(batch(rollouts, step=step))
    assert line.drain(600)
    line.close()
    return folder / "r1"


def resumed(folder):
    """A run that died at step 9, with a sink that missed all and two rollouts not trained on; it went on from step 6."""
    fill(folder, range(1, 10), plugins=[Sink(raises)], untrained={"stale": 2})
    fill(folder, range(7, 14), attempt=2, resumed_from=6)
    return folder / "r1"


def few(folder):
    """A run of three tool calls a step, of which two fail."""
    rows = []
    for index in range(3):
        said = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "price", "arguments": {}}}]}
        call = ToolCall(name="price", arguments={}, turn=0, status="error" if index else "ok")
        rows.append({"prompt": "go", "completion": [said], "reward": 1.0, "tool_calls": [call]})
    with RolloutRecorder(dir=folder, autoload=False) as recorder:
        for step in (1, 2, 3):
            recorder.record(step, rows)


def empty(folder):
    fill(folder, ())
    return folder / "r1"


def hostile(folder, *more):
    """Everything hostile there is in a run, as its store keeps it."""
    line = pipeline(Images())
    line.start(run_in(folder))
    made = [*hostile_rollouts(), *more]
    line.submit(batch([replace(one, index=at, group=at // 4, group_size=4) for at, one in enumerate(made)], step=1))
    assert line.drain(600)
    line.close()
    return open_run(folder)


class Boards:
    """A plugin whose panels stand in the place of a message and beside it."""

    @hookimpl
    def show_rollout(self, rollout):
        image = BytesIO()
        picture(1).save(image, format="PNG")
        table = [["move", "score"], ["e4", 0.5]]
        return [
            Panel(title="Board", text="x o\no x", turn=0, replaces=True),
            Panel(title="Moves", table=table, image=image.getvalue()),
        ]
