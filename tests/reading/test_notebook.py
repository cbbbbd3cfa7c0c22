"""What a notebook and a Python prompt show of a run, of some of its rollouts, and of one."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pyarrow as pa
import pytest
from reading import one as made_one
from reading import write
from store_rig import record, rollouts
from values import same

import rollout_plugins
from rollout_plugins import Rollout, ToolCall, open_run, runs
from rollout_plugins.errors import RunError
from rollout_plugins.testing import hostile_rollouts

ATTACK = "</div><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e"
CALL = {"type": "function", "function": {"name": "price", "arguments": {"item": "hats"}}}


class Seen(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = set(), [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("shown"), *(rollouts(reward=step / 8) for step in (1, 2, 5, 8)))


def shopper(text):
    return Rollout(
        id="r1.1.t5.0.17",
        step=6,
        group=2,
        index=17,
        reward=0.9333333,
        finish="stop",
        prompt=({"role": "user", "content": text},),
        completion=(
            {"role": "assistant", "content": text, "tool_calls": [CALL]},
            {"role": "tool", "content": text},
            {"role": "assistant", "content": f"<think>{text}</think>The total is 72.\n"},
        ),
        tool_calls=(ToolCall(name="price", arguments={"item": text}, turn=0, reply=1, result=text),),
        rewards={text: 1.0},
    )


def test_a_rollout_is_one_line_at_the_prompt():
    shown = repr(replace(shopper("How much?"), completion=({"role": "assistant", "content": "The total\nis 72."},)))
    assert shown == (
        "<Rollout r1.1.t5.0.17: train step 6, group 2, #17, reward 0.933, 1 tool call, stop, 'The total\\nis 72.'>"
    )


def test_whatever_is_in_a_rollout_its_line_is_one_safe_line():
    for one in (*hostile_rollouts(), shopper(ATTACK), Rollout(id="x")):
        shown = repr(one)
        assert len(shown.splitlines()) == 1, shown
        assert shown.isprintable()
        assert len(shown) < 400


def test_a_notebook_shows_the_conversation():
    seen = Seen(shopper("How much are 8 books?")._repr_html_())
    for said in ("step 6", "0.933", "user", "How much are 8 books?", "assistant", "price(item=", "The total is 72."):
        assert said in seen.text
    assert not seen.open


def test_what_a_model_wrote_is_text_in_a_notebook(tmp_path):
    hostile = record(tmp_path, [replace(shopper(ATTACK), id="")])
    (one,) = hostile
    shown = [one._repr_html_(), hostile._repr_html_(), hostile.rollouts()._repr_html_()]
    for html in (*shown, *(rollout._repr_html_() for rollout in hostile_rollouts())):
        seen = Seen(html)
        assert seen.tags <= {"div", "b", "table", "tr", "th", "td"}
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", html)
    assert "alert(1)" in Seen(shown[0]).text


def test_a_long_conversation_does_not_fill_the_notebook():
    message = {"role": "user", "content": "word " * 50_000}
    html = replace(shopper("x"), prompt=(message,) * 500)._repr_html_()
    assert len(html) < 500_000
    assert "messages …" in html
    assert "characters …" in html


def test_a_run_shows_its_numbers_and_its_course(run):
    shown = repr(run)
    assert "16 rollouts" in shown
    assert "steps 1 to 4" in shown
    assert "reward ▁▂▅█ 0.125 → 1.0" in shown
    assert len(shown.splitlines()) == 1
    seen = Seen(run._repr_html_())
    assert "▁▂▅█ 0.125 → 1.0" in seen.text
    assert "16" in seen.text


def test_a_run_that_cannot_be_read_still_has_a_line(tmp_path):
    gone = record(tmp_path, rollouts())
    for path in sorted(gone.dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert repr(gone).startswith("<StoredRun 'r1")


def test_a_run_is_its_rollouts_in_order(run):
    everything = list(run.rollouts())
    assert [one.id for one in run] == [one.id for one in everything]
    assert same(run[0], everything[0])
    assert run[-1].id == everything[-1].id
    assert [one.id for one in run[2:9:3]] == [one.id for one in everything[2:9:3]]
    assert run[everything[5].id].index == everything[5].index
    with pytest.raises(IndexError, match="16 rollouts"):
        run[16]
    with pytest.raises(RunError, match="no rollout 'nobody'"):
        run["nobody"]


def test_a_sequence_of_rollouts_prints_its_length_and_its_first_ones(run):
    matching = run.rollouts(where="reward < 1", order="-reward")
    lines = repr(matching).splitlines()
    assert lines[0] == "12 rollouts:"
    assert lines[1].startswith("  <Rollout r1.1.t")
    assert lines[-1] == "  … 7 more"
    assert "hello" in Seen(matching._repr_html_()).text
    assert matching[0].reward == 0.625
    assert len(list(matching)) == len(list(matching)) == 12
    assert repr(run.rollouts(where="reward > 5")) == "0 rollouts"


def test_a_wrong_question_is_refused_where_it_is_asked(run):
    with pytest.raises(RunError, match="no column is named 'rewrd'"):
        run.rollouts(where="rewrd > 1")


def test_runs_are_public_and_each_has_its_line(tmp_path):
    for name in ("one", "two"):
        record(tmp_path / name / "rollouts", rollouts())
    found = rollout_plugins.runs(tmp_path)
    assert found[0].dir == runs(tmp_path)[0].dir
    assert [line.strip()[:11] for line in repr(found).splitlines()] == ["2 runs:", "<StoredRun ", "<StoredRun "]
    assert Seen(found._repr_html_()).text.count("0.75") == 8
    assert open_run(found[1].dir).dir == found[1].dir


JUPYTER = """
import sys, types
sys.modules["ipywidgets"] = None  # not installed
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
from rollout_plugins import open_run
print(len(open_run(sys.argv[1])))
"""


def test_a_notebook_without_the_widgets_that_duckdb_wants_opens_a_run(run):
    done = subprocess.run([sys.executable, "-c", JUPYTER, run.dir], capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(run)}\n"


class Shell:
    """IPython's, as far as formatters go."""

    def __init__(self):
        self.known = {}
        self.display_formatter = self
        self.formatters = {"text/html": self}

    def __contains__(self, kind):
        return kind in self.known

    def for_type(self, kind, function):
        self.known[kind] = function


