"""What a newcomer types without having read anything, and what nobody may miss."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from reading import called, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.cli.common import real_format
from rollout_plugins.errors import DamageWarning, RunError
from rollout_plugins.reading.runs import StoredRun, runs
from rollout_plugins.report import write_report
from rollout_plugins.store import write as writing


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    made = [one(1, 0, tool_calls=(called("price"),), finish="length"), *steps(20, 2), one(20, 0, split="eval", id="e")]
    return open_run(write(tmp_path / "outputs" / "shop-rollouts", made, model="org/tiny"))


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three files, of which the second cannot be read."""
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    folder = write(tmp_path, steps(3))
    part = folder / "data" / "train" / "001-00000-000001.parquet"
    part.write_bytes(part.read_bytes()[:-30])
    return folder


# --- found without thinking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["show"], ["stats"], ["report"], ["export"], ["sql", "select 1"]])
def test_without_a_run_the_newest_below_this_folder_is_taken_and_named(rollouts, run, tmp_path, monkeypatch, words):
    write(tmp_path / "deep" / "in" / "old-rollouts", steps(1, run="old"), run="old")
    told = json.loads((tmp_path / "deep" / "in" / "old-rollouts" / "old" / "run.json").read_text())
    told["attempts"][0]["started"] = 1.0
    (tmp_path / "deep" / "in" / "old-rollouts" / "old" / "run.json").write_text(json.dumps(told))
    monkeypatch.chdir(tmp_path)
    code, _, err = rollouts(*words)
    assert code == 0
    assert "tiny · r1, the newest of 2 runs: outputs/shop-rollouts/r1\n" in err


def test_a_run_that_was_named_is_not_named_again(rollouts, run):
    assert rollouts("stats", run.dir)[2] == rollouts("stats", run.dir.with_name("..") / "shop")[2] == ""


def test_list_finds_what_the_others_find(rollouts, run, tmp_path):
    for place in (tmp_path, tmp_path / "outputs", run.dir.parent, tmp_path / "outputs" / "shop"):
        assert open_run(place).dir.resolve() == run.dir
        assert [found["folder"] for found in json.loads(rollouts("list", place, "--json")[1])] == [
            str(open_run(place).dir)
        ]


def test_runs_are_not_looked_for_in_what_was_installed_nor_in_circles(run, tmp_path):
    write(tmp_path / "venv" / "lib" / "x-rollouts", steps(1))
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    write(tmp_path / ".trash" / "x-rollouts", steps(1))
    (tmp_path / "outputs" / "again").symlink_to(tmp_path)
    assert [found.dir for found in runs(tmp_path)] == [run.dir]


def test_a_run_that_a_newer_version_wrote_hides_no_other(rollouts, run, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text('{"schema": 99}')
    code, out, err = rollouts("list", tmp_path)
    assert (code, out.count("\n")) == (0, 2)
    assert "new was written with schema 99" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--split", "test"], "no rollout has split 'test'; the run has eval, train"),
        (["--finish", "bad"], "no rollout has finish 'bad'; the run has length, stop"),
        (["--tool", "prize"], "no rollout has tool 'prize'; the run has price"),
        (["--step", "99"], "no rollout has step 99; the run has 1 to 20"),
        (["--step", "5", "--split", "eval"], "no rollout with split 'eval' has step 5; the run has 20"),
        (["--step", "10-5"], "step='10-5' ends before it begins; write 5-10"),
        (["--step", "-30"], "no rollout has step -30; the run has 1 to 20"),
        (["--rank", "3"], "no rollout has rank 3; the run has 0"),
    ],
)
def test_a_filter_that_cannot_match_is_an_error_with_what_can(rollouts, run, tmp_path, words, said):
    for command in ("show", "export", "report"):
        code, out, err = rollouts(command, run.dir, *words)
        assert (code, out) == (1, "")
        assert said in err.replace("'3'", "3")


def test_splits_steps_and_tools_that_a_run_does_not_have_are_errors(rollouts, run):
    assert "the run has eval, train" in rollouts("stats", run.dir, "--split", "test")[2]
    assert "the run has none" in rollouts("show", write(run.dir.parents[2] / "bare", steps(1)), "--tool", "x")[2]
    assert "the run has 1 to 20" in rollouts("diff", run.dir, run.dir, "--step", "99")[2]


def test_a_run_that_has_no_rollouts_yet_refuses_no_filter(rollouts, tmp_path):
    writer(tmp_path).write_run()
    assert rollouts("show", tmp_path, "--step", "3", "--split", "eval")[:2] == (0, "")


