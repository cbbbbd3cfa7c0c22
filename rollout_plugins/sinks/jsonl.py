"""Rollouts as lines of JSON, for pipes, `jq` and the tools that read verl's and verifiers' rollout files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson
from rollout_hookspecs import Run, Scope, Step, Trace, hookimpl

from rollout_plugins.content.locks import locked
from rollout_plugins.content.messages import call_text, calls_of, reasoning_of, role_of, text_of
from rollout_plugins.content.options import check, one_of, whole
from rollout_plugins.content.trace import images_in, prompt_and_completion, shape_each
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import SCOPES, meant_for
from rollout_plugins.sinks._stream import write_json

ANSWERS = ("answer", "solution", "ground_truth", "target", "label")


class JsonlSink:
    """One line a rollout, in numbered files of a folder.

    JsonlSink()                                  # <run folder>/jsonl/0.jsonl, 1.jsonl, …
    JsonlSink("/data/rollouts", max_bytes=10**9) # another folder, larger files
    JsonlSink("-")                               # standard output: … | jq .reward
    """

    def __init__(
        self, path: str | Path | None = None, *, max_bytes: int = 256 * 2**20, scope: Scope = "global"
    ) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise SetupError(f"path={path!r}: use a folder, a named pipe, or '-' for standard output")
        check("jsonl", one_of("scope", scope, SCOPES), whole("max_bytes", max_bytes, 1))
        self.scope = scope
        self._most = max_bytes
        self._path = path if not path or path == "-" else Path(path).absolute()
        self._run = Run(id="rollouts")
        self._pipe: IO[bytes] | None = None

    def __reduce__(self) -> Any:
        """A copy is a new one with the same options, here and in the other sinks that hold what cannot be copied."""
        return partial(type(self), self._path, max_bytes=self._most, scope=self.scope), ()

    @property
    def target(self) -> str:
        """Where the rollouts go, in words that stay the same for the same place."""
        return "jsonl:-" if self._path == "-" else f"jsonl:{self._place().resolve()}"

    def received(self) -> set[str] | None:
        """Ids of the rollouts that are in the files; None for a pipe."""
        return None if self._place().is_fifo() else set(_ids_in(self._place()))

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._close_pipe()
        self._run = run

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = meant_for(self.scope, traces, step)
        if not traces:
            return []
        lines = "".join(shape_each(traces, step, line))
        if self._path == "-":
            write_json(sys.stdout, lines)
        elif self._place().is_fifo():
            self._send(lines.encode())
        else:
            _append(self._place(), lines.encode(), self._most)
        return [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        self._close_pipe()

    def _place(self) -> Path:
        place = Path(self._path) if self._path else Path(self._run.dir or ".") / "jsonl"
        return place / f"rank-{self._run.rank}" if self.scope == "rank" else place

    def _send(self, data: bytes) -> None:
        """A pipe stays open, for its reader takes the end of one writer for the end of all."""
        self._pipe = self._pipe or self._place().open("wb", buffering=0)
        try:
            _write_all(self._pipe, data)
        except OSError:
            self._close_pipe()
            raise

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()


def _append(folder: Path, data: bytes, most: int) -> None:
    """All lines or none, in the last file or a new one, whoever else writes or removes files there."""
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.stem) for path in _files_in(folder)), default=0)
    while True:
        file = (folder / f"{number}.jsonl").open("a+b", buffering=0)
        with locked(file):
            size = file.seek(0, os.SEEK_END)
            if size < most:
                _add(file, data, size)
                return
        number += 1


def _add(file: IO[bytes], data: bytes, size: int) -> None:
    try:
        _write_all(file, b"\n" * _is_torn(file, size) + data)
    except BaseException:
        file.truncate(size)
        raise


def _write_all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _is_torn(file: IO[bytes], size: int) -> bool:
    """Whether a process died in the middle of the last line, which must not swallow the next one."""
    if not size:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.jsonl") if path.stem.isdecimal()]


def _ids_in(folder: Path) -> Iterator[str]:
    for path in _files_in(folder):
        with path.open("rb") as file:
            for text in file:
                with suppress(ValueError, KeyError, TypeError):
                    yield str(orjson.loads(text)["id"])


def line(trace: Trace) -> str:
    return json.dumps(record(trace), ensure_ascii=False, allow_nan=False) + "\n"


def record(trace: Trace) -> dict[str, Any]:
    """The trace as one flat object. `input`, `output`, `gts`, `score`: verl; `example_id` to `info`: verifiers."""
    facts = trace.metadata
    prompt, completion = (list(map(_message, part)) for part in prompt_and_completion(trace))
    rewards = _named(facts, "reward/")
    columns = _named(facts, "columns/")
    answer = next((columns[name] for name in ANSWERS if name in columns), None)
    return {
        **{key: value for key, value in facts.items() if "/" not in key},
        "request_id": trace.rollout_id,
        "example_id": f"{facts.get('generation')}.{facts.get('group')}",
        "input": "\n\n".join(_lines(prompt)),
        "output": "\n\n".join(_lines(completion)),
        "gts": answer,
        "score": facts.get("reward"),
        "prompt": prompt,
        "completion": completion,
        "answer": answer,
        "is_completed": facts.get("finish") == "stop",
        "is_truncated": facts.get("finish") == "length",
        "stop_condition": facts.get("finish"),
        "metrics": rewards,
        "rewards": rewards,
        "info": columns,
        "extra": _named(facts, "extra/"),
        "marks": _named(facts, "marks/"),
        "spans": [_images_as_data(span) for span in trace.spans],
    }


def _named(facts: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: value for key, value in facts.items() if key.startswith(prefix)}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = _images_as_data(message)
    return shown


def _images_as_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _images_as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_images_as_data(item) for item in value]
    for image in images_in(value):
        kept = {"hash": image.hash, "path": image.path, "uri": image.uri, "note": image.note}
        return {name: fact for name, fact in kept.items() if fact is not None}
    return value


def _lines(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        parts = [reasoning_of(message), text_of(message.get("content")), *map(call_text, calls_of(message))]
        yield f"{role_of(message)}: " + "\n".join(part for part in parts if part)
