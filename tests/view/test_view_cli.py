"""`rollouts view` as a command: in a real terminal, and where there is none."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from reading import steps, write

pytestmark = pytest.mark.slow

MAIN = "from rollout_plugins.cli.main import main; import sys; sys.exit(main())"


@pytest.fixture
def run(tmp_path):
    return str(write(tmp_path, steps(3)))


class Terminal:
    """A program in a pseudo-terminal of 80 x 24."""

    def __init__(self, *arguments, program=MAIN):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(slave)
        self.seen = ""

    def sees(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen):
            assert time.monotonic() < end, self.seen
            if not self._reads():
                return

    def press(self, keys):
        os.write(self.master, keys.encode())

    def ends(self, seconds=60):
        """Reads on until then: a program that fills its terminal waits for its reader."""
        end = time.monotonic() + seconds
        while self._reads():
            assert time.monotonic() < end, self.seen
        os.close(self.master)
        return self.process.wait(seconds)

    def _reads(self):
        """Whether the program still has the terminal."""
        if select.select([self.master], [], [], 0.1)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                return False
        return True


def test_it_opens_and_leaves_the_terminal_as_it_was(run):
    terminal = Terminal("view", run)
    terminal.sees("12 rollouts")
    terminal.press("\r")
    terminal.sees("step 1")
    terminal.press("qq")
    assert terminal.ends() == 0


def test_without_a_terminal_it_says_what_to_use(run):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "view", run],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"rollouts: view needs a terminal; for text to read or to pipe: rollouts show {run}\n"


@pytest.mark.parametrize(
    ("arguments", "program", "said"),
    [
        ([], "import sys; sys.modules['textual'] = None; " + MAIN, "pip install 'rollout-plugins[view]'"),
        (["--id", "nobody"], MAIN, "no rollout 'nobody'"),
        (["--plugin", "nowhere:Plugin"], MAIN, "plugin 'nowhere:Plugin' cannot be loaded"),
        (["--where", "nonsense > 1"], MAIN, "no column is named 'nonsense'"),
    ],
    ids=["without textual", "unknown rollout", "unknown plugin", "bad filter"],
)
def test_what_cannot_be_done_is_said_before_the_screen_opens(run, arguments, program, said):
    terminal = Terminal("view", run, *arguments, program=program)
    terminal.sees(said)
    assert said in " ".join(terminal.seen.split())
    assert terminal.ends() == 1
    assert "\x1b[?1049h" not in terminal.seen


def test_importing_the_view_needs_no_textual():
    code = "import rollout_plugins.view, rollout_plugins.cli.view, sys; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