@pytest.mark.parametrize(
    "name", ["my-judge.score", "my-judge.the score", "judge.score", '"judge.score"', "reward/correct"]
)
def test_columns_work_by_the_name_that_errors_print(rollouts, run, name):
    for producer in ("judge", "my-judge"):
        run.annotate(producer, [{"id": "r1.1.t3.0.1", "score": 0.5, "the score": 0.7}])
    run.refresh()
    assert name.strip('"') in rollouts("show", run.dir, "--where", "nope > 1")[2]
    assert run.count(where=f"{name} > 0.1 and step = 3") >= 1
    assert rollouts("sql", run.dir, f'select {name} as "judge.score" from rollouts where {name} > 0.1')[1]
    for words in (["--order", f"-{name}".replace('"', "")], ["--where", f"{name} is not null"]):
        assert rollouts("show", run.dir, "--limit", "1", *words)[0] == 0


def test_group_is_a_column_in_sql_too(run):
    table = run.sql("select group, count(*) as n from rollouts group by group order by group")
    assert table["group"].to_pylist() == [0]
    assert run.sql("select 'group' as a, quantile_disc(reward, 0) as b from rollouts")["a"].to_pylist() == ["group"]
    assert run.sql("select percentile_cont(0) within group (order by reward) as p from rollouts").num_rows == 1


def test_columns_of_one_name_are_told_apart(rollouts, run):
    query = "select a.step, b.step from rollouts a join rollouts b on a.id = b.id order by 1 limit 1"
    assert json.loads(rollouts("sql", run.dir, query, "--json")[1]) == [{"step": 1, "step_1": 1}]


def test_sql_says_when_the_words_are_swapped_or_one_is_missing(rollouts, run):
    code, _, err = rollouts("sql", "select 1", run.dir)
    assert (code, err) == (1, f'rollouts: the SQL comes last: rollouts sql {run.dir} "select 1"\n')
    assert f'rollouts sql {run.dir} "select …"' in rollouts("sql", run.dir)[2]


def test_only_tables_for_people_are_shown(rollouts, run):
    run.annotate("my-judge", [{"id": "e", "score": 1}])
    shown = rollouts("sql", run.dir, "SHOW TABLES;")[1].split("\n")
    assert shown == ["name", "rollouts", "messages", "tool_calls", "steps", 'annotations."my-judge"', ""]


def test_the_help_fits_eighty_columns(rollouts):
    assert max(map(len, rollouts("--help")[1].splitlines())) <= 80


def test_help_of_a_command(rollouts):
    assert rollouts("help", "show") == rollouts("show", "--help")
    assert "'shwo' is not a command; did you mean 'show'" in rollouts("help", "shwo")[2]


# --- never a silent subset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown", "said"),
    [
        (["--split", "train"], 10, "10 of 41; --limit 0 for all"),
        (["--split", "train", "--limit", "0"], 41, ""),
        (["--limit", "0"], 42, ""),
        (["--limit", "3"], 3, "3 of 42; --limit 0 for all"),
        (["--step", "20"], 3, ""),
        (["--search", "answer", "--limit", "2"], 2, "the first 2, and there are more; --limit 0 for all"),
        (["--history", "question 0", "--limit", "2"], 2, "the first 2, and there are more; --limit 0 for all"),
        ([], 2, "best and worst of the 3 rollouts of the last step; --step last for more"),
        (["--best", "3"], 3, ""),
    ],
)
def test_show_says_of_how_many(rollouts, run, words, shown, said):
    code, out, err = rollouts("show", run.dir, "--json", *words)
    assert (code, out.count("\n")) == (0, shown)
    assert err == (f"{said}\n" if said else "")


def test_a_group_is_shown_whole(rollouts, tmp_path):
    write(tmp_path, [one(1, index, group=0) for index in range(32)])
    assert rollouts("show", tmp_path, "--group", "0", "--json")[1].count("\n") == 32


def test_diff_says_of_how_many(rollouts, tmp_path):
    a, b = (write(tmp_path, [one(step, 2 * index) for index in range(7)], run=f"r{step}") for step in (1, 2))
    assert rollouts("diff", a, b)[2] == "5 of 7 prompts that changed; --limit 0 for all\n"
    assert rollouts("diff", a, b, "--limit", "0")[2] == ""


