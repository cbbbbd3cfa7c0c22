"""`rollouts view` as a command: in a real terminal, and where there is none."""

import subprocess
import sys

import pytest
from reading import steps, write
from terminal import Terminal

pytestmark = pytest.mark.slow

MAIN = "from rollout_plugins.cli.main import main; import sys; sys.exit(main())"


@pytest.fixture
def run(tmp_path):
    return str(write(tmp_path, steps(3)))


def viewing(*arguments, program=MAIN):
    return Terminal([sys.executable, "-c", program, "view", *arguments], TERM="xterm-256color")


def test_it_opens_and_leaves_the_terminal_as_it_was(run):
    terminal = viewing(run)
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
    terminal = viewing(run, *arguments, program=program)
    terminal.sees(said)
    assert said in " ".join(terminal.seen.split())
    assert terminal.ends() == 1
    assert "\x1b[?1049h" not in terminal.written


def test_importing_the_view_needs_no_textual():
    code = "import rollout_plugins.view, rollout_plugins.cli.view, sys; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
