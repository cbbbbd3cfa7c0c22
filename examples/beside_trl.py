"""What TRL's own completions table keeps of a run, and what the callback keeps of the same run.

    python examples/beside_trl.py

Real trainers on a tiny model whose answers are scripted; a minute on a CPU.
"""

import logging
import tempfile
import warnings
from pathlib import Path

import pyarrow.parquet as pq
from transformers import PrinterCallback

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.testing import call, scripted_grpo


def now() -> str:
    """Current time."""
    return "12:00"


def lookup(place: str = "") -> str:
    """Look up a place.

    Args:
        place: its name
    """
    return "found"


CASES = {
    "only calls without arguments": {"script": [call("now")], "tools": [now]},
    "calls with and without arguments": {"script": [call("lookup", place="Ulm"), call("lookup")], "tools": [lookup]},
    "10 steps, logging_steps=5": {"script": ["7", "no idea"], "max_steps": 10, "logging_steps": 5},
    "num_iterations=3": {"script": ["7", "no idea"], "max_steps": 6, "num_iterations": 3},
}


def table(folder: Path, **case) -> str:
    """Train with `log_completions=True`; what is on disk afterwards."""
    trainer = quiet(scripted_grpo(folder, **case, log_completions=True, num_completions_to_print=0))
    try:
        trainer.train()
    except Exception as error:
        return f"training stopped: {type(error).__name__}"
    files = sorted((folder / "out" / "completions").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    messages = [message for row in rows for message in row["completion"]]
    arguments = [made["function"]["arguments"] for message in messages for made in message.get("tool_calls") or ()]
    return f"{len(rows)} rows" + (f", arguments {unique(arguments)}" if arguments else "")


def callback(folder: Path, **case) -> str:
    """Train with the callback; what is in the store afterwards."""
    trainer = quiet(scripted_grpo(folder, **case))
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    rollouts = list(open_run(folder / "out").rollouts())
    arguments = [made.arguments for rollout in rollouts for made in rollout.tool_calls]
    return f"{len(rollouts)} rollouts" + (f", arguments {unique(arguments)}" if arguments else "")


def quiet(trainer):
    trainer.remove_callback(PrinterCallback)
    return trainer


def unique(values: list) -> str:
    return " ".join(dict.fromkeys(map(str, values)))


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"{'':34}{'log_completions=True':52}RolloutPluginCallback")
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            theirs = table(Path(folder) / "table", **case)
            ours = callback(Path(folder) / "callback", **case)
        print(f"{name:34}{theirs:52}{ours}")


if __name__ == "__main__":
    main()
