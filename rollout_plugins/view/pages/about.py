"""The screen about the run itself: its settings, what was lost or left out, what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text
from textual.widget import Widget

from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.blocks import Block
from rollout_plugins.show.text import clean, duration, local_time, number, one_line, readable
from rollout_plugins.system.labels import format_not_finite
from rollout_plugins.view.pages.page import Page
from rollout_plugins.view.widgets.pager import Pager


class AboutPage(Page):
    """The screen about the run."""

    def body(self) -> Iterable[Widget]:
        yield Pager()

    def on_mount(self) -> None:
        self.title_is(Text("About the run", style="bold"))
        self.job(lambda: list(_blocks(self.viewer.stored)), self.query_one(Pager).show, group="facts")


def _blocks(run: StoredRun) -> Iterator[Block]:
    info = run.info
    yield _block(
        "run",
        {
            "id": info.id,
            "folder": run.place,
            "trainer": info.trainer,
            "model": info.model,
            "processes": info.world_size,
            "answers to a prompt": info.num_generations,
            "rewards": ", ".join(map(str, info.reward_names)),
            "tools": ", ".join(_tool_name(tool) for tool in info.tools),
        },
    )
    odd = run.health.not_finite
    for attempt in run.attempts:
        yield _block(f"attempt {number(attempt['attempt'])}", dict(_attempt(attempt)))
    yield _block(
        "not finite", {name: format_not_finite({name: kinds}).partition(": ")[2] for name, kinds in odd.items()}
    )
    yield _block("lost", run.health.drops)
    yield _block("not trained on", run.health.untrained)
    yield _block("not sent", run.health.unsent)
    yield _block("failed", {f"plugin {name}": times for name, times in run.health.plugin_errors.items()})
    yield _block("warnings", {str(index): text for index, text in enumerate(run.health.warnings, 1)})
    yield _block("damaged", run.health.damaged)
    yield _block("annotated", {name: ", ".join(columns) for name, columns in run.annotations.items()})
    yield _block("settings", info.settings)
    yield _block("versions", info.versions)
    if info.chat_template:
        yield _block("chat template", {"text": info.chat_template}, least=3)


def _block(title: str, facts: Any, least: int | None = None) -> Block:
    spans: list[tuple[str, str]] = []
    for key, value in dict(facts).items():
        text = clean(readable(value)) if not isinstance(value, (int, float)) else number(value)
        if text:
            spans += [("\n", ""), (f"{one_line(key, 60)}: ", "bold"), (text, "")]
    return Block("facts", spans[1:] or [("none", "dim")], label=title, turn=hash(title), gap=True, least=least)


def _attempt(attempt: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    started, ended = attempt.get("started"), attempt.get("ended")
    yield "rank", attempt.get("rank")
    yield "from step", attempt.get("resumed_from")
    yield "started", local_time(started)
    yield "ended", local_time(ended) or "not ended, or killed"
    if isinstance(started, (int, float)) and isinstance(ended, (int, float)):
        yield "took", duration(ended - started)
    rollouts = attempt.get("rollouts")
    if isinstance(rollouts, dict):
        yield "rollouts", ", ".join(f"{number(count)} {split}" for split, count in rollouts.items())


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = (function if isinstance(function, dict) else tool).get("name") if isinstance(tool, dict) else tool
    return one_line(name, 40)
