"""The `rollouts` command, as people and programs call it."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from reading import one, steps, write, writer
from rollout_hookspecs import Image, Tokens, ToolCall

from rollout_plugins.cli.main import commands

COMMANDS = list(commands())
FIRST = "r1.1.t1.0.0"


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
        (["shwo"], "rollouts: 'shwo' is not a command; did you mean 'show'? See rollouts --help"),
        (["xyz"], "'xyz' is not a command; accepted: annotate, check, compact, completion"),
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


def test_a_demo_of_no_steps_is_refused(rollouts, tmp_path):
    code, out, err = rollouts("demo", "--steps", "0", "-o", tmp_path / "demo")
    assert (code, out, err) == (1, "", "rollouts: --steps 0 would train nothing: use 1 or more\n")
    assert not (tmp_path / "demo").exists()


def test_without_a_command_the_help_is_shown(rollouts):
    code, out, _ = rollouts()
    assert code == 2
    assert out.startswith("usage: rollouts COMMAND")
    assert rollouts("--version")[1].startswith("rollouts 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "{run}", "--where", "rewrd > 1"], "rollouts: no column is named 'rewrd'; did you mean 'reward'?"),
        (["show", "{run}", "--id", "nope"], "rollouts: no rollout 'nope' in "),
        (["sql", "{run}", "drop table x"], "rollouts: runs are read-only, and the SQL is DROP; write one SELECT"),
        (["stats", "/nowhere"], "rollouts: /nowhere does not exist; give a run's folder"),
        (["stats", "{empty}"], "rollouts: no run found in or below "),
        (["annotate", "{run}", "--producer", "p", "/nowhere.jsonl"], "rollouts: /nowhere.jsonl: No such file"),
        (["export", "{run}", "--where", "false", "-o", "{empty}/x.parquet"], "no rollouts match"),
        (["import", "--from", "verl", "/nowhere"], "rollouts: /nowhere does not exist: give the file"),
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


def test_json_has_nan_and_infinity_as_text(rollouts, tmp_path):
    write(tmp_path, [one(1, 0, reward=float("nan"), rewards={"correct": float("inf")})])
    assert json.loads(rollouts("stats", tmp_path, "--json")[1])["steps"][0]["reward"] is None
    assert json.loads(rollouts("sql", tmp_path, "select reward from rollouts", "--json")[1]) == [{"reward": "NaN"}]
    assert json.loads(rollouts("stats", tmp_path, "--json")[1])["steps"][0]["reward/correct"] == "Infinity"


def test_list_finds_runs_below_a_folder(rollouts, tmp_path):
    write(tmp_path / "a" / "rollouts", steps(2, run="one"), run="one")
    writer(tmp_path / "b" / "rollouts", run="two").write_run()
    killed = writer(tmp_path / "c" / "rollouts", run="old")
    killed.write_run()
    for path in killed.dir.rglob("*"):
        os.utime(path, (0, 0))
    runs = json.loads(rollouts("list", tmp_path, "--json")[1])
    assert [(run["run"], run["rollouts"], run["steps"], run["state"]) for run in runs] == [
        ("one", 8, 2, "ended"), ("two", 0, 0, "running"), ("old", 0, 0, "no end written")
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


def test_show_prints_json_that_other_programs_understand(rollouts, tmp_path):
    call = ToolCall(name="price", arguments={"item": "hats"}, status="ok", seconds=0.5)
    image = Image(hash="ab", path="media/ab.png", width=2)
    said = {"role": "user", "content": [{"type": "image", "image": image}]}
    odd = one(1, 0, prompt=(said,), tool_calls=(call,), images=(image,), columns={"pair": (1, 2)}, reward=math.nan)
    write(tmp_path, [replace(odd, tokens=Tokens(completion=[5, 6]))])
    shown = json.loads(rollouts("show", tmp_path, "--id", odd.id, "--json")[1])
    assert shown["prompt"][0]["content"][0]["image"] == {"$image": {"hash": "ab", "path": "media/ab.png", "width": 2}}
    assert (shown["tool_calls"], shown["images"]) == ([asdict(call)], [asdict(image)])
    assert shown["tokens"]["completion"] == [5, 6]
    assert (shown["columns"], shown["reward"]) == ({"pair": {"$tuple": [1, 2]}}, {"$float": "nan"})


def test_show_into_a_pipe_leaves_nothing_out(rollouts, tmp_path):
    said = "\n".join(f"line {n}" for n in range(500))
    write(tmp_path, [one(1, 0, completion=({"role": "assistant", "content": said},))])
    assert "line 250" in rollouts("show", tmp_path)[1]


def test_show_says_when_nothing_matches(rollouts, run, tmp_path):
    assert rollouts("show", run.dir, "--step", "2", "--where", "false")[2] == "no rollouts match\n"
    assert "--history takes the whole text of a message" in rollouts("show", run.dir, "--history", "question")[2]
    writer(tmp_path / "new").write_run()
    assert rollouts("show", tmp_path / "new")[2].endswith("has no rollouts\n")
    assert rollouts("stats", tmp_path / "new")[2].endswith("has no rollouts\n")
    writer(tmp_path / "lost").close({"drops": {"queue_full": 3}})
    assert rollouts("show", tmp_path / "lost")[2].endswith("has no rollouts; lost: 3 queue_full\n")


def test_sql_for_people_programs_and_spreadsheets(rollouts, run):
    query = "select step, count(*) as n, '=1+1' as f from rollouts group by step order by step limit 1"
    assert rollouts("sql", run.dir, query)[1] == "step\tn\tf\n1\t4\t=1+1\n"
    assert json.loads(rollouts("sql", run.dir, query, "--json")[1]) == [{"step": 1, "n": 4, "f": "=1+1"}]
    assert rollouts("sql", run.dir, query, "--csv")[1].splitlines() == ["step,n,f", "1,4,'=1+1"]


def test_sql_over_several_runs(rollouts, tmp_path):
    paths = [write(tmp_path, steps(n, run=f"run{n}"), run=f"run{n}") for n in (1, 2)]
    query = "select run_id, count(*) from rollouts group by all order by 1"
    assert rollouts("sql", *paths, query)[1].splitlines()[1:] == ["run1\t4", "run2\t8"]


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
    assert "2 prompts in both (2 and 3); reward 0.5 → 1.0; 1 improved, 0 regressed" in out
    assert "0.0 → 1.0  +1.0  question 0" in out
    assert "Answer[- 0-]{+ 9+} of step 1." in out
    facts = json.loads(rollouts("diff", a, b, "--json", "--limit", "1")[1])
    assert (facts["shared"], [pair["change"] for pair in facts["prompts"]]) == (2, [1.0])
    c = write(tmp_path, [one(1, 6)], run="c")
    assert "no prompt in both: 2 in the first, 1 in the second" in rollouts("diff", a, c)[1]


def test_diff_shows_answers_that_explain_the_difference(rollouts, tmp_path):
    def said(index, reward, text):
        return one(1, index, group=0, prompt=("What?",), reward=reward, completion=(text,))

    a = write(tmp_path, [said(0, 1.0, "right"), said(1, 1.0, "right"), said(2, 0.0, "wrong")], run="a")
    b = write(tmp_path, [said(0, 1.0, "right"), said(1, 0.0, "wrong"), said(2, 0.0, "wrong")], run="b")
    out = rollouts("diff", a, b)[1]
    assert "0.667 → 0.333  -0.333  What?" in out
    assert "[-right-]{+wrong+}" in out
    assert "typical answers are the same" not in out


def test_plugins_as_json(rollouts):
    rows = json.loads(rollouts("plugins", "--json")[1])
    assert {"name", "version", "source", "hooks", "status", "reason"} <= rows[0].keys()
    assert {"images", "metrics", "trackio"} <= {row["name"] for row in rows}
    assert "images" in rollouts("plugins")[1]


@pytest.mark.needs(part="jsonl")
def test_export_sets_any_option_of_a_sink(rollouts, run, tmp_path):
    words = ("export", run.dir, "--to", "jsonl", "-o", tmp_path / "lines", "--set")
    assert rollouts(*words, "max_bytes=1", "--set", "scope=rank")[0] == 0
    assert len([*(tmp_path / "lines").rglob("*.jsonl")]) == 3
    assert "has no option 'max_byts'; did you mean 'max_bytes'?" in rollouts(*words, "max_byts=1")[2]
    assert "max_bytes='many'" in rollouts(*words, "max_bytes=many")[2]
    code, _, err = rollouts(*words, "max_bytes")
    assert (code, "'max_bytes' is not an option and its value" in err) == (2, True)


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
    assert checks["extras"]["status"] == "note"
    assert {"torch", "textual", "ray"} <= set(checks["extras"]["found"].removeprefix("not installed: ").split(", "))
    extras = checks["extras"]["do"].partition("[")[2].partition("]")[0].split(",")
    assert {"demo", "view", "ray"} <= set(extras)
    assert "all" not in extras


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
