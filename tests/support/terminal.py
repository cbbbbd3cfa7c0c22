"""A program in a real terminal. What it writes is read all the time that a test waits: a full terminal stops it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, command, columns=80, lines=24, *, signals=False, **more):
        """`signals`: the program has a session of its own, so that Ctrl-C reaches it as in a person's terminal."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        size = {"COLUMNS": str(columns), "LINES": str(lines)}
        session = {"start_new_session": True, "preexec_fn": _take_terminal} if signals else {}
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **size, **more}, **session
        )
        os.close(theirs)
        self._written = b""

    @property
    def written(self):
        """All that the program wrote so far."""
        return self._written.decode("utf-8", "replace")

    @property
    def seen(self):
        """The same without colours and movements."""
        return CONTROL.sub("", self.written)

    def sees(self, text, seconds=600):
        """Wait until this is there, or the program has ended without it."""
        end = time.monotonic() + seconds
        while text not in self.seen and self._read(0.1):
            assert time.monotonic() < end, self.written

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def ends(self):
        """Its exit code, once it has ended."""
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait()

    def _read(self, seconds=None):
        """What there is, within this time; False when the program has ended."""
        if select.select([self._ours], [], [], seconds)[0]:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end open
                return False
            self._written += piece
            return bool(piece)
        return True


def _take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
