"""The `rollouts` command, as people and programs call it."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import called, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.cli.main import commands
from rollout_plugins.store.read import StoredRun
from rollout_plugins.view.pages.about import _blocks

COMMANDS = list(commands())
FIRST = "r1.1.t1.0.0"


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return open_run(write(tmp_path, steps(3), trainer="GRPOTrainer", model="tiny"))


def on_a_terminal(*words: object, columns: int = 80, lines: int = 24) -> list[str]:
    """What a person sees, without the colours."""
    main_end, other_end = pty.openpty()
    settings = {**os.environ, "COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm", "PAGER": "cat"}
    command = [sys.executable, "-m", "rollout_plugins.cli.main", *map(str, words)]
    process = subprocess.Popen(command, stdin=other_end, stdout=other_end, stderr=other_end, env=settings)
    os.close(other_end)
    seen = b""
    while True:
        try:
            piece = os.read(main_end, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    process.wait(60)
    os.close(main_end)
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()))


def test_help_names_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "rollout_plugins.cli.main", "--help"], capture_output=True, text=True, check=True
    )
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_help_imports_nothing_heavy():
    code = "import sys; from rollout_plugins.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"pyarrow", "duckdb", "rich", "torch", "transformers", "trl", "numpy", "pandas", "orjson"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(rollouts, command):
    code, out, _ = rollouts(command, "--help")
    assert code == 0
    assert out.startswith(f"usage: rollouts {command}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shwo"], "rollouts: 'shwo' is not a command; did you mean 'show'? Accepted: annotate, "),
        (["xyz"], "'xyz' is not a command; accepted: annotate, compact, completion, demo"),
        (
            ["annotate"],
            "rollouts annotate: the following arguments are required: --producer; see rollouts annotate --help",
        ),
        (["stats", ".", "--nope"], "rollouts stats: unrecognized arguments: --nope; see rollouts stats --help"),
        (["import", "--from", "x", "."], "invalid choice: 'x'"),
    ],
)
def test_what_is_not_understood_is_one_line_and_2(rollouts, words, said):
    code, out, err = rollouts(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_without_a_command_the_help_is_shown(rollouts):
    code, out, _ = rollouts()
    assert code == 2
    assert out.startswith("usage: rollouts COMMAND")
    assert rollouts("--version")[1].startswith("rollouts 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "{run}", "--where", "rewrd > 1"], "rollouts: no column is named 'rewrd'; the columns are id"),
        (["show", "{run}", "--id", "nope"], "rollouts: no rollout 'nope' in "),
        (["sql", "{run}", "drop table x"], "rollouts: runs are read-only, and the SQL is DROP; write one SELECT"),
        (["stats", "/nowhere"], "rollouts: /nowhere does not exist; give a run's folder"),
        (["stats", "{empty}"], "rollouts: no run found in or below "),
        (["annotate", "{run}", "--producer", "p", "/nowhere.jsonl"], "rollouts: /nowhere.jsonl: No such file"),
        (["export", "{run}", "--where", "false", "-o", "{empty}/x.parquet"], "no rollouts match"),
        (["import", "--from", "verl", "/nowhere"], "rollouts: /nowhere does not exist; give the file"),
        (["list", "{empty}"], "rollouts: no run found in or below "),
    ],
)
def test_what_cannot_be_done_is_one_line_and_1(rollouts, run, tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    code, out, err = rollouts(*(word.format(run=run.dir, empty=tmp_path / "empty") for word in words))
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_stats_for_a_pipe_and_for_a_program(rollouts, run):
    code, out, err = rollouts("stats", run.dir)
    rows = list(csv.DictReader(out.splitlines(), delimiter="\t"))
    assert (code, err) == (0, "")
    assert [(row["step"], row["rollouts"], row["reward"]) for row in rows] == [
        ("1", "4", "2.5"), ("2", "4", "3.5"), ("3", "4", "4.5")
    ]  # fmt: skip
    facts = json.loads(rollouts("stats", run.dir, "--json")[1])
    assert [row["reward"] for row in facts["steps"]] == [2.5, 3.5, 4.5]
    assert facts["drops"] == {}


def test_stats_say_what_was_dropped_and_what_is_damaged(rollouts, tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    live.close({"drops": {"queue_full": 3}})
    (tmp_path / "r1" / "data" / "train" / "001-00000-000007.parquet").write_bytes(b"torn")
    _, _, err = rollouts("stats", tmp_path)
    assert "lost: 3 queue_full" in err
    assert "001-00000-000007.parquet cannot be read and is left out, perhaps 1 rollout: " in err


def test_json_has_no_nan(rollouts, tmp_path):
    write(tmp_path, [one(1, 0, reward=float("nan"), rewards={"correct": float("inf")})])
    assert json.loads(rollouts("stats", tmp_path, "--json")[1])["steps"][0]["reward"] is None
    assert json.loads(rollouts("sql", tmp_path, "select reward from rollouts", "--json")[1]) == [{"reward": None}]


def test_list_finds_runs_below_a_folder(rollouts, tmp_path):
    write(tmp_path / "a" / "rollouts", steps(2, run="one"), run="one")
    writer(tmp_path / "b" / "rollouts", run="two").write_run()
    runs = json.loads(rollouts("list", tmp_path, "--json")[1])
    assert [(run["run"], run["rollouts"], run["steps"], run["state"]) for run in runs] == [
        ("one", 8, 2, "ended"), ("two", 0, 0, "open")
    ]  # fmt: skip
    assert rollouts("list", tmp_path)[1].splitlines()[0].startswith("name\trun\tstarted")


def test_show_gives_the_last_steps_best_and_worst(rollouts, run):
    code, out, _ = rollouts("show", run.dir)
    assert code == 0
    assert re.findall(r"(best|worst)  step (\d)", out) == [("best", "3"), ("worst", "3")]
    assert "Answer 3 of step 3." in out
    assert "Answer 0 of step 3." in out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--best", "2"], ["3.3", "2.3"]),
        (["--worst", "1", "--step", "2"], ["2.0"]),
        (["--best", "1", "--worst", "1", "--where", "step < 3"], ["2.3", "1.0"]),
        (["--id", FIRST, "--id", "r1.1.t2.0.1"], ["1.0", "2.1"]),
        (["--group", "1", "--step", "2"], ["2.2", "2.3"]),
        (["--group", "1"], ["3.2", "3.3"]),
        (["--group", FIRST], ["1.0", "1.1"]),
        (["--search", "answer 2", "--order", "-step"], ["3.2", "2.2", "1.2"]),
        (["--where", "reward > 4", "--limit", "1"], ["2.3"]),
        (["--step", "..2", "--order", "-reward,-step", "--limit", "2"], ["2.3", "2.2"]),
        (["--step", "-1", "--limit", "1"], ["3.0"]),
        (["--step", "-3", "--limit", "1"], ["1.0"]),
        (["--where", "-reward < -5"], ["3.3"]),
        (["--history", FIRST], ["1.0", "1.1", "2.0", "2.1", "3.0", "3.1"]),
        (["--history", "question 1", "--step", "2"], ["2.2", "2.3"]),
        (["--where", "false"], []),
    ],
)
def test_show_finds(rollouts, run, words, found):
    code, out, _ = rollouts("show", run.dir, "--json", *words)
    shown = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [f"{row['step']}.{row['index']}" for row in shown] == found
    assert rollouts("show", run.dir, *words)[0] == 0


def test_show_into_a_pipe_leaves_nothing_out(rollouts, tmp_path):
    said = "\n".join(f"line {n}" for n in range(500))
    write(tmp_path, [one(1, 0, completion=({"role": "assistant", "content": said},))])
    assert "line 250" in rollouts("show", tmp_path)[1]


def test_show_says_when_nothing_matches(rollouts, run, tmp_path):
    assert rollouts("show", run.dir, "--step", "2", "--where", "false")[2] == "no rollouts match\n"
    assert "--history takes the whole text of a message" in rollouts("show", run.dir, "--history", "question")[2]
    writer(tmp_path / "new").write_run()
    assert "has no rollouts yet" in rollouts("show", tmp_path / "new")[2]
    assert "has no rollouts yet" in rollouts("stats", tmp_path / "new")[2]


HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07 [bold]x[/bold] [/] \u202eevil\u202c \x00 \ud800 end"


@pytest.mark.slow
def test_nothing_a_model_wrote_is_obeyed(rollouts, tmp_path):
    made = one(1, 0, completion=({"role": "assistant", "content": HOSTILE},), tool_calls=(called(HOSTILE),))
    write(tmp_path, [made], trainer=HOSTILE, model=HOSTILE)
    for words in (
        ["show", tmp_path],
        ["show", tmp_path, "--group", "0"],
        ["stats", tmp_path],
        ["list", tmp_path],
        ["sql", tmp_path, "select content, role from messages"],
        ["sql", tmp_path, f'select 1 as "{HOSTILE.replace(chr(0), "").replace(chr(0xD800), "")}"'],
        ["diff", tmp_path, tmp_path],
        ["doctor", tmp_path, "--offline"],
    ):
        code, out, err = rollouts(*words)
        assert code == 0, (words, err)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", out.replace("\t", "")), words
        seen = "".join(on_a_terminal(*words))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", seen), words
    assert "[bold]x[/bold]" in rollouts("show", tmp_path)[1]


def test_sql_for_people_programs_and_spreadsheets(rollouts, run):
    query = "select step, count(*) as n, '=1+1' as f from rollouts group by step order by step limit 1"
    assert rollouts("sql", run.dir, query)[1] == "step\tn\tf\n1\t4\t=1+1\n"
    assert json.loads(rollouts("sql", run.dir, query, "--json")[1]) == [{"step": 1, "n": 4, "f": "=1+1"}]
    assert rollouts("sql", run.dir, query, "--csv")[1].splitlines() == ["step,n,f", "1,4,'=1+1"]


def test_sql_over_several_runs(rollouts, tmp_path):
    paths = [write(tmp_path, steps(n, run=f"run{n}"), run=f"run{n}") for n in (1, 2)]
    query = "select run_id, count(*) from rollouts group by all order by 1"
    assert rollouts("sql", *paths, query)[1].splitlines()[1:] == ["run1\t4", "run2\t8"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", f'{{"id": "{FIRST}", "score": 0.5, "ok": true}}\n\n{{"id": "other", "score": 1, "ok": null}}\n'),
        ("a.csv", f"id,score,ok\n{FIRST},0.5,true\nother,1,\n"),
    ],
)
def test_annotate_from_a_file(rollouts, run, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, out, err = rollouts("annotate", run.dir, "--producer", "judge", tmp_path / name)
    assert code == 0
    assert "2 rows for 1 rollout; the columns of judge are now judge." in out
    assert f"1 of these ids are not in {run.dir} (yet): 'other'" in err
    run.refresh()
    assert run.get(FIRST).extra == {"judge.score": 0.5, "judge.ok": True}
    shown = json.loads(rollouts("show", run.dir, "--json", "--where", "judge.score > 0.4")[1])
    assert shown["id"] == FIRST


def test_annotating_nothing_that_is_there_is_an_error_and_writes_nothing(rollouts, run, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": "x{number}", "score": 1}}\n' for number in range(7)))
    code, out, err = rollouts("annotate", run.dir, "--producer", "judge", tmp_path / "a.jsonl")
    assert (code, out) == (1, "")
    assert "no rollout of" in err
    assert "has any of these ids: 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more; nothing was written" in err
    assert not (run.dir / "annotations").exists()


def test_annotate_from_a_pipe_and_from_parquet(rollouts, run, tmp_path, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f'{{"id": "{FIRST}", "a": 1}}'))
    assert json.loads(rollouts("annotate", run.dir, "--producer", "p", "-", "--json")[1])["unknown_ids"] == 0
    out = tmp_path / "x.parquet"
    rollouts("export", run.dir, "-o", out, "--columns", "id,reward")
    assert rollouts("annotate", run.dir, "--producer", "q", out)[0] == 0
    run.refresh()
    assert run.get(FIRST).extra == {"p.a": 1, "q.reward": 1.0}


@pytest.mark.parametrize("text", ["{", '{"id": 1, "a": 2}', '["x"]'])
def test_a_wrong_line_writes_nothing(rollouts, run, tmp_path, text):
    (tmp_path / "a.jsonl").write_text(f'{{"id": "{FIRST}", "a": 1}}\n{text}\n')
    code, _, err = rollouts("annotate", run.dir, "--producer", "p", tmp_path / "a.jsonl")
    assert (code, err.count("\n")) == (1, 1)
    assert not (run.dir / "annotations").exists()


def test_export_writes_parquet_with_annotations(rollouts, run, tmp_path):
    run.annotate("judge", [{"id": FIRST, "score": 0.5}])
    out = tmp_path / "out.parquet"
    assert rollouts("export", run.dir, "-o", out, "--step", "1")[1] == f"4 rollouts in {out}\n"
    import duckdb

    query = f'select id, "judge.score", len(completion) from read_parquet({str(out)!r}) where index = 0'
    assert duckdb.sql(query).fetchall() == [(FIRST, 0.5, 1)]


def test_diff_shows_what_changed_on_the_same_prompts(rollouts, tmp_path):
    a = write(tmp_path, [one(1, 0, reward=0.0), one(1, 2, reward=1.0)], run="a")
    better = ({"role": "assistant", "content": "Answer 9 of step 1."},)
    b = write(tmp_path, [one(1, 0, reward=1.0, completion=better), one(1, 2, reward=1.0), one(1, 4)], run="b")
    code, out, _ = rollouts("diff", a, b)
    assert code == 0
    assert "2 prompts in both (2 and 3); reward 0.5 → 1.0; 1 better, 0 worse" in out
    assert "0.0 → 1.0  +1.0  question 0" in out
    assert "Answer[- 0-]{+ 9+} of step 1." in out
    facts = json.loads(rollouts("diff", a, b, "--json", "--limit", "1")[1])
    assert (facts["shared"], [pair["change"] for pair in facts["prompts"]]) == (2, [1.0])
    c = write(tmp_path, [one(1, 6)], run="c")
    assert "no prompt in both: 2 in the first, 1 in the second" in rollouts("diff", a, c)[1]


def test_plugins_as_json(rollouts):
    rows = json.loads(rollouts("plugins", "--json")[1])
    assert {"name", "version", "source", "hooks", "status", "reason"} <= rows[0].keys()
    assert {"images", "metrics", "trackio"} <= {row["name"] for row in rows}
    assert "images" in rollouts("plugins")[1]


def test_doctor_says_ok_and_what_is_wrong(rollouts, run, monkeypatch):
    code, out, _ = rollouts("doctor", run.dir, "--offline", "--json")
    checks = {check["check"]: check for check in json.loads(out)["checks"]}
    assert code == 0
    assert checks["duckdb"]["status"] == checks["write access"]["status"] == checks["r1"]["status"] == "ok"
    assert checks["r1"]["found"].startswith("12 rollouts in ")
    monkeypatch.setattr("rollout_plugins.cli.doctor.installed", lambda name: "0.1" if name == "duckdb" else None)
    code, out, _ = rollouts("doctor", run.dir, "--offline", "--json")
    checks = {check["check"]: check for check in json.loads(out)["checks"]}
    assert code == 1
    assert checks["duckdb"]["found"].startswith("0.1; at least 1.")
    assert checks["duckdb"]["do"].startswith("pip install -U 'duckdb>=")
    assert checks["pyarrow"] == {
        "check": "pyarrow", "status": "fail", "found": "not installed", "do": checks["pyarrow"]["do"]
    }  # fmt: skip


def test_doctor_of_a_folder_that_is_not_there_yet(rollouts, tmp_path):
    code, out, _ = rollouts("doctor", tmp_path / "not" / "yet", "--offline")
    assert code == 0
    assert f"write access\tok\t{tmp_path}" in out


def test_doctor_reports_damage_and_newer_runs(rollouts, run):
    run.files[0].write_bytes(b"torn")
    code, out, _ = rollouts("doctor", run.dir, "--offline")
    assert code == 3
    assert "r1\tdamaged\tdata/train/001-00000-000000.parquet cannot be read" in out
    assert rollouts("doctor", run.dir, "--offline", "--allow-damaged")[0] == 0
    (run.dir / "run.json").write_text('{"schema": 99}')
    code, out, _ = rollouts("doctor", run.dir, "--offline")
    assert code == 1
    assert "written with schema 99" in out


def installed_command(folder: Path, source: str, entry: str = "words = rollout_words") -> None:
    """A distribution with a command, as pip would leave it in a folder."""
    sys.modules.pop("rollout_words", None)
    (folder / "rollout_words.py").write_text(source)
    info = folder / "rollout_words-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollout-words\nVersion: 0.1\nSummary: Count words\n")
    (info / "entry_points.txt").write_text(f"[rollout_plugins.commands]\n{entry}\n")


WORDS = """
def configure(parser):
    parser.add_argument("run")
    parser.add_argument("--top", type=int, default=3, help="how many words")

