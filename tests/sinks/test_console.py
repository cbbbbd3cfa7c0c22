"""The console sink prints the best and the worst rollout of a step: a screenful in a terminal, otherwise JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from processes import environment
from shown_rollouts import rollout, traces

from examples import thorough
from rollout_plugins import Image, Step, Trace
from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks.console import ConsoleSink


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _screen(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")


def batch(*rewards, **facts):
    return [
        default_trace(
            replace(
                rollout(completion=({"role": "assistant", "content": f"answer {n}"},), tool_calls=()),
                id=f"r{n}",
                index=n,
                reward=reward,
                **facts,
            )
        )
        for n, reward in enumerate(rewards)
    ]


def printed(sink_traces, step=None, *, file=None, **options):
    file = file if file is not None else Terminal()
    ConsoleSink(file=file, **options).export_traces(sink_traces, step or Step(step=12))
    return file.getvalue()


def ids(text):
    return [json.loads(line)["id"] for line in text.splitlines()]


def test_one_best_and_one_worst_by_default():
    text = printed(batch(0.5, 2.0, -1.0, 1.0))
    assert "answer 1" in text
    assert "answer 2" in text
    assert "answer 0" not in text
    assert text.index("best") < text.index("answer 1") < text.index("worst") < text.index("answer 2")
    assert "\x1b[" in text


def test_best_and_worst_set_how_many_are_printed_highest_first_and_none_twice():
    assert ids(printed(batch(3, 1, 2), json=True, best=2, worst=2)) == ["r0", "r2", "r1"]
    assert ids(printed(batch(3, 1, 2), json=True, best=0, worst=1)) == ["r1"]
    assert ids(printed(batch(3, 1, 2), json=True, best=2, worst=0)) == ["r0", "r2"]
    assert ids(printed(batch(5.0), json=True)) == ["r0"]


def test_missing_and_nan_rewards_are_neither_best_nor_worst():
    assert ids(printed(batch(None, 1, float("nan"), 2), json=True)) == ["r3", "r1"]
    text = printed(batch(None, float("nan"), None))
    assert "answer 0" in text
    assert "answer 1" in text
    assert "best" not in text


def test_by_ranks_by_another_fact():
    chosen = [replace(t, metadata={**t.metadata, "score": s}) for t, s in zip(batch(1, 2, 3), (9, 8, 7), strict=True)]
    assert ids(printed(chosen, json=True, by="score", worst=0)) == ["r0"]


def test_a_group_side_by_side_is_the_one_whose_rewards_differ_most():
    text = printed([*batch(1, 1, group=0), *batch(0, 3, group=1)], group=True)
    assert "group 1" in text
    assert "2 answers" in text
    assert "│" in text


def test_without_siblings_a_group_falls_back_to_best_and_worst():
    text = printed([*batch(1, group=0), *batch(2, group=1)], group=True)
    assert "best" in text
    assert "worst" in text


def test_every_prints_one_of_so_many_batches_of_each_split():
    out = io.StringIO()
    sink = ConsoleSink(every=3, file=out)
    for n in range(7):
        sink.export_traces(batch(n, step=n), Step(step=n))
        sink.export_traces(batch(n, step=n, split="eval"), Step(step=n, split="eval"))
    seen = [json.loads(line)["metadata"] for line in out.getvalue().splitlines()]
    assert [(m["split"], m["step"]) for m in seen] == [(s, n) for n in (0, 3, 6) for s in ("train", "eval")]


def test_prints_json_lines_to_a_file_and_text_to_a_terminal():
    assert ids(printed(batch(1, 2), file=io.StringIO())) == ["r1", "r0"]
    assert ids(printed(batch(1, 2), json=True)) == ["r1", "r0"]
    plain = printed(batch(1, 2), file=io.StringIO(), json=False)
    assert plain.startswith("best  step 12")
    assert "\x1b" not in plain


def test_a_json_line_contains_the_complete_trace():
    content = [
        {"type": "image", "image": Image(hash="h", path="media/h.png")},
        {"type": "text", "text": "long " * 9999},
    ]
    trace = default_trace(rollout(prompt=({"role": "user", "content": content},)))
    line = json.loads(printed([trace], json=True))
    assert line["messages"][0]["content"][0]["image"]["path"] == "media/h.png"
    assert line["messages"][0]["content"][1]["text"] == "long " * 9999
    assert line["metadata"]["reward/correct"] == 1.0
    assert line["spans"][0]["duration_ms"] == 12


def test_json_lines_contain_no_terminal_control_characters():
    evil = "\x1b[2J \x9b31m \u202e \u2028 \x7f \udc80"
    text = printed(
        [Trace(rollout_id="x", messages=({"role": "user", "content": evil},), metadata={"reward": 1})], json=True
    )
    assert not set(text) & set("\x1b\x9b\u202e\u2028\x7f\udc80")
    assert len(text.splitlines()) == 1
    assert json.loads(text)["messages"][0]["content"] == evil.replace("\udc80", "\\udc80")


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40), (40, 10), (20, 3)])
def test_never_more_than_a_screenful(monkeypatch, columns, height):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(height))
    long = [replace(t, messages=({"role": "assistant", "content": "word " * 9999},)) for t in batch(1, 2, 3)]
    for options in ({}, {"group": True}, {"best": 9, "worst": 9}):
        assert 0 < printed(long, **options).count("\n") < height


def test_max_lines_is_exact():
    long = [replace(t, messages=({"role": "assistant", "content": "word " * 9999},)) for t in batch(1, 2, 3)]
    assert printed(long, max_lines=17).count("\n") == 17


def test_an_ascii_output_gets_escapes():
    class Ascii(Terminal):
        encoding = "ascii"

    assert "\\u2192" in printed(batch(1, 2), file=Ascii())


def test_progress_bars_are_cleared_before_printing():
    tqdm = pytest.importorskip("tqdm").tqdm
    out = Terminal()
    bar = tqdm(total=10, file=out, mininterval=0, miniters=1)
    bar.update(3)
    before = len(out.getvalue())
    ConsoleSink(file=out).export_traces(batch(1, 2), Step(step=1))
    bar.close()
    added = out.getvalue()[before:]
    assert added.startswith("\r")
    assert "best" in added.split("\n")[0].rsplit("\x1b[J", 1)[1]


@pytest.fixture
def unread():
    """A terminal that nobody reads; its attribute `reader` is the descriptor to read it from."""
    reader, terminal = pty.openpty()
    screen = os.fdopen(terminal, "w")
    screen.reader = reader
    yield screen
    os.close(reader)  # before the screen, so that closing it does not wait for a reader
    with suppress(OSError):
        screen.close()


def reads(unread, text):
    """Read from the terminal until `text` has come; a read may return only a piece of it."""
    output = b""
    while text not in output:
        output += os.read(unread.reader, 4096)
    return True


def test_a_terminal_that_stands_still_holds_no_lock_that_training_takes(unread):
    tqdm = pytest.importorskip("tqdm").tqdm
    bar = tqdm(total=10, file=io.StringIO(), mininterval=0, miniters=1)
    termios.tcflow(unread, termios.TCOOFF)  # what Ctrl-S does
    sink = ConsoleSink(file=unread)
    export = threading.Thread(target=lambda: sink.export_traces(batch(1), Step(step=1)), daemon=True)
    export.start()
    export.join(1)
    assert export.is_alive()
    bar.update(1)
    unread.flush()
    bar.close()
    termios.tcflow(unread, termios.TCOON)
    export.join(600)
    assert reads(unread, b"What is 12")


def test_an_export_waits_for_a_terminal_that_ctrl_s_stopped(unread):
    termios.tcflow(unread, termios.TCOOFF)
    code = (
        "from rollout_hookspecs import Step\nfrom shown_rollouts import rollout\n"
        "from rollout_plugins.content.trace import default_trace\n"
        "from rollout_plugins.sinks.console import ConsoleSink\n"
        "ConsoleSink().export_traces([default_trace(rollout())], Step(step=2))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=unread, stderr=subprocess.DEVNULL, env=environment())
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(5)
    termios.tcflow(unread, termios.TCOON)
    assert child.wait(600) == 0
    assert reads(unread, b"What is 12")


def test_json_lines_stay_json_where_the_output_is_ascii():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    unicode_rollout = replace(rollout(tool_calls=()), completion=({"role": "assistant", "content": "Zürich 😀"},))
    ConsoleSink(file=out).export_traces([default_trace(unicode_rollout)], Step(step=1))
    assert "Zürich 😀" in json.loads(out.buffer.getvalue())["messages"][-1]["content"]


def test_prints_to_the_current_standard_output(capsys):
    sink = ConsoleSink()
    sink.export_traces(batch(1, 2), Step(step=1))
    assert ids(capsys.readouterr().out) == ["r1", "r0"]


def test_an_empty_batch_prints_nothing():
    assert printed([]) == ""


@thorough
@given(traces)
def test_no_content_raises(trace):
    for options in ({}, {"json": True}, {"group": True}):
        assert printed([trace, trace], **options)


def test_one_error_names_all_bad_options():
    with pytest.raises(SetupError) as error:
        ConsoleSink(best=-1, worst="x", every=0, max_lines=True, json="yes", group=1, by="", file=3)
    message = str(error.value)
    assert message.startswith("console: best=-1 is not a whole number of at least 0; worst='x'")
    assert all(f"{name}=" in message for name in ("every", "max_lines", "json", "group", "by", "file"))
    with pytest.raises(SetupError, match="would show nothing"):
        ConsoleSink(best=0, worst=0)


def test_every_option_is_documented():
    options = ("best", "worst", "by", "group", "every", "max_lines", "json", "file")
    assert all(f"ConsoleSink({name}=" in (ConsoleSink.__doc__ or "") for name in options)
