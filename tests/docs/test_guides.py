"""The tutorial and the how-to pages, run as printed. The own loop and the plugin have tests of their own."""

import re
import runpy
import shlex
import warnings
from functools import partial
from pathlib import Path

import duckdb
import pytest
import trl
from reading import one, steps, write
from rig import make

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.store.schema import MESSAGE, SCHEMA, TOOL_CALL

ROOT = Path(__file__).parents[2]
GUIDES = ["index", "tutorial", "beside", "trainers", *(f"how-to/{page}" for page in ("look", "query", "annotate", "rescore", "prompts", "compare", "export", "log", "trackio", "wandb", "images", "secrets", "ranks", "rollout-func", "host")), "reference/files"]  # fmt: skip
GENERATED = re.compile(r"<!-- generated: .*?<!-- /generated -->", re.DOTALL)
NEEDS_A_TERMINAL = ("view",)


def text_of(page):
    return GENERATED.sub("", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


def snippets():
    found = [(page, code) for page in GUIDES for code in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)]
    return [pytest.param(code, id=f"{page}-{n}") for n, (page, code) in enumerate(found)]


def commands():
    blocks = [block for page in GUIDES for block in re.findall(r"```sh\n(.*?)```", text_of(page), re.DOTALL)]
    lines = [shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith("rollouts ")]
    return [words[1:] for words in lines if words[1] not in NEEDS_A_TERMINAL]


@pytest.fixture(scope="module")
def place(demo):
    """A folder in which the demo and the tutorial ran, briefly."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        runpy.run_path(str(ROOT / "examples" / "tutorial.py"))["main"](str(demo / "outputs" / "tutorial"), steps=1)
    assert [str(each.message) for each in told if issubclass(each.category, (DeprecationWarning, FutureWarning))] == []
    stored, dataset = demo / "outputs" / "demo", demo / "middle.parquet"  # which a snippet of how-to/prompts reads
    assert main(["prompts", str(stored), "--by", "correct", "--band", "0.2:0.8", "--to", str(dataset)]) == 0
    return demo


def test_the_tutorial_keeps_every_rollout_with_calls_that_worked_and_calls_that_failed(place):
    run = open_run(place / "outputs" / "tutorial")
    assert (len(run), run.steps) == (32, [1])
    assert {"ok", "error"} <= {call.status for rollout in run.rollouts() for call in rollout.tool_calls}
    assert run.info.reward_names == ("correct", "brief")


@pytest.mark.parametrize("code", snippets())
def test_each_snippet_runs_as_printed(code, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(trl, "GRPOConfig", partial(trl.GRPOConfig, use_cpu=True, bf16=False))
    if "add_callback" not in code:
        exec(code, {})
        return
    trainer = make(tmp_path)
    exec(code, {"trainer": trainer})
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 4


def test_the_sql_of_the_page_on_files_leaves_out_what_was_done_again(tmp_path):
    write(tmp_path, steps(5))
    write(tmp_path, [one(step, 0, attempt=2) for step in range(3, 7)], attempt=2, resumed_from=2)
    current = re.search(r'current = f"""(.*?)"""', text_of("reference/files"), re.DOTALL)[1]
    counted = duckdb.sql(current.replace("{run}", str(tmp_path / "r1"))).fetchall()
    stored = open_run(tmp_path)
    assert sorted(row[0] for row in counted) == sorted(rollout.id for rollout in stored.rollouts())
    assert len(counted) == 12 < stored.count(superseded=True)


def test_the_tables_have_the_columns_that_the_page_on_files_gives_them(tmp_path):
    write(tmp_path, steps(1))
    stored = open_run(tmp_path)
    ours = ["id", "run_id", "split", "step", "group", "rank", "reward"]
    said = [field.name for field in MESSAGE if field.name != "rest"]
    called = [field.name for field in TOOL_CALL if field.name not in {"reply", "rest"}]
    assert stored.sql("describe messages")["column_name"].to_pylist() == [*ours, "part", "position", *said]
    assert stored.sql("describe tool_calls")["column_name"].to_pylist() == [*ours, *called]
    found = stored.sql("describe rollouts")["column_name"].to_pylist()
    assert set(found) == {*SCHEMA.names, "reward/correct", "reward/format"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_runs_as_printed(words, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(words) == 0
