"""Write rollouts as JSON lines, for pipes, `jq` and the tools that read the rollout files of verl and verifiers."""

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

from rollout_plugins.content.exact_jsonl import find_missing
from rollout_plugins.content.messages import role_of
from rollout_plugins.content.trace import facts_with_prefix, rollout_of
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import SCOPES, message_text, replace_images, traces_for_scope
from rollout_plugins.sinks._stream import write_json
from rollout_plugins.sinks._traces import prompt_and_completion, shape_each
from rollout_plugins.system.file_locks import hold_lock
from rollout_plugins.system.option_checks import check, integer, one_of

ANSWERS = ("answer", "solution", "ground_truth", "target", "label")


class JsonlSink:
    """Writes one line per rollout, to numbered files in a folder.

    JsonlSink()                                  # <run folder>/jsonl/0.jsonl, 1.jsonl, …
    JsonlSink("/data/rollouts", max_bytes=10**9) # another folder, larger files
    JsonlSink("-")                               # standard output: … | jq .reward

    The keys of a line are plain JSON, as the readers of verl and verifiers expect. One of them, `exact`, holds what
    the others do not state exactly, so that `rollouts import --from openai-jsonl` restores identical rollouts.
    """

    def __init__(
        self, path: str | Path | None = None, *, max_bytes: int = 256 * 2**20, scope: Scope = "global"
    ) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise SetupError(f"path={path!r} is not a path: use a folder, a named pipe, or '-' for standard output")
        check("jsonl", one_of("scope", scope, SCOPES), integer("max_bytes", max_bytes, 1))
        self.scope = scope
        self._max_bytes = max_bytes
        self._path = path if not path or path == "-" else Path(path).absolute()
        self._run = Run(id="rollouts")
        self._pipe: IO[bytes] | None = None
        self._written: dict[tuple[Path, int, int], int] = {}
        self._lost = 0

    def __reduce__(self) -> Any:
        """Pickle and copy the options only: open files cannot be copied."""
        return partial(type(self), self._path, max_bytes=self._max_bytes, scope=self.scope), ()

    @property
    def target(self) -> str:
        """The destination of the rollouts, as a text that is always the same for the same destination."""
        return "jsonl:-" if self._path == "-" else f"jsonl:{self._folder().resolve()}"

    def received(self) -> set[str] | None:
        """Return the ids of the rollouts in the files; None for a pipe."""
        return None if self._folder().is_fifo() else set(_ids_in(self._folder()))

    def gone(self) -> int:
        """Return how many lines of this run were in files that no longer exist, since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._close_pipe()
        self._run = run
        self._written, self._lost = {}, 0

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = traces_for_scope(self.scope, traces, step)
        if not traces:
            return []
        records = shape_each(traces, step, flat_record)
        lines = "".join(_json_line(trace, record) for trace, record in zip(traces, records, strict=True))
        if self._path == "-":
            write_json(sys.stdout, lines)
        elif self._folder().is_fifo():
            self._write_to_pipe(lines.encode())
        else:
            self._count_lost_lines()
            file = _append(self._folder(), lines.encode(), self._max_bytes)
            self._written[file] = self._written.get(file, 0) + len(traces)
        return [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        self._close_pipe()
        self._count_lost_lines()

    def _count_lost_lines(self) -> None:
        """Count the lines whose file was removed or moved. The next write would silently create a new file."""
        for file in [file for file in self._written if not _is_there(*file)]:
            self._lost += self._written.pop(file)

    def _folder(self) -> Path:
        folder = Path(self._path) if self._path else Path(self._run.dir or ".") / "jsonl"
        return folder / f"rank-{self._run.rank}" if self.scope == "rank" else folder

    def _write_to_pipe(self, data: bytes) -> None:
        """Write to a named pipe, and keep it open: a reader takes the end of one writer for the end of the data."""
        self._pipe = self._pipe or self._folder().open("wb", buffering=0)
        try:
            _write_all(self._pipe, data)
        except OSError:
            self._close_pipe()
            raise

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()


def _append(folder: Path, data: bytes, max_bytes: int) -> tuple[Path, int, int]:
    """Append all of `data` or nothing to the last file or a new one, and return its path, device and inode.

    Other processes may write or remove files in the folder meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.stem) for path in _files_in(folder)), default=0)
    while True:
        path = folder / f"{number}.jsonl"
        file = path.open("a+b", buffering=0)
        with hold_lock(file):
            size = file.seek(0, os.SEEK_END)
            if size < max_bytes:
                _add(file, data, size)
                status = os.fstat(file.fileno())
                return path, status.st_dev, status.st_ino
        number += 1


def _is_there(path: Path, device: int, inode: int) -> bool:
    with suppress(OSError):
        status = path.stat()
        return (status.st_dev, status.st_ino) == (device, inode)
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
    """Check whether the last line is incomplete because a process died. A new line must not be appended to it."""
    if not size:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.jsonl") if path.stem.isdecimal()]


def _ids_in(folder: Path) -> Iterator[str]:
    for path in _files_in(folder):
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):
                    yield str(orjson.loads(line)["id"])


def _json_line(trace: Trace, record: dict[str, Any]) -> str:
    rollout = rollout_of(trace)
    with suppress(Exception):  # an odd value may only cost what an import reads of it
        if rollout is not None:
            record = {**record, "exact": find_missing(rollout, record)}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def flat_record(trace: Trace) -> dict[str, Any]:
    """Return the trace as one flat object.

    The keys `input`, `output`, `gts` and `score` are those of verl; `example_id` to `info` are those of verifiers. The
    key `exact`, which `rollouts import` reads, is added later.
    """
    facts = trace.metadata
    prompt, completion = replace_images(prompt_and_completion(trace), _image_facts)
    rewards = facts_with_prefix(facts, "reward/")
    columns = facts_with_prefix(facts, "columns/")
    answer = next((columns[name] for name in ANSWERS if name in columns), None)
    return {
        **{key: value for key, value in facts.items() if "/" not in key},
        "request_id": trace.rollout_id,
        "example_id": f"{facts.get('generation')}.{facts.get('group')}",
        "input": _conversation_text(prompt),
        "output": _conversation_text(completion),
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
        "extra": facts_with_prefix(facts, "extra/"),
        "marks": facts_with_prefix(facts, "marks/"),
        "spans": replace_images(trace.spans, _image_facts),
    }


def _image_facts(image: Image) -> dict[str, Any]:
    fields = {"hash": image.hash, "path": image.path, "uri": image.uri, "note": image.note}
    return {name: value for name, value in fields.items() if value is not None}


def _conversation_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(f"{role_of(message)}: {message_text(message)}" for message in messages)
