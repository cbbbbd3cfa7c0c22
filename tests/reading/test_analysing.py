"""A function for each batch of rollouts: over all cores here, it becomes annotations."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from store_rig import record, rollouts, run_in

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import DamageWarning, MissingExtraError, RunError
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.write import RunWriter


def twice(table):
    return {"reward": pc.multiply(table["reward"], 2), "said": pa.array(["x"] * table.num_rows)}


def one_short(table):
    return table["reward"].slice(1)


def raising(table):
    raise ValueError("not today")


def test_what_a_function_says_of_each_batch_becomes_annotations_of_every_file_and_journal(tmp_path):
    record(tmp_path, rollouts(4))
    writer = RunWriter(run_in(tmp_path, attempt=2))
    writer.write("train", rollouts(1, id="b", attempt=2, generation=5))
    run, told = open_run(tmp_path / "r1"), []
    assert len({part.path.suffix for part in find_parts(run.dir)}) == 2

    count = run.annotate_by("check", twice, columns=["reward"], progress=lambda done, of: told.append((done, of)))

    assert count == len(run) == 5
    assert run.count(where="check.reward = 2 * reward and check.said = 'x'") == 5
    assert told[-1] == (2, 2)


def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path):
    writer = RunWriter(run_in(tmp_path))
    for number in range(2):
        writer.write("train", rollouts(1, id=f"{number}", generation=number))
        writer.close()
    run = open_run(tmp_path / "r1")
    whole, torn = [part.path for part in find_parts(run.dir)]
    torn.write_bytes(torn.read_bytes()[:-100])
    with pytest.warns(DamageWarning, match="cannot be read and is left out"):
        assert run.annotate_by("check", twice, columns=["reward"]) == 1
    assert list(run.health.damaged) == [torn.relative_to(run.dir).as_posix()]
    whole.write_bytes(whole.read_bytes()[:-100])
    assert run.annotate_by("check", twice, columns=["reward"]) == 0


def test_a_run_without_a_rollout_is_analysed(tmp_path):
    assert record(tmp_path).annotate_by("check", twice, columns=["reward"]) == 0


def test_a_function_that_says_too_little_is_told(tmp_path):
    run = record(tmp_path, rollouts(4))
    with pytest.raises(
        RunError, match="the function returned 3 values of 'value' for 4 rollouts; return one value for each rollout"
    ):
        run.annotate_by("check", one_short, columns=["reward"])
    with pytest.raises(RunError, match="a batch has no column 'rewrd'; did you mean 'reward'"):
        run.annotate_by("check", twice, columns=["rewrd"])
    with pytest.raises(RunError, match=r"the function raised ValueError\('not today'\) at test_analysing.py:\d+$"):
        run.annotate_by("check", raising, columns=["reward"])
    assert run.annotations == {}


def test_an_engine_that_is_not_installed_is_one_line(tmp_path, monkeypatch):
    run = record(tmp_path, rollouts(1))
    for engine in ("ray", "daft", "pyspark"):
        monkeypatch.setitem(__import__("sys").modules, engine, None)
    for engine, extra in (("ray", "ray"), ("daft", "daft"), ("spark", "spark")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'rollout-plugins\[{extra}\]'"):
            run.dataset(engine)


def test_the_command_runs_a_function_of_the_folder_it_is_in(tmp_path, monkeypatch, capsys):
    run = record(tmp_path, rollouts(4))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def words(table):\n    return [len(m) for m in table['completion'].to_pylist()]\n"
    )
    assert (
        main(["annotate", str(run.dir), "--producer", "check", "--by", "mine:words", "--columns", "completion"]) == 0
    )
    assert "4 rows; the columns of check are now check.value" in capsys.readouterr().out
    assert open_run(run.dir).count(where="check.value = 1") == 4
    for words, said in (
        (["--by", "mine:none"], "names no function"),
        ([], "give the values: a FILE of them, or --by"),
    ):
        assert main(["annotate", str(run.dir), "--producer", "check", *words]) == 1
        assert said in capsys.readouterr().err
