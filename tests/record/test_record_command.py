"""`rollouts record -- COMMAND` becomes the command: its arguments, signals, status and terminal are its own."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_command import RECORD, outside
from terminal import Terminal

PYTHON = sys.executable
NOTHING = "rollouts record: nothing was recorded: the command created no transformers Trainer\n"
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"


def venv(folder, *, path=()):
    """A Python of its own, with nothing installed but what is on this path."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "more.pth").write_text("\n".join(map(str, path)))
    return folder / "bin" / "python", packages


def test_the_command_gets_its_arguments_exactly(record):
    words = ["a b", "it's", '"q" $HOME *', "", "--tokens", "--step", "-1", "--", "--where", "-x", "ü"]
    for dashes in (["--"], []):
        done = record(*dashes, PYTHON, "-c", SHOW, *words)
        assert (done.returncode, json.loads(done.stdout)) == (0, words)


def test_options_before_the_command_are_ours_and_those_after_it_are_its_own(record):
    show = "import os, sys; print(os.environ['ROLLOUT_PLUGINS_RECORD'], sys.argv[1:])"
    done = record("--tokens", "--plugins", "redact,console", PYTHON, "-c", show, "--plugins", "x")
    assert done.stdout == "--plugins=redact,console --tokens ['--plugins', 'x']\n"


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_status_is_the_commands(record, code):
    done = record("--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err\n")


def test_the_command_is_the_process_that_was_started(tmp_path):
    with subprocess.Popen([*RECORD, "--", "sh", "-c", "echo $$"], env=outside(), stdout=subprocess.PIPE) as process:
        assert int(process.communicate()[0]) == process.pid


@pytest.mark.parametrize("name", ["TERM", "PIPE"])
def test_a_signal_ends_the_command_as_without_us(record, name):
    command = ["sh", "-c", f"kill -{name} $$; echo survived"]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    done = record("--", *command)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)


def test_a_module_and_a_script_on_standard_input_run(record, tmp_path):
    (tmp_path / "hello.py").write_text("import sys; print('hello', sys.argv[1:], __name__)")
    assert record("--", PYTHON, "-m", "hello", "x").stdout == "hello ['x'] __main__\n"
    assert record("--", PYTHON, "-", "x", stdin="import sys; print(sys.argv)").stdout == "['-', 'x']\n"
    assert record("--", PYTHON, stdin="print(1 + 1)").stdout == "2\n"


def test_a_script_without_a_first_line_runs_in_a_shell(record, tmp_path):
    (tmp_path / "train").write_text("echo ran $1\n")
    (tmp_path / "train").chmod(0o755)
    assert record("--", "./train", "x y").stdout == "ran x y\n"


def test_ctrl_c_reaches_the_command_in_a_terminal():
    wait = "import time\ntry:\n    print('waits', flush=True); time.sleep(600)\nexcept KeyboardInterrupt:\n    print('asked to stop'); raise SystemExit(5)"
    terminal = Terminal([*RECORD, "--", PYTHON, "-c", wait], columns=200, signals=True)
    terminal.sees("waits")
    terminal.press("\x03")
    assert terminal.ends() == 5
    assert "asked to stop" in terminal.seen
    assert terminal.seen.splitlines()[-1] == NOTHING.strip()


# --- before it starts ------------------------------------------------------------------------------------------------


