"""`rollouts demo`: train, then show what a person wants to see of it."""

from __future__ import annotations

import shlex
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text
from rollout_hookspecs import Rollout

from rollout_plugins.demo.stream import STATUSES, Stream
from rollout_plugins.demo.train import STEPS, OnStep, train
from rollout_plugins.errors import SetupError, need
from rollout_plugins.reading.runs import StoredRun, open_run
from rollout_plugins.report import write_report
from rollout_plugins.show import render_rollouts, render_steps
from rollout_plugins.show.chart import training

OUT = "outputs/demo"
_SPOKEN = {"ok": "ok", "error": "failed", "unknown": "of unknown tools", "not_run": "not run"}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path(OUT), help=f"where to train (default: {OUT})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many steps to train (default: {STEPS})")


def run(options: Namespace) -> None:
    """Train, and show the run."""
    need("torch", "demo")
    need("trl", "demo")
    if options.steps < 1:
        raise SetupError(f"--steps {options.steps} trains nothing; give 1 or more")
    console = Console(highlight=False)
    started = time.monotonic()
    stream = Stream(partial(console.print, no_wrap=True, overflow="ellipsis"))
    with _progress(console, options.steps) as on_step:
        train(options.out, options.steps, on_step=on_step, plugins=[stream])
    stored = open_run(options.out)
    console.print(report(stored, options.out, time.monotonic() - started, console.width))
    with console.status("writing the report") if console.is_terminal else nullcontext():
        page = write_report(stored, options.out / "report.html").path
    console.print(Text.assemble(("\n  report  ", "bold"), str(page)), soft_wrap=True)


def report(stored: StoredRun, out: Path, seconds: float, width: int) -> Group:
    """The last step's best and worst, what went wrong before, the course of the run, and what to type next."""
    rollouts = list(stored.rollouts(split="train"))
    last = max(rollout.step for rollout in rollouts)
    ranked = sorted((r for r in rollouts if r.step == last), key=_interest)
    shown = [("best", ranked[-1]), ("early", _most_mishaps(rollouts))]
    if ranked[0].reward != ranked[-1].reward:  # often all are right at the end
        shown.insert(1, ("worst", ranked[0]))
    return Group(
        Text(),
        render_rollouts(shown, width=width, max_lines=None),
        Text(),
        render_steps(training(stored.stats()), width=width),
        Text(),
        Padding(_summary(stored, rollouts, out, seconds), (0, 2)),
    )


def _interest(rollout: Rollout) -> tuple[float, int, float]:
    """By reward; among equals the one with more to see is the best, and a failing one the worst."""
    failures = sum(call.status != "ok" for call in rollout.tool_calls)
    return rollout.reward or 0.0, -failures, rollout.advantage or 0.0


def _most_mishaps(rollouts: Sequence[Rollout]) -> Rollout:
    """An early rollout in which much went wrong, of different kinds."""
    mishaps = {"error", "unknown", "not_run"}
    return max(rollouts, key=lambda r: (len(mishaps & {call.status for call in r.tool_calls}), -r.step))


def _summary(stored: StoredRun, rollouts: list[Rollout], out: Path, seconds: float) -> Group:
    statuses = Counter[str](call.status for r in rollouts for call in r.tool_calls)
    kept = f"{len(rollouts):,} rollouts of {len(stored.steps)} steps kept in {seconds:.0f} s"
    said = [(f"{statuses[status]:,} {_SPOKEN[status]}", colour) for status, colour in STATUSES.items()]
    heads = ("next    ", *["        "] * 2)
    lines = [Text.assemble((head, "bold"), line) for head, line in zip(heads, next_commands(out), strict=True)]
    return Group(kept, Text("tool calls: ").append_text(Text(", ").join(Text(*each) for each in said)), "", *lines)


def next_commands(out: Path) -> tuple[str, ...]:
    """What to type next; an output folder stands for the newest run in it."""
    path = shlex.quote(str(out))
    return (
        f"rollouts view {path}",
        f"rollouts show {path} --step last --worst 2",
        f'rollouts sql {path} "select step, avg(reward) from rollouts group by 1 order by 1"',  # noqa: S608 - shown, not run
    )


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[OnStep]:
    """A bar with the reward on it, in a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading torch and trl", total=steps)

        def on_step(step: int, _: int, reward: float) -> None:
            bar.update(task, completed=step, description=f"training, reward {reward:.2f}")

        yield on_step
