"""Send rollouts as traces to trackio: to the trainer's own run if it has one, otherwise to a separate run."""

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
    describe_image,
    replace_images,
    reward_label,
    traces_for_scope,
)
from rollout_plugins.sinks._traces import images_in, shape_each
from rollout_plugins.sinks._tracker import TrackerSink
from rollout_plugins.system.option_checks import check, one_of, optional_name

logger = logging.getLogger("rollout_plugins")


class TrackioSink(TrackerSink):
    """Makes one `log` call per generation, under `rollouts` (training) or `eval_rollouts`.

    TrackioSink()                                        # the trainer's run, or a local one named after the run
    TrackioSink(project="math", name="run-1")            # a separate run
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
            optional_name("project", project),
            optional_name("name", name),
            optional_name("space_id", space_id),
        )
        super().__init__(scope=scope, project=project, name=name, space_id=space_id)
        # One object per distinct image, so that trackio stores its file once.
        self._image = lru_cache(4096)(self._tracker.Image)

    @property
    def target(self) -> str:
        """The destination of the rollouts, as a text that is always the same for the same destination."""
        run = self._sender
        return f"trackio:{run.project}/{run.name}" if run is not None else "trackio"

    def received(self) -> set[str] | None:
        """Return the ids of the rollouts in the run's local database; None for a remote run, which is not queried."""
        return _ids_in(self._open())

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = traces_for_scope(self.scope, traces, step)
        if not traces:
            return []
        sender = self._open()
        key = "eval_rollouts" if step.split == "eval" else "rollouts"
        sender.log({key: shape_each(traces, step, self._trace)}, step=step.step)
        return [trace.rollout_id for trace in traces]

    def _current_run(self) -> Any:
        return self._tracker.context_vars.current_run.get()

    def _join(self, trainers_run: Any) -> Any:
        return _second_sender(self._tracker, trainers_run)

    def _forget(self) -> None:
        self._image.cache_clear()

    def _open_own(self, run: Run) -> Any:
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
        try:  # in a context of its own, because `init` would finish a run that is current on this thread
            return contextvars.Context().run(self._tracker.init, **_accepted_options(self._tracker.init, options))
        finally:
            self._tracker.config = config

    def _trace(self, trace: Trace) -> Any:
        messages = [shown for message in trace.messages for shown in self._messages(message)]
        return self._tracker.Trace(
            messages=_with_label(messages, reward_label(trace.metadata)),
            metadata={name: value for name, value in trace.metadata.items() if _is_shown(name, value)},
            spans=[self._span(span) for span in trace.spans],
        )

    def _messages(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a message with the text and one with the images, because trackio shows mixed content as raw JSON."""
        content = self._with_visible_images(message.get("content"))
        images = list(images_in(content))
        other_fields = {key: value for key, value in message.items() if key not in {*REASONING, "content"}}
        fields = replace_images(other_fields, str)
        has_only_images = isinstance(content, list) and len(content) == len(images)
        if not (images and has_only_images and not reasoning_of(message)):
            yield {**fields, "content": _flat_text({**message, "content": content})}
            fields = {"role": fields.get("role", "unknown"), "note": "images of the message above"}
        if images:
            yield {**fields, "content": [self._image(str(self._file(image))) for image in images]}

    def _span(self, span: Mapping[str, Any]) -> dict[str, Any]:
        fields = {key: replace_images(value, str) for key, value in span.items() if value is not None}
        output = self._with_visible_images(span.get("output"))
        images = list(images_in(output))
        if isinstance(output, list):
            fields["output"] = text_of(output)
        if images:
            fields["output"] = {
                "text": text_of(output),
                "images": [self._image(str(self._file(image))) for image in images],
            }
        if span.get("status") == "not_run" and fields.pop("error", None):
            fields["output"] = span["error"]  # an error would colour the whole rollout red
        return fields

    def _with_visible_images(self, content: Any) -> Any:
        """Return the content with a text in place of each image that has no pixels."""
        if isinstance(content, Image):
            return content if self._file(content) else describe_image(content)
        if isinstance(content, Mapping):
            missing = [image for image in images_in(content) if not self._file(image)]
            return {"type": "text", "text": describe_image(missing[0])} if missing else content
        if isinstance(content, (list, tuple)):
            return [self._with_visible_images(block) for block in content]
        return content


def _is_shown(name: str, value: Any) -> bool:
    """Return whether to show a fact: the dashboard's dash for a missing value is only useful for rewards."""
    return value is not None or name.startswith("reward")


def _with_label(messages: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """Put `label` before the first user message, which is what the dashboard's list shows of a trace."""
    position = next((i for i, message in enumerate(messages) if message.get("role") == "user"), None)
    if position is None:
        return messages
    first = messages[position]
    if isinstance(first["content"], list):  # the message has only images
        return [*messages[:position], {"role": "user", "content": label}, *messages[position:]]
    return [
        *messages[:position],
        {**first, "content": f"{label}\n{first['content'] or ''}"},
        *messages[position + 1 :],
    ]


def _flat_text(message: Mapping[str, Any]) -> str | None:
    """Return the content as flat text, with the reasoning and the tool calls that the dashboard would leave out."""
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
        logger.warning("The rollouts in trackio's database %s could not be read: %s", path, error)
        return None


def _second_sender(trackio: Any, run: Any) -> Any:
    """Open a second sender into the trainer's run.

    The trainer's own sender numbers its metrics by the largest step it has logged, so a trace that was logged ahead of
    them would shift its charts by one. It is also finished before the last rollouts arrive.
    """
    if run.url and not (getattr(run, "_space_id", None) or getattr(run, "_server_base_url", None)):
        # This version stores the remote's name elsewhere. Shifted charts are better than another destination.
        return run
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
    sender = trackio.Run(**_accepted_options(trackio.Run, options))
    with contextlib.suppress(AttributeError):
        sender.config = run.config
    return sender


def _accepted_options(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that this version of trackio accepts."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}
