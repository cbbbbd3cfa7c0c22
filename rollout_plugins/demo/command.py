"""The command `rollouts demo`: train, then show what is worth seeing of the run."""

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
_STATUS_TEXTS = {"ok": "ok", "error": "failed", "unknown": "of unknown tools", "not_run": "not run"}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path(OUT), help=f"where to train (default: {OUT})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many steps to train (default: {STEPS})")


def run(options: Namespace) -> None:
    """Train and show the run."""
    need("torch", "demo")
    need("trl", "demo")
    if options.steps < 1:
        raise SetupError(f"--steps {options.steps} would train nothing: use 1 or more")
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
    """Return the last step's best and worst rollout, an early failure, the chart of the run, and the next commands."""
    rollouts = list(stored.rollouts(split="train"))
    last = max(rollout.step for rollout in rollouts)
    ranked = sorted((r for r in rollouts if r.step == last), key=_interest)
    titled = [("best", ranked[-1]), ("early", _rollout_with_most_failures(rollouts))]
    if ranked[0].reward != ranked[-1].reward:  # at the end, all answers are often right
        titled.insert(1, ("worst", ranked[0]))
    return Group(
        Text(),
        render_rollouts(titled, width=width, max_lines=None),
        Text(),
        render_steps(training(stored.stats()), width=width),
        Text(),
        Padding(_summary(stored, rollouts, out, seconds), (0, 2)),
    )


def _interest(rollout: Rollout) -> tuple[float, int, float]:
    """Sort by reward. Among equal ones, the best has more to see, and the worst has failures."""
    failures = sum(call.status != "ok" for call in rollout.tool_calls)
    return rollout.reward or 0.0, -failures, rollout.advantage or 0.0


def _rollout_with_most_failures(rollouts: Sequence[Rollout]) -> Rollout:
    """Return an early rollout with many different kinds of failures."""
    failures = {"error", "unknown", "not_run"}
    return max(rollouts, key=lambda r: (len(failures & {call.status for call in r.tool_calls}), -r.step))


def _summary(stored: StoredRun, rollouts: list[Rollout], out: Path, seconds: float) -> Group:
    statuses = Counter[str](call.status for r in rollouts for call in r.tool_calls)
    counts = f"{len(rollouts):,} rollouts of {len(stored.steps)} steps recorded in {seconds:.0f} s"
    calls = [Text(f"{statuses[status]:,} {_STATUS_TEXTS[status]}", colour) for status, colour in STATUSES.items()]
    heads = ("next    ", *["        "] * 2)
    lines = [Text.assemble((head, "bold"), line) for head, line in zip(heads, next_commands(out), strict=True)]
    return Group(counts, Text("tool calls: ").append_text(Text(", ").join(calls)), "", *lines)


def next_commands(out: Path) -> tuple[str, ...]:
    """Return the commands to try next; an output folder stands for the newest run in it."""
    path = shlex.quote(str(out))
    return (
        f"rollouts view {path}",
        f"rollouts show {path} --step last --worst 2",
        f'rollouts sql {path} "select step, avg(reward) from rollouts group by 1 order by 1"',  # noqa: S608 - shown, not run
    )


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[OnStep]:
    """Show a progress bar with the reward, in a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading torch and trl", total=steps)

        def on_step(step: int, _: int, reward: float) -> None:
            bar.update(task, completed=step, description=f"training, reward {reward:.2f}")

        yield on_step