def test_a_command_that_does_not_exist_is_named(record, tmp_path):
    (tmp_path / "train.py").touch()
    done = record("--", "no-such-command", "x")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "rollouts: there is no command 'no-such-command': check that it is installed and on PATH\n"
    assert "write rollouts record -- python train.py --lr 1\n" in record("--", "train.py", "--lr", "1").stderr
    assert "write it without quotes, rollouts record -- sh x\n" in record("--", "sh x").stderr
    assert "no command to run" in record().stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plugins", "redcat"], "no plugin named 'redcat' is installed; did you mean 'redact'?"),
        (["--disable", "metric"], "disable names 'metric', which is not a plugin; did you mean 'metrics'?"),
        (["--dir", "s3://bucket/runs"], "dir='s3://bucket/runs' is a URL"),
        (["--end-seconds", "soon"], "end_seconds is 'soon'; give a number of seconds"),
        (["--config", "nowhere.toml"], "/nowhere.toml' cannot be read: No such file or directory"),
        (["--config", "wrong.json"], "/wrong.json' is not JSON: "),
        (["--config", "cap.json"], "config names 'caps', which is not a plugin; did you mean 'cap'?"),
        (["--mirror", "s4://bucket/runs"], "s4"),
        (["--token"], "unrecognized arguments: --token; did you mean --tokens?"),
    ],
)
def test_wrong_options_are_an_error_before_the_command_starts(record, tmp_path, options, message):
    (tmp_path / "wrong.json").write_text("{")
    (tmp_path / "cap.json").write_text('{"caps": {}}')
    done = record(*options, "--", "touch", "started")
    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_python_that_ignores_its_environment_is_an_error(record):
    done = record("--", PYTHON, "-uI", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "python -uI ignores PYTHONPATH, so nothing would be recorded: leave -uI out" in done.stderr
    assert record("--", PYTHON, "-u", "-c", "print('ran')", "-I").stdout == "ran\n"


@pytest.mark.parametrize("kind", ["python", "script", "script with a long first line"])
def test_a_virtual_environment_that_lacks_us_is_one_error(record, tmp_path, kind):
    python, _ = venv(tmp_path / "my env")
    script = tmp_path / "trl"
    first = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''" if "long" in kind else f"#!{python}"
    script.write_text(f"{first}\nprint('ran')\n")
    script.chmod(0o755)
    if kind == "script":  # a kernel finds no Python whose path has a space
        python, _ = venv(tmp_path / "env")
        script.write_text(f"#!{python} -u\nprint('ran')\n")
    name = python if kind == "python" else "./trl"
    done = record("--", name, "x", stdin="left alone")
    assert (done.returncode, done.stdout) == (1, "")
    where = f"{name} runs on {python}, where rollout-plugins is not installed: {python} -m pip install rollout-plugins"
    assert done.stderr == f"rollouts: {where}\n"


def test_options_are_checked_where_the_command_runs(record, tmp_path):
    python, _ = venv(tmp_path / "env", path=[path for path in sys.path if path])
    done = record("--plugins", "redcat", "--", python, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'redact'?" in done.stderr
    assert record("--plugins", "redact", "--", python, "-c", "print('ran')").stdout == "ran\n"


# --- what other processes notice -------------------------------------------------------------------------------------

LOOK = "import json, sys; print(json.dumps([sys.path, [m for m in sys.modules if m.startswith('rollout_')]]))"


def test_a_process_without_a_trainer_imports_nothing_of_ours(record):
    path, ours = json.loads(record("--", PYTHON, "-c", LOOK).stdout)
    alone = subprocess.run([PYTHON, "-c", LOOK], env=outside(), capture_output=True, text=True, check=True)
    assert ours == []
    assert [path, ours] == json.loads(alone.stdout)


def test_a_sitecustomize_that_is_there_already_runs_and_has_its_name(record, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __file__")
    show = "import sitecustomize, sys; print(sitecustomize.__file__, sys.theirs)"
    done = record("--", PYTHON, "-c", show, PYTHONPATH=str(tmp_path))
    assert done.stdout == f"{tmp_path}/sitecustomize.py {tmp_path}/sitecustomize.py\n"


def test_a_sitecustomize_that_fails_fails_as_without_us(record, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import a_module_nobody_has")
    command = [PYTHON, "-c", "print('ran')"]
    env = outside(PYTHONPATH=str(tmp_path))
    alone = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    done = record("--", *command, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert alone.stderr in done.stderr
    assert "a_module_nobody_has" in alone.stderr


def test_a_path_for_imports_that_is_set_still_counts(record, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("NAME = 'mine'")
    twice = [
        *RECORD,
        "--",
        PYTHON,
        "-c",
        "import mine, os; print(mine.NAME, os.environ['PYTHONPATH'].count('at_startup'))",
    ]
    done = record("--", *twice, PYTHONPATH=str(tmp_path / "lib"))
    assert done.stdout == "mine 1\n"


# --- when nothing was recorded ---------------------------------------------------------------------------------------


def test_a_command_that_trained_nothing_says_so_at_its_end(record, tmp_path):
    child = f"import subprocess, sys; subprocess.run([{PYTHON!r}, '-c', 'print(1)'])"
    assert record("--", PYTHON, "-c", child).stderr == NOTHING
    assert record("--", PYTHON, "-c", "raise SystemExit(4)").stderr == NOTHING


def test_a_python_without_transformers_runs_and_says_so(record, tmp_path):
    python, packages = venv(tmp_path / "env", path=[path for path in sys.path if path])
    (packages / "sitecustomize.py").write_text("import sys; sys.modules['transformers'] = None")
    script = "try:\n    import transformers\nexcept ImportError:\n    print('not here')"
    done = record("--", python, "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "not here\n", NOTHING)


def test_a_shell_script_is_not_blamed_for_programs_that_train_nothing(record):
    assert record("--", "sh", "-c", f"{shlex.quote(PYTHON)} -c 'print(1)'").stderr == ""


def test_the_variables_do_the_same_and_say_nothing_at_the_end(record, tmp_path):
    lines = record("--environment", "--dir", "my runs", "--plugins", "redact").stdout
    show = "import os; print(os.environ['ROLLOUT_PLUGINS_RECORD'], os.environ['PYTHONPATH'])"
    script = f"{lines}{shlex.quote(PYTHON)} -c {shlex.quote(show)}"
    for before, after in (("", ""), ("/before", ":/before")):
        env = outside(**({"PYTHONPATH": before} if before else {}))
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True)
        value, _, path = done.stdout.rstrip("\n").rpartition(" ")
        assert shlex.split(value) == [f"--dir={tmp_path}/my runs", "--plugins=redact"]
        folder = path.removesuffix(after)
        assert Path(folder, "sitecustomize.py").is_file()
        assert done.stderr == ""


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_switched_off_it_does_nothing(record, tmp_path, value):
    folder = record("--environment").stdout.partition("PYTHONPATH=")[2].partition("$")[0]
    look = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    env = outside(PYTHONPATH=shlex.split(folder)[0], ROLLOUT_PLUGINS_RECORD=value)
    done = subprocess.run([PYTHON, "-c", look], env=env, capture_output=True, text=True, check=True)
    assert "TrainerFinder" not in done.stdout


def test_no_notes_are_left_behind(record, tmp_path):
    (tmp_path / "tmp").mkdir()
    assert record("--", PYTHON, "-c", "pass", TMPDIR=str(tmp_path / "tmp")).returncode == 0
    assert not list((tmp_path / "tmp").iterdir())