def run(options):
    print("the words of", options.run, options.top)
    return 5
"""


def test_another_package_adds_a_command(rollouts, tmp_path, monkeypatch):
    installed_command(tmp_path, WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    assert rollouts("words", "here", "--top", "7") == (5, "the words of here 7\n", "")
    assert "\n  words       Count words (rollout-words)\n" in rollouts("--help")[1]
    assert "Count words (rollout-words)" in rollouts("words", "--help")[1]
    assert "-a words" in rollouts("completion", "fish")[1]
    assert "did you mean 'words'?" in rollouts("wrods")[2]


def test_help_does_not_import_another_packages_command(rollouts, tmp_path, monkeypatch):
    installed_command(tmp_path, "raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = rollouts("--help")
    assert (code, "\n  words " in out) == (0, True)
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert err == "rollouts: command 'words' does not load from rollout_words: SystemExit('imported')\n"


def test_completion_bears_a_command_that_does_not_load(rollouts, tmp_path, monkeypatch):
    installed_command(tmp_path, "import a_module_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = rollouts("completion", "bash")
    assert (code, "--where" in out, " words" in out) == (0, True, True)


def test_a_command_whose_optional_part_is_missing_says_so_in_one_line(rollouts, tmp_path, monkeypatch):
    installed_command(tmp_path, WORDS + "    import a_module_nobody_has")
    source = (tmp_path / "rollout_words.py").read_text().replace("    return 5\n", "")
    (tmp_path / "rollout_words.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert err == "rollouts: a part that this command needs is not installed: No module named 'a_module_nobody_has'\n"


def test_a_command_without_its_functions_is_told_what_a_command_is(rollouts, tmp_path, monkeypatch):
    installed_command(tmp_path, "def run(options): ...")
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = rollouts("words", "here")
    assert code == 1
    assert "which has no configure; a command is a module with configure(parser) and run(options)" in err


def test_no_package_replaces_one_of_our_commands(rollouts, tmp_path, monkeypatch, run):
    installed_command(tmp_path, WORDS, "list = rollout_words")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = rollouts("list", run.dir.parent)
    assert code == 0
    assert "the words of" not in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(rollouts, shell):
    code, out, _ = rollouts("completion", shell)
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "search" in out


def test_bash_completes(rollouts, tmp_path):
    script = tmp_path / "c.sh"
    script.write_text(rollouts("completion", "bash")[1])
    asked = 'source {}; COMP_WORDS=({}); COMP_CWORD={}; _rollouts; echo "${{COMPREPLY[@]}}"'
    for words, at, found in (("rollouts st", 1, "stats"), ("rollouts show --hi", 2, "--history")):
        done = subprocess.run(
            ["bash", "-c", asked.format(script, words, at)], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert done.stdout.split() == [found]


def test_a_pipe_that_closes_early_is_no_error(tmp_path):
    write(tmp_path, steps(300, size=8))
    command = f"{sys.executable} -m rollout_plugins.cli.main sql {tmp_path} 'select * from messages' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.slow
def test_on_a_terminal_nothing_is_wider_than_the_window(run, columns):
    for words in (
        ["stats", run.dir],
        ["list", run.dir.parent],
        ["show", run.dir],
        ["plugins"],
        ["doctor", run.dir, "--offline"],
    ):
        seen = on_a_terminal(*words, columns=columns)
        assert max(map(len, seen)) <= columns, words
        assert len(seen) > 3, words
    assert any("reward 2.5 → 4.5" in line for line in on_a_terminal("stats", run.dir))


def test_a_table_that_is_too_wide_gives_up_what_matters_least(tmp_path):
    calls = (called("search"), called("search", "error"))
    made = [
        one(step, n, tool_calls=calls, rewards={"correct": 0.123, "format": 0.456}) for step in (1, 2) for n in (0, 1)
    ]
    write(tmp_path, made)
    narrow, wide = (on_a_terminal("stats", tmp_path, columns=columns) for columns in (80, 160))
    heads = [next(line for line in seen if line.startswith(" step")) for seen in (narrow, wide)]
    assert "reward" in heads[0]
    assert "max" not in heads[0]
    assert heads[1].split("  ")[-1].strip() == "failed"
    assert max(map(len, narrow)) <= 80


def test_colours_and_charts_stay_out_of_a_pipe(run):
    done = subprocess.run(
        [sys.executable, "-m", "rollout_plugins.cli.main", "show", str(run.dir)],
        capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": ""},
    )  # fmt: skip
    assert "\x1b" not in done.stdout


ODD = "caf\u00e9 \u2014 \U0001f600 \x9b31m \u202eevil\u202c \u2028"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    made = [one(1, index, prompt=({"role": "user", "content": ODD},), columns={"note": ODD}) for index in range(2)]
    return write(tmp_path / "odd", made, trainer=ODD, model=ODD)


def on_ascii(*words: object) -> tuple[int, str, str]:
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "rollout_plugins.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, env=settings, check=False)
    return done.returncode, done.stdout.decode("ascii"), done.stderr.decode("ascii")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["list"], ["show"], ["show", "--json"], ["show", "--group", "0"], ["stats"], ["stats", "--json"],
        ["sql", "select json_extract_string(columns, '$.note') as note from rollouts"], ["sql", "--csv", "select json_extract_string(columns, '$.note') as note from rollouts"],
        ["sql", "--json", "select json_extract_string(columns, '$.note') as note from rollouts"], ["export", "--to", "jsonl", "-o", "-"], ["doctor"],
        ["plugins"], ["completion", "bash"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.slow
def test_every_command_writes_to_an_output_that_takes_ascii_alone(odd: Path, words: list[str]) -> None:
    takes_run = words[0] not in {"--help", "plugins", "completion"}
    code, out, err = on_ascii(words[0], *([odd] if takes_run else []), *words[1:])
    assert (code, err) == (0, "")
    assert out
    if "--json" in words or "-" in words:
        assert "caf\\u00e9 \\u2014 \\ud83d\\ude00" in out or words[0] == "stats"


def test_json_on_an_ascii_output_says_the_same(odd: Path) -> None:
    _, out, _ = on_ascii("show", odd, "--json", "--limit", 1)
    assert json.loads(out)["columns"] == {"note": ODD}
    _, out, _ = on_ascii("export", odd, "--to", "jsonl", "-o", "-", "--limit", 1)
    assert json.loads(out)["info"] == {"note": ODD}
    _, out, _ = on_ascii(
        "sql", odd, "--json", "select json_extract_string(columns, '$.note') as note from rollouts limit 1"
    )
    assert json.loads(out) == [{"note": ODD}]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "--json"], ["sql", "--json", "select json_extract_string(columns, '$.note') as note from rollouts"], ["export", "--to", "jsonl", "-o", "-"],
        ["sql", "--csv", "select json_extract_string(columns, '$.note') as note from rollouts"], ["sql", "select json_extract_string(columns, '$.note') as note from rollouts"], ["show"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_output_is_obeyed_by_a_terminal(odd: Path, words: list[str]) -> None:
    seen = "".join(on_a_terminal(words[0], odd, *words[1:]))
    assert re.findall("[\x7f-\x9f\u2028-\u202e]", seen) == []
    assert "\\u202eevil" in seen


MANGLED = [
    None, True, -1, 10**30, 1e308, float("nan"), "x\ud800\x1b[2J", [[1], None, {"a": 1}],
    {"name": {"a": [1]}, "a\ud800": 10**40}, {"$dict": [[[1], 2], [None, 3]]},
]  # fmt: skip


def mangled(folder: Path, value: Any) -> list[dict[str, Any]]:
    """The facts of a run with the value in place of theirs: of the run, of its attempts, or of what those counted."""
    facts = json.loads((folder / "run.json").read_text())
    (attempt,) = facts["attempts"]
    counts = dict.fromkeys(("rollouts", "generations", "drops", "plugin_errors", "seconds"))
    return [
        {**dict.fromkeys(facts, value), "schema": facts["schema"], "attempts": facts["attempts"]},
        {
            **facts,
            "reward_names": [value, "correct"],
            "tools": [value],
            "reward_weights": [value],
            "settings": {"a": value},
        },
        {**facts, "attempts": value, "schema": value},
        {**facts, "attempts": [value, dict.fromkeys([*attempt, *counts], value)]},
        {**facts, "attempts": [{**attempt, **{name: {"why": value} for name in counts}}]},
    ]


@pytest.mark.slow  # 250 commands, half of which write a report
@pytest.mark.parametrize("value", MANGLED, ids=repr)
def test_a_mangled_run_file_breaks_no_command(run, rollouts, value, tmp_path):
    for facts in mangled(run.dir, value):
        (run.dir / "run.json").write_text(json.dumps(facts))
        for command in (
            ["list", tmp_path], ["list", tmp_path, "--json"], ["stats", run.dir, "--json"],
            ["doctor", run.dir, "--offline", "--json"], ["report", run.dir, "-o", tmp_path / "page.html", "--force"],
        ):  # fmt: skip
            code, out, err = rollouts(*command)
            assert (code, "Traceback" in err) == (0, False), (command, facts, err)
            assert "\x1b[2J" not in out
        stored = open_run(run.dir)
        assert len(stored) == 12
        assert stored.info.id
        assert list(_blocks(stored))
        assert stored._repr_html_()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"settings": ' + '{"a":' * 900 + "1" + "}" * 900 + "}", "9" * 5000, "\0"]
)
def test_a_run_file_that_no_reader_takes_is_named(run, rollouts, text):
    (run.dir / "run.json").write_text(text)
    assert len(open_run(run.dir)) == 12
    code, _, err = rollouts("stats", run.dir)
    assert (code, "run.json cannot be read" in err) == (3, True)


def test_annotations_from_a_folder_named_like_a_column_are_what_the_file_holds(run, rollouts, tmp_path):
    path = tmp_path / "score=7" / "judged.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": [FIRST], "why": ["vague"]}), path)
    code, _, err = rollouts("annotate", run.dir, path, "--producer", "judge")
    assert (code, open_run(run.dir).annotations) == (0, {"judge": ["why"]}), err
