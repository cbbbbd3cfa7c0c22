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
from rollout_hookspecs import Image, Run, Scope, Step, Trace, hookimpl

from rollout_plugins.content.exact_jsonl import missing
from rollout_plugins.content.messages import role_of
from rollout_plugins.content.trace import rollout_of, under
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import SCOPES, meant_for, spoken, without_images
from rollout_plugins.sinks._stream import write_json
from rollout_plugins.sinks._traces import prompt_and_completion, shape_each
from rollout_plugins.system.file_locks import locked
from rollout_plugins.system.option_checks import check, one_of, whole

ANSWERS = ("answer", "solution", "ground_truth", "target", "label")


class JsonlSink:
    """One line a rollout, in numbered files of a folder.

    JsonlSink()                                  # <run folder>/jsonl/0.jsonl, 1.jsonl, …
    JsonlSink("/data/rollouts", max_bytes=10**9) # another folder, larger files
    JsonlSink("-")                               # standard output: … | jq .reward

    The keys of a line are plain JSON, as verl's and verifiers' readers expect them. One of them, `exact`, holds what
    the others do not state exactly: `rollouts import --from openai-jsonl` makes the same rollouts of the lines.
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
        self._written: dict[tuple[Path, int, int], int] = {}
        self._gone = 0

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

    def gone(self) -> int:
        """How many lines of this run were in files that are no longer there."""
        gone, self._gone = self._gone, 0
        return gone

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._close_pipe()
        self._run = run
        self._written, self._gone = {}, 0

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = meant_for(self.scope, traces, step)
        if not traces:
            return []
        shown = shape_each(traces, step, record)
        lines = "".join(_line(trace, facts) for trace, facts in zip(traces, shown, strict=True))
        if self._path == "-":
            write_json(sys.stdout, lines)
        elif self._place().is_fifo():
            self._send(lines.encode())
        else:
            self._look_for_files()
            file = _append(self._place(), lines.encode(), self._most)
            self._written[file] = self._written.get(file, 0) + len(traces)
        return [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        self._close_pipe()
        self._look_for_files()

    def _look_for_files(self) -> None:
        """Count the lines whose file was removed or moved: what is written next makes a new one without a word."""
        for file in [file for file in self._written if not _is_there(*file)]:
            self._gone += self._written.pop(file)

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


def _append(folder: Path, data: bytes, most: int) -> tuple[Path, int, int]:
    """All lines or none, in the last file or a new one, even while others write or remove files there. Which file."""
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.stem) for path in _files_in(folder)), default=0)
    while True:
        path = folder / f"{number}.jsonl"
        file = path.open("a+b", buffering=0)
        with locked(file):
            size = file.seek(0, os.SEEK_END)
            if size < most:
                _add(file, data, size)
                about = os.fstat(file.fileno())
                return path, about.st_dev, about.st_ino
        number += 1


def _is_there(path: Path, device: int, inode: int) -> bool:
    with suppress(OSError):
        about = path.stat()
        return (about.st_dev, about.st_ino) == (device, inode)
    return False


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


def _line(trace: Trace, shown: dict[str, Any]) -> str:
    rollout = rollout_of(trace)
    with suppress(Exception):  # an odd value that only costs what an import reads of it
        if rollout is not None:
            shown = {**shown, "exact": missing(rollout, shown)}
    return json.dumps(shown, ensure_ascii=False, allow_nan=False) + "\n"


def record(trace: Trace) -> dict[str, Any]:
    """The trace as one flat object. `input`, `output`, `gts`, `score`: verl; `example_id` to `info`: verifiers.

    A line also has `exact`, for `rollouts import`: what the other keys do not state exactly.
    """
    facts = trace.metadata
    prompt, completion = without_images(prompt_and_completion(trace), _facts)
    rewards = under(facts, "reward/")
    columns = under(facts, "columns/")
    answer = next((columns[name] for name in ANSWERS if name in columns), None)
    return {
        **{key: value for key, value in facts.items() if "/" not in key},
        "request_id": trace.rollout_id,
        "example_id": f"{facts.get('generation')}.{facts.get('group')}",
        "input": _said(prompt),
        "output": _said(completion),
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
        "extra": under(facts, "extra/"),
        "marks": under(facts, "marks/"),
        "spans": without_images(trace.spans, _facts),
    }


def _facts(image: Image) -> dict[str, Any]:
    kept = {"hash": image.hash, "path": image.path, "uri": image.uri, "note": image.note}
    return {name: fact for name, fact in kept.items() if fact is not None}


def _said(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(f"{role_of(message)}: {spoken(message)}" for message in messages)