def test_a_notebook_draws_the_answer_to_sql(run, monkeypatch):
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    table = run.sql("select id, step, reward, '<script>' as odd, null as none from rollouts")
    seen = Seen(shell.known[pa.Table](table))
    assert {"table", "th", "td"} <= seen.tags
    assert "script" not in seen.tags
    assert "0.125" in seen.text
    assert f"{table.num_rows} rows" in seen.text
    mine = shell.known[pa.Table] = object()
    run.sql("select 1")
    assert shell.known[pa.Table] is mine


def test_an_error_is_one_line_in_a_notebook(run):
    with pytest.raises(RunError) as raised:
        run.sql("select rewrad from rollouts")
    (line,) = raised.value._render_traceback_()
    assert line == "RunError: no column is named 'rewrad'; did you mean 'reward'?"


def test_an_answer_has_a_first_and_a_last_rollout(run):
    answer = run.rollouts(order="-reward")
    assert (answer[0].reward, answer[-1].reward) == (1.0, 0.125)
    assert [rollout.id for rollout in answer[:3]] == [rollout.id for rollout in answer][:3]
    with pytest.raises(IndexError, match="there are 0 rollouts, and none at 0"):
        run.rollouts(where="reward > 9")[0]


def test_runs_are_compared_in_one_table(tmp_path):
    for name, rate in (("a", 1e-5), ("b", 3e-5)):
        made = [
            made_one(step, index, run=name, reward=step * (1 + (name == "b"))) for step in (1, 2) for index in range(4)
        ]
        write(tmp_path, made, run=name, model="org/tiny", settings={"learning_rate": rate, "beta": 0.0})
    found = runs(tmp_path)
    first, second = found.compare()
    assert (first["run"], first["rollouts"], first["first_reward"], first["last_reward"]) == ("a", 8, 1.0, 2.0)
    assert (second["run"], second["first_reward"], second["best_reward"]) == ("b", 2.0, 4.0)
    assert (first["learning_rate"], second["learning_rate"]) == (1e-5, 3e-5)
    assert not {"beta", "model"} & first.keys()
    seen = Seen(found._repr_html_())
    assert [seen.open, seen.tags] == [[], {"table", "tr", "th", "td"}]
    assert "learning_rate" in seen.text


def test_a_filter_of_another_name_is_told_the_near_one(run):
    with pytest.raises(RunError, match="there is no filter 'serch'; did you mean 'search'"):
        run.count(serch="x")
