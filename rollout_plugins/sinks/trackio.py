"""Rollouts as traces in trackio: in the trainer's own run when it has one, else in a run of their own."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from rollout_hookspecs import Image, Run, Scope, Step, Trace, hookimpl

from rollout_plugins.content.messages import REASONING, call_text, calls_of, reasoning_of, text_of
from rollout_plugins.sinks._common import (
    SCOPES,
    image_words,
    meant_for,
    reward_words,
    without_images,
)
from rollout_plugins.sinks._traces import images_in, shape_each
from rollout_plugins.sinks._tracker import TrackerSink
from rollout_plugins.system.option_checks import check, named, one_of

logger = logging.getLogger("rollout_plugins")


class TrackioSink(TrackerSink):
    """One `log` a generation, under `rollouts` (training) and `eval_rollouts`.

    TrackioSink()                                        # the trainer's run, or a local one named after the run
    TrackioSink(project="math", name="run-1")            # a run of its own
    TrackioSink(space_id="me/rollouts")                  # on a Hugging Face Space
    TrackioSink(scope="rank")                            # one run for each rank
    """

    TRACKER = report_to = "trackio"

    def __init__(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        space_id: str | None = None,
        scope: Scope = "global",
    ) -> None:
        check(
            "trackio",
            one_of("scope", scope, SCOPES),
            named("project", project),
            named("name", name),
            named("space_id", space_id),
        )
        super().__init__(scope=scope, project=project, name=name, space_id=space_id)
        # One object for each distinct image: trackio then stores its file once.
        self._image = lru_cache(4096)(self._tracker.Image)

    @property
    def target(self) -> str:
        """Where the rollouts go, in words that stay the same for the same place."""
        run = self._sender
        return f"trackio:{run.project}/{run.name}" if run is not None else "trackio"

    def received(self) -> set[str] | None:
        """Ids of the rollouts in the run's database here; None for a run elsewhere, which is not asked."""
        return _ids_in(self._open())

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = meant_for(self.scope, traces, step)
        if not traces:
            return []
        sender = self._open()
        key = "eval_rollouts" if step.split == "eval" else "rollouts"
        sender.log({key: shape_each(traces, step, self._trace)}, step=step.step)
        return [trace.rollout_id for trace in traces]

    def _current(self) -> Any:
        return self._tracker.context_vars.current_run.get()

    def _beside(self, theirs: Any) -> Any:
        return _twin(self._tracker, theirs)

    def _forget(self) -> None:
        self._image.cache_clear()

    def _own(self, run: Run) -> Any:
        name = self._own_name(run)
        options = {
            "project": self._project or getattr(self._args, "project", None) or "rollouts",
            "name": f"{name}-rank{run.rank}" if self.scope == "rank" else name,
            "group": name if self.scope == "rank" else None,
            "space_id": self._options["space_id"],
            "resume": "allow",
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
            "config": {"rollouts_run": run.id, "model": run.model, "trainer": run.trainer},
        }
        config = self._tracker.config
        try:  # in a context of its own: this thread may have a run, which `init` would finish
            return contextvars.Context().run(self._tracker.init, **_accepted(self._tracker.init, options))
        finally:
            self._tracker.config = config

    def _trace(self, trace: Trace) -> Any:
        messages = [shown for message in trace.messages for shown in self._messages(message)]
        return self._tracker.Trace(
            messages=_titled(messages, reward_words(trace.metadata)),
            metadata={name: value for name, value in trace.metadata.items() if _is_shown(name, value)},
            spans=[self._span(span) for span in trace.spans],
        )

    def _messages(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The message with its text as text, then one that holds its images: parts of both show as raw JSON."""
        content = self._seen(message.get("content"))
        images = list(images_in(content))
        others = {key: value for key, value in message.items() if key not in {*REASONING, "content"}}
        shown = without_images(others, str)
        alone = isinstance(content, list) and len(content) == len(images)
        if not (images and alone and not reasoning_of(message)):
            yield {**shown, "content": _text({**message, "content": content})}
            shown = {"role": shown.get("role", "unknown"), "note": "images of the message above"}
        if images:
            yield {**shown, "content": [self._image(str(self._file(image))) for image in images]}

    def _span(self, span: Mapping[str, Any]) -> dict[str, Any]:
        shown = {key: without_images(value, str) for key, value in span.items() if value is not None}
        output = self._seen(span.get("output"))
        images = list(images_in(output))
        if isinstance(output, list):
            shown["output"] = text_of(output)
        if images:
            shown["output"] = {
                "text": text_of(output),
                "images": [self._image(str(self._file(image))) for image in images],
            }
        if span.get("status") == "not_run" and shown.pop("error", None):
            shown["output"] = span["error"]  # an error would paint the whole rollout red
        return shown

    def _seen(self, content: Any) -> Any:
        """Content in which every `Image` has pixels to show; the others are words."""
        if isinstance(content, Image):
            return content if self._file(content) else image_words(content)
        if isinstance(content, Mapping):
            lost = [image for image in images_in(content) if not self._file(image)]
            return {"type": "text", "text": image_words(lost[0])} if lost else content
        return [self._seen(block) for block in content] if isinstance(content, (list, tuple)) else content


def _is_shown(name: str, value: Any) -> bool:
    """Not what is missing, which would be a dash in the dashboard; but a reward that is missing tells something."""
    return value is not None or name.startswith("reward")


def _titled(messages: list[dict[str, Any]], words: str) -> list[dict[str, Any]]:
    """With the words before the first user's: the dashboard's list shows of a trace what the user said first."""
    place = next((i for i, message in enumerate(messages) if message.get("role") == "user"), None)
    if place is None:
        return messages
    first = messages[place]
    if isinstance(first["content"], list):  # images alone
        return [*messages[:place], {"role": "user", "content": words}, *messages[place:]]
    return [*messages[:place], {**first, "content": f"{words}\n{first['content'] or ''}"}, *messages[place + 1 :]]


def _text(message: Mapping[str, Any]) -> str | None:
    """Content as the dashboard shows it: flat text, with the reasoning and bare tool calls it would leave out."""
    content = message.get("content")
    text = None if content is None else text_of(content)
    if not text:
        text = "\n".join(f"→ {call_text(call)}" for call in calls_of(message)) or text
    reasoning = reasoning_of(message)
    return f"<think>\n{reasoning}\n</think>\n\n{text or ''}".rstrip() if reasoning else text


def _ids_in(run: Any) -> set[str] | None:
    if not getattr(run, "_is_local", False) or getattr(run, "_storage_mode", "sqlite") != "sqlite":
        return None
    from trackio.sqlite_storage import SQLiteStorage

    path = SQLiteStorage.get_project_db_path(run.project)
    if not path.exists():
        return set()
    try:
        with closing(sqlite3.connect(path, timeout=30)) as db:
            rows = db.execute("SELECT metadata FROM traces WHERE run_name = ?", (run.name,))
            return {str(json.loads(metadata).get("id")) for (metadata,) in rows}
    except (sqlite3.Error, ValueError) as error:
        logger.warning("trackio's %s cannot be asked what it has: %s", path, error)
        return None


def _twin(trackio: Any, run: Any) -> Any:
    """A second sender into the same run.

    The trainer's own numbers its metrics by the largest step it has logged, so a trace logged ahead of them would
    shift its charts by one, depending on which thread came first; and it is finished before the last rollouts are.
    """
    if run.url and not (getattr(run, "_space_id", None) or getattr(run, "_server_base_url", None)):
        return run  # a version that keeps the remote's name elsewhere: better its numbering than another place
    options = {
        "url": run.url,
        "project": run.project,
        "client": None,
        "name": run.name,
        "run_id": getattr(run, "id", None),
        "group": getattr(run, "group", None),
        "space_id": getattr(run, "_space_id", None),
        "bucket_id": getattr(run, "_bucket_id", None),
        "server_base_url": getattr(run, "_server_base_url", None),
        "write_token": getattr(run, "_write_token", None),
        "existing_runs": [run.name],
        "initial_last_step": 0,
    }
    twin = trackio.Run(**_accepted(trackio.Run, options))
    with contextlib.suppress(AttributeError):
        twin.config = run.config
    return twin


def _accepted(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options this version of trackio knows."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
