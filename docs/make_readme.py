"""Fill in the parts of the README that are produced: every option from its docstring, what each host records, the
comparison with TRL's own table, and the benchmarks' output.

    python docs/make_readme.py
"""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from rollout_plugins.hosts import known_hosts
from rollout_plugins.hosts.kit.support import Support

ROOT = Path(__file__).parents[1]
CLASSES = {
    "plugins": {"images": "Images", "metrics": "Metrics", "dedup": "Dedup", "cap": "Cap", "redact": "Redact"},
    "sinks": {"trackio": "TrackioSink", "wandb": "WandbSink", "console": "ConsoleSink", "jsonl": "JsonlSink", "scout": "ScoutSink"},
}  # fmt: skip


HEAD = ["trainer", "messages", "rewards", "advantage", "tools", "images", "groups", "eval", "log-probs", "TRL", ""]


def trainers() -> str:
    """What each host says it records; tests/test_trainers.py holds it to that."""
    rows = [_said(support) for host in known_hosts() for support in host.supports]
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _said(support: Support) -> list[str]:
    flags = (getattr(support, name) for name in ("advantage", "tools", "images", "groups", "evaluation"))
    newest = re.search(r"^trl==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    return [
        f"`{support.trainer.removesuffix('Trainer')}`",
        support.messages,
        support.rewards.replace("none", ""),
        *("✓" if flag else "" for flag in flags),
        support.logprobs,
        newest if support.since == newest else f"{support.since} to {newest}",
        support.note,
    ]


def options() -> str:
    """A foldable text for each plugin and sink: its docstring."""
    parts = []
    for folder, classes in CLASSES.items():
        for name, kind in classes.items():
            text = inspect.getdoc(getattr(import_module(f"rollout_plugins.{folder}.{name}"), kind))
            parts.append(f"<details><summary><code>{kind}</code></summary>\n\n```text\n{text}\n```\n\n</details>")
    return "\n".join(parts)


SHOWN = ("Agents", "Goals", "10000 steps", "40 steps of 16", "1,000,000 rollouts")


def benchmarks() -> str:
    """Tables of the newest results, as they were printed."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    machine = re.search(r"^_.*_$", results, re.MULTILINE)
    tables = re.findall(r"(?ms)^\*\*(.+?)\*\*$\n\n(.+?)(?=\n\*\*|\n<!--|\Z)", results)
    shown = [f"**{title}**\n\n{table.strip()}" for title, table in tables if title.startswith(SHOWN)]
    return "\n\n".join([machine[0] if machine else "", *shown])


def beside() -> str:
    """What the comparison with TRL's own table prints."""
    command = [sys.executable, str(ROOT / "examples" / "beside_trl.py")]
    env = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}  # wandb would print it
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return f"```text\n{printed.rstrip()}\n```"


def fill(readme: str, name: str, text: str) -> str:
    """The README with one produced part renewed."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    made, count = re.subn(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", readme, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"README.md has no place for {name}")
    return made


def main() -> None:
    path = ROOT / "README.md"
    readme = fill(path.read_text(encoding="utf-8"), "options", options())
    readme = fill(readme, "trainers", trainers())
    readme = fill(readme, "beside", beside())
    path.write_text(fill(readme, "benchmarks", benchmarks()), encoding="utf-8")


if __name__ == "__main__":
    main()