@pytest.mark.parametrize(
    "words",
    [["sql", "{run}", "select count(*) from rollouts"], ["export", "{run}"], ["report", "{run}"], ["stats", "{run}"],
     ["stats", "{run}", "--json"], ["export", "{run}", "--to", "jsonl", "-o", "lines"]],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_its_rows_and_fails(rollouts, damaged, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    words = [word.format(run=damaged) for word in words]
    code, _, err = rollouts(*words)
    assert code == 3
    assert "data/train/001-00000-000001.parquet cannot be read and is left out, perhaps 4 rollouts: " in err
    force = ["--force"] if words[0] in {"export", "report"} else []
    assert rollouts(*words, *force, "--allow-damaged")[0] == 0


@pytest.mark.parametrize(
    "words", [["show", "{run}"], ["list", "{run}"], ["list", "{run}", "--json"], ["diff", "{run}", "{run}"]]
)
def test_every_other_command_names_it_too(rollouts, damaged, words):
    code, _, err = rollouts(*(word.format(run=damaged) for word in words))
    assert code == 0
    assert "001-00000-000001.parquet cannot be read and is left out" in err


def test_doctor_reads_every_page(rollouts, damaged):
    part = damaged / "data" / "train" / "001-00000-000000.parquet"
    data = bytearray(part.read_bytes())
    column = next(c for n in range(100) if (c := pq.read_metadata(part).row_group(0).column(n)).path_in_schema == "id")
    at = column.dictionary_page_offset or column.data_page_offset
    data[at : at + 40] = bytes(40)
    part.write_bytes(data)
    code, out, _ = rollouts("doctor", damaged, "--offline")
    assert code == 3
    assert "001-00000-000000.parquet cannot be read and is left out, 4 rollouts: " in out


def test_python_is_warned_and_may_ask(damaged):
    run = open_run(damaged)
    with pytest.warns(DamageWarning, match=r"001-00000-000001\.parquet cannot be read and is left out, perhaps 4 rol"):
        assert len(run) == 8
    assert list(run.health.damaged) == ["data/train/001-00000-000001.parquet"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(run) == 8  # once is enough


def test_files_that_are_gone_are_missed(rollouts, tmp_path):
    live = writer(tmp_path)
    live.write("train", steps(1))
    live.close({"rollouts": {"train": 10}})
    code, _, err = rollouts("sql", tmp_path, "select 1")
    assert (code, err) == (3, f"{tmp_path / 'r1'}: 6 of 10 recorded rollouts are in no file that can be read\n")


# --- the same words everywhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["export", "report"])
def test_nothing_is_overwritten_and_no_folder_invented(rollouts, run, tmp_path, command):
    out = tmp_path / "mine"
    assert rollouts(command, run.dir, "-o", out)[0] == 0
    os.utime(out, (1, 1))
    assert f"{out} exists; replace it with --force" in rollouts(command, run.dir, "--out", out)[2]
    assert out.stat().st_mtime == 1
    assert rollouts(command, run.dir, "--out", out, "--force")[0] == 0
    assert out.stat().st_mtime > 1
    assert (
        f"the folder {tmp_path / 'no'} does not exist;" in rollouts(command, run.dir, "-o", tmp_path / "no" / "x")[2]
    )
    assert f"{tmp_path} is a folder; name a file in it" in rollouts(command, run.dir, "-o", tmp_path, "--force")[2]
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["import", "--from", "openai-jsonl", "{here}/a.jsonl"],
        ["new-plugin", "rollout-x"],
        ["export", "{here}/r1", "--to", "jsonl"],
    ],
)
def test_a_folder_is_made_only_where_its_own_folder_is(rollouts, tmp_path, words):
    write(tmp_path, steps(1))
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    code, _, err = rollouts(*(word.format(here=tmp_path) for word in words), "-o", tmp_path / "no" / "x")
    assert (code, (tmp_path / "no").exists()) == (1, False)
    assert " does not exist; create it" in err


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([0.5, 1.0, 0.25], ["0.50", "1.00", "0.25"]),
        ([1.0, 2.0], ["1.0", "2.0"]),
        ([1 / 3, 1e-17], ["0.333", "0.000"]),
        ([2.5e-5, 1e-4], ["2.500e-05", "1.000e-04"]),
        ([12345.678, float("nan"), float("inf")], ["12,345.678", "nan", "inf"]),
        ([], []),
    ],
)
def test_a_column_has_one_number_format(values, written):
    form = real_format(values, 3)
    assert [format(value, form) for value in values] == written


