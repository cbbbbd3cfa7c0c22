"""Print the best and the worst rollout of each step in the terminal that the training runs in."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TextIO

import orjson
from rich.console import Console
from rollout_hookspecs import Step, Trace, hookimpl

from rollout_plugins.content.json_safe import json_text, to_json_safe
from rollout_plugins.content.messages import field_of
from rollout_plugins.content.numbers import finite
from rollout_plugins.show.render import render_group, render_rollouts
from rollout_plugins.sinks._stream import write_json, write_text
from rollout_plugins.system.option_checks import check, flag, integer
from rollout_plugins.system.progress_bars import clear_bars_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

Titled = tuple[str, Trace]
_NO_FILE = "file={!r} cannot be written to: give an open text file, such as sys.stderr"
# JSON allows these characters, but a terminal interprets them and line readers split at some of them.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class ConsoleSink:
    """Prints rollouts while the training runs: at most a screenful in a terminal, JSON lines anywhere else.

    best       how many with the highest reward      ConsoleSink(best=2)
    worst      how many with the lowest reward       ConsoleSink(worst=0)
    by         rank by another fact                  ConsoleSink(by="reward/correct")
    group      answers to one prompt side by side    ConsoleSink(group=True)
               (the group whose rewards differ most), instead of the best and the worst
    every      only every tenth generation batch     ConsoleSink(every=10)
    max_lines  lines per batch                       ConsoleSink(max_lines=40)
               (default: the height of the terminal)
    json       JSON lines, one complete rollout each ConsoleSink(json=True)
               (default: when the output is not a terminal)
    file       where to print                        ConsoleSink(file=sys.stderr)
               (default: standard output)
    """

    def __init__(
        self,
        *,
        best: int = 1,
        worst: int = 1,
        by: str = "reward",
        group: bool = False,
        every: int = 1,
        max_lines: int | None = None,
        json: bool | None = None,
        file: TextIO | None = None,
    ) -> None:
        has_name = isinstance(by, str) and bool(by)
        shows_nothing = best == 0 and worst == 0 and group is not True
        check(
            "console",
            integer("best", best, 0),
            integer("worst", worst, 0),
            integer("every", every, 1),
            integer("max_lines", max_lines, 1, optional=True),
            "best=0 and worst=0 would show nothing: give one of them, or group=True" if shows_nothing else None,
            flag("group", group),
            flag("json", json, optional=True),
            None if has_name else f"by={by!r} is not the name of a fact, such as 'reward' or 'reward/correct'",
            None if file is None or callable(getattr(file, "write", None)) else _NO_FILE.format(file),
        )
        self._best, self._worst, self._by, self._group = best, worst, by, group
        self._every, self._max_lines, self._json, self._file = every, max_lines, json, file
        self.on_run_start()

    @hookimpl
    def on_run_start(self) -> None:
        self._batches: dict[str, int] = {}

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> None:
        batch = self._batches.get(step.split, 0)
        self._batches[step.split] = batch + 1
        if batch % self._every or not traces:
            return
        stream = self._file if self._file is not None else sys.stdout
        siblings = group_with_widest_spread(traces, self._by) if self._group else []
        selected = [("", trace) for trace in siblings] or best_and_worst(traces, self._by, self._best, self._worst)
        console = Console(file=stream)
        if self._json or (self._json is None and not (console.is_terminal or console.is_jupyter)):
            write_json(stream, "".join(f"{json_line(trace)}\n" for _, trace in selected))
        else:
            self._show(console, stream, selected, side_by_side=bool(siblings))

    def _show(self, console: Console, stream: TextIO, selected: Sequence[Titled], *, side_by_side: bool) -> None:
        # Two lines remain for the progress bar and the shell prompt.
        lines, width = self._max_lines or max(console.height - 2, 1), console.width
        if side_by_side:
            rendered = render_group([trace for _, trace in selected], width=width, max_lines=lines)
        else:
            rendered = render_rollouts(selected, width=width, max_lines=lines)
        if console.is_jupyter:
            console.print(rendered)
            return
        with console.capture() as captured:
            console.print(rendered)
        write_text(stream, clear_bars_sequence() + captured.get())


def best_and_worst(traces: Sequence[Trace], by: str, best: int, worst: int) -> list[Titled]:
    """Return the best and the worst traces, highest first and each once; without any score, the first traces."""
    ranked = sorted(
        (trace for trace in traces if _score(trace, by) is not None), key=lambda t: -(_score(t, by) or 0.0)
    )
    if not ranked:
        return [("", trace) for trace in traces[: best + worst]]
    low = max(len(ranked) - worst, best)
    return [*(("best", trace) for trace in ranked[:best]), *(("worst", trace) for trace in ranked[low:])]


def group_with_widest_spread(traces: Sequence[Trace], by: str) -> list[Trace]:
    """Return the answers to the prompt whose scores differ most; empty without groups."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        key = [field_of(trace.metadata, key) for key in ("split", "generation", "group")]
        if key[-1] is not None:
            groups.setdefault(json_text(key), []).append(trace)
    return max((group for group in groups.values() if len(group) > 1), key=lambda g: _spread(g, by), default=[])


def json_line(trace: Trace) -> str:
    """Return the complete trace as one line of JSON that is also safe to print."""
    record = {"id": trace.rollout_id, "messages": trace.messages, "metadata": trace.metadata, "spans": trace.spans}
    try:
        text = orjson.dumps(to_json_safe(record, images=True)).decode()
    except TypeError:  # an image record with a value that JSON lacks
        text = orjson.dumps(to_json_safe(record)).decode()
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _spread(traces: Sequence[Trace], by: str) -> float:
    scores = [score for trace in traces if (score := _score(trace, by)) is not None]
    return max(scores) - min(scores) if scores else -1.0


def _score(trace: Trace, by: str) -> float | None:
    return finite(field_of(trace.metadata, by))
