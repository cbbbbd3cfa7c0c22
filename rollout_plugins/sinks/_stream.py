"""Write to a stream that the training prints to as well, such as standard output, without holding up its prints."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

from rollout_plugins.content.json_safe import escape_for_stream

_UNREAD_BYTES = 16_384
"""How much unread text we leave in a pipe. Linux pipes hold 64 KB; the rest is for what the training prints."""


def write_text(stream: TextIO, text: str) -> None:
    """Write `text`, with escapes for the characters that the stream's encoding lacks."""
    encoding = _encoding(stream)
    _write(stream, text.encode(encoding, "backslashreplace").decode(encoding))


def write_json(stream: TextIO, lines: str) -> None:
    """Write lines of JSON, with JSON escapes for the characters that the stream's encoding lacks."""
    _write(stream, escape_for_stream(stream, lines))


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _write(stream: TextIO, text: str) -> None:
    descriptor = _descriptor(stream)
    if descriptor is not None and os.isatty(descriptor):
        _write_to_terminal(descriptor, text.encode(_encoding(stream)))
    elif descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        _write_to_pipe(stream, descriptor, text)
    else:
        stream.write(text)
        stream.flush()


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor that `stream` writes to. A notebook's stream has one, but does not write to it."""
    if sys.platform != "win32" and isinstance(stream, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            return stream.fileno()
    return None


def _write_to_terminal(descriptor: int, data: bytes) -> None:
    """Write past Python's stream, whose lock would be held for as long as Ctrl-S stops the terminal."""
    while data:
        data = data[os.write(descriptor, data) :]


def _write_to_pipe(stream: TextIO, descriptor: int, text: str) -> None:
    """Write through the stream, so that no line is torn apart, but only as fast as the reader reads."""
    for piece in _pieces(text):
        _wait_for_reader(descriptor)
        stream.write(piece)
        stream.flush()


def _pieces(text: str) -> Iterator[str]:
    """Split `text` into lines, and lines that are too long for the pipe into parts."""
    for line in text.splitlines(keepends=True):
        # A character takes up to four bytes.
        length = _UNREAD_BYTES // 4 if len(line) * 4 > _UNREAD_BYTES else _UNREAD_BYTES
        yield from (line[start : start + length] for start in range(0, len(line), length))


def _wait_for_reader(descriptor: int) -> None:
    """Wait until the pipe holds little unread text, or has no reader any more: the next write then says so."""
    import fcntl
    import termios

    closed = select.poll()
    closed.register(descriptor, select.POLLERR)
    pause = 0.0005
    while not closed.poll(0):
        unread = int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
        if unread <= _UNREAD_BYTES:
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