def test_numbers_in_a_pipe_have_one_format_too(rollouts, run):
    out = rollouts("sql", run.dir, "select unnest([1/3, 1.0, 1234.5]) as x, 1234 as n")[1]
    assert out.splitlines() == ["x\tn", "0.333333\t1234", "1.000000\t1234", "1234.500000\t1234"]


@pytest.mark.slow
def test_where_only_ascii_can_be_written_nothing_breaks(run):
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for words in (["show"], ["stats"], ["list"], ["sql", "select 'é' as x"]):
        command = [sys.executable, "-m", "rollout_plugins.cli.main", *words]
        done = subprocess.run(command, cwd=run.dir.parents[2], env=settings, capture_output=True, check=True)
        assert (done.stdout + done.stderr).isascii()


@pytest.mark.parametrize("command", ["report", "export"])
def test_what_is_not_a_file_is_never_replaced(rollouts, run, tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert rollouts(command, run.dir, "-o", pipe, "--force")[::2] == (1, f"rollouts: {pipe} is not a file\n")
    assert pipe.is_fifo()
    with pytest.raises(RunError, match="pipe is not a file"):
        write_report(run, pipe, force=True)


@pytest.mark.parametrize("name", ["-", "rollouts.csv", "rollouts.jsonl", "rollouts.xlsx"])
def test_parquet_is_not_written_under_a_name_that_says_text(rollouts, run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, _, err = rollouts("export", run.dir, "-o", name)
    assert code == 1
    assert f"{name} would hold Parquet; name it *.parquet" in err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("command", "option"), [("show", "--limit"), ("show", "--best"), ("report", "--limit")])
def test_a_number_below_zero_is_refused(rollouts, run, command, option):
    code, _, err = rollouts(command, run.dir, option, "-1")
    assert code == 2
    assert f"argument {option}: '-1' is not a whole number, such as 10 or 0" in err


def test_it_works_without_standard_output(run):
    done = subprocess.run(
        ["sh", "-c", '"$0" -m rollout_plugins.cli.main show "$1" >&- 2>&-', sys.executable, run.dir], check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "--plugins", "redact", "--cap", "2"), "--plugins and --cap cannot be given with --to parquet"),
        (("export", "--set", "max_rows=3"), "--set cannot be given with --to parquet"),
        (("export", "--to", "jsonl", "--columns", "id"), "--columns cannot be given with --to jsonl"),
        (("show", "--id", "r1.1.t1.0.0", "--where", "reward > 9"), "--id shows all that it names; leave out --where"),
        (("show", "--group", "r1.1.t1.0.0", "--best", "1"), "--group ID shows all that it names; leave out --best"),
        (("show", "--history", "question 0", "--worst", "2"), "--history shows all that it names; leave out --worst"),
    ],
)
def test_no_option_is_ignored_in_silence(rollouts, run, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    command, *options = words
    code, out, err = rollouts(command, run.dir, *options)
    assert (code, out, said in err) == (1, "", True), err
    assert not list(tmp_path.glob("*.parquet"))


def test_the_doctor_asks_a_wandb_server_where_it_listens(rollouts, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}/")
        told = {row["check"]: row for row in json.loads(rollouts("doctor", tmp_path, "--json")[1])["checks"]}
    assert told["wandb"]["status"] == "ok"


def test_ctrl_c_during_a_query_ends_the_command_without_a_word(rollouts, run, monkeypatch):
    def interrupted(*_, **__):
        raise RuntimeError("Query interrupted")  # what DuckDB raises

    monkeypatch.setattr(type(run), "sql", interrupted)
    assert rollouts("sql", run.dir, "select 1") == (130, "", "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["stats", "ouputs"], "ouputs does not exist; did you mean '{here}/outputs'?"),
        (["show", "output/shop"], "output/shop does not exist; did you mean '{here}/outputs/shop'?"),
        (["stats", "elsewhere"], "elsewhere does not exist; give a run's folder, a folder of runs or the trainer's"),
        (["stats", "--splt", "eval"], "unrecognized arguments: --splt; did you mean --split? See rollouts stats"),
        (["show", "--bset=3"], "unrecognized arguments: --bset=3; did you mean --best? See rollouts show"),
        (["show", "--xyzzy"], "unrecognized arguments: --xyzzy; see rollouts show --help"),
    ],
)
def test_a_path_or_an_option_with_a_slip_is_answered_with_the_near_one(
    rollouts, run, tmp_path, monkeypatch, words, wanted
):
    monkeypatch.chdir(tmp_path)
    assert wanted.format(here=tmp_path) in rollouts(*words)[2]
