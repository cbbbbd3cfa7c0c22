"""The demo's training run: GRPOTrainer with two tools, and rollout-plugins attached in the usual way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollout_plugins.errors import need

STEPS = 10
QUESTIONS = 8
"""The number of questions. A step uses half of them, so each recurs often and its answers can be compared."""
LEARNING_RATE = 1e-3

OnStep = Callable[[int, int, float], None]
"""Called with `(step, total, mean reward)` after each step."""


def train(
    out: Path,
    steps: int = STEPS,
    on_step: OnStep | None = None,
    plugins: Sequence[Any] = (),
) -> Any:
    """Run the demo and return its trainer. The rollouts are in `out/rollouts`."""
    need("torch", "demo")
    need("trl", "demo")
    with _quiet(), _one_thread():
        trainer = _trainer(out, steps, plugins)
        if on_step is not None:
            trainer.add_callback(_progress(on_step))
        trainer.train()
    return trainer


def _trainer(out: Path, steps: int, plugins: Sequence[Any]) -> Any:
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from rollout_plugins import RolloutPluginCallback
    from rollout_plugins.demo import shop
    from rollout_plugins.testing import model

    policy, tokenizer = model.load()
    config = GRPOConfig(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=112,
        max_tool_calling_iterations=3,
        min_p=0.01,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        reward_weights=[0.8, 0.2],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=7,
    )
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[shop.price, shop.multiply],
        reward_funcs=[shop.correct, shop.tool_use],
        args=config,
        train_dataset=shop.questions(QUESTIONS),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RolloutPluginCallback(plugins, dir=out / "rollouts"))
    return trainer


def _progress(on_step: OnStep) -> Any:
    from transformers import TrainerCallback

    class Progress(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "reward" in logs:
                on_step(state.global_step, state.max_steps, logs["reward"])

    return Progress()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of the libraries, and restore their settings afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: a second core does not speed up a model this small, and other processes may need it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
