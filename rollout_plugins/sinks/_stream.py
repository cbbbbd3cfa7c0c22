"""Writing to a stream that the training thread writes to as well.

Python locks a stream while it is written to, and a reader may stay away for hours. So the lock is taken only for
what the reader has room for, and training keeps room of its own.
"""

from __future__ import annotations

import io
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rollout_plugins.content.json_safe import json_for
from rollout_plugins.system.patience import is_patient

_READER_SECONDS = 0.25
_PIPE_BYTES = 16_384
_UNREAD = "nobody reads the terminal, so rollouts are not shown in it"
_WATCH_SECONDS = 1.0
Terminal = tuple[int, ...]
_unread: set[Terminal] = set()
_watching: set[Terminal] = set()


def write_text(stream: TextIO, text: str) -> None:
    """Write the text, spelling out what the stream has no letters for."""
    encoding = _encoding(stream)
    _write(stream, text.encode(encoding, "backslashreplace").decode(encoding))


def write_json(stream: TextIO, lines: str) -> None:
    """Write lines of JSON, which stay JSON where the stream has no letters for them."""
    _write(stream, json_for(stream, lines))


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _write(stream: TextIO, text: str) -> None:
    descriptor = None if threading.current_thread() is threading.main_thread() else _descriptor(stream)
    if descriptor is not None and os.isatty(descriptor) and not is_patient():
        _to_terminal(descriptor, text.encode(_encoding(stream)))
    elif descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        _to_pipe(stream, descriptor, text)
    else:
        stream.write(text)
        stream.flush()


def _descriptor(stream: TextIO) -> int | None:
    """The file behind the stream. A notebook's stream names one too, but does not write to it."""
    if sys.platform != "win32" and isinstance(stream, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            return stream.fileno()
    return None


# --- terminals -------------------------------------------------------------------------------------------------------


def _to_terminal(descriptor: int, data: bytes) -> None:
    """Write without Python's lock and without waiting; a terminal that nobody reads is left to the training.

    What a terminal holds unread is about 20 kB. Were it left full, the trainer's progress bar would wait for ever.
    """
    about = os.fstat(descriptor)
    terminal = (about.st_dev, about.st_ino, about.st_ctime_ns)
    if terminal in _unread:
        raise TimeoutError(_UNREAD)
    _watched(terminal, descriptor)
    with _opened(descriptor) as own:
        while data:
            try:
                data = data[os.write(own, data[:2048]) :]
            except BlockingIOError:
                if not _is_read(own, terminal):
                    raise TimeoutError(_UNREAD) from None


def _is_read(own: int, terminal: Terminal) -> bool:
    """Whether the terminal has room, at once or soon; one that was full because nobody reads it is empty now."""
    if _has_room(own, _READER_SECONDS):
        return True
    _take_back(own)
    if _has_room(own, 0):  # one that Ctrl-S holds has none, and will go on
        _unread.add(terminal)
    return False


def _watched(terminal: Terminal, descriptor: int) -> None:
    """Look after a terminal with text of ours in it: the trainer's text may be what fills it up."""

    def watch(own: int) -> None:
        hung_up = select.poll()
        hung_up.register(own, 0)
        while terminal not in _unread and not hung_up.poll(_WATCH_SECONDS * 1000):
            _is_read(own, terminal)
        os.close(own)

    if terminal not in _watching:
        own = _open(descriptor)
        _watching.add(terminal)
        threading.Thread(target=watch, args=(own,), name="rollouts-terminal", daemon=True).start()


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    """The terminal, opened a second time: not to wait is a setting of an open file, and training shares its own."""
    own = _open(descriptor)
    try:
        yield own
    finally:
        os.close(own)


def _open(descriptor: int) -> int:
    return os.open(_name(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)


def _name(descriptor: int) -> str:
    try:
        return os.ttyname(descriptor)
    except OSError:  # a terminal from outside the container
        return f"/proc/self/fd/{descriptor}"


def _has_room(own: int, seconds: float) -> bool:
    """Whether the terminal takes more, at once or soon."""
    poll = select.poll()
    poll.register(own, select.POLLOUT)
    ready = bool(poll.poll(seconds * 1000))
    time.sleep(0.001)  # while another thread writes to it, it takes nothing either
    return ready


def _take_back(own: int) -> None:
    """Discard what nobody has read, and wake every writer that waits."""
    import termios

    # A background process that touches a terminal's settings is stopped, unless it blocks this signal.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with suppress(termios.error):  # nobody waits for a terminal that is gone
            termios.tcflush(own, termios.TCOFLUSH)
            termios.tcsetattr(own, termios.TCSANOW, termios.tcgetattr(own))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


# --- pipes -----------------------------------------------------------------------------------------------------------


def _to_pipe(stream: TextIO, descriptor: int, text: str) -> None:
    """Write through the stream, in line with what training prints, as the reader makes room."""
    for piece in _pieces(text):
        _wait_until_read(descriptor)
        stream.write(piece)
        stream.flush()


def _pieces(text: str) -> Iterator[str]:
    """Whole lines where they fit."""
    for line in text.splitlines(keepends=True):
        most = _PIPE_BYTES // 4 if len(line) * 4 > _PIPE_BYTES else _PIPE_BYTES
        yield from (line[start : start + most] for start in range(0, len(line), most))


def _wait_until_read(descriptor: int) -> None:
    """Wait until little is left unread, or the reader is gone and the write will say so."""
    import fcntl
    import termios

    poll = select.poll()
    poll.register(descriptor, select.POLLERR)
    pause = 0.0005
    while not poll.poll(0):
        unread = int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
        if unread <= _PIPE_BYTES:
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
