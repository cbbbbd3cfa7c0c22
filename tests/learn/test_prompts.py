"""Runs by prompt: pass rates, bands, files that train again, and sampling weights."""

import json
import math

import pytest
from datasets import Dataset, load_dataset
from reading import one, write
from rig import dataset, make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError
from rollout_plugins.learn.prompt_ids import prompt_id
from rollout_plugins.learn.prompts import prompt_weights, prompts_of

COURSES = {
    "forgotten": ["11", "10", "00"],
    "stuck": ["00", "00", "00"],
    "learnt": ["00", "01", "11"],
    "mixed": ["10", "00", "10"],
    "saturated": ["11", "11", "11"],
    "unscored": ["--", "--", "--"],
}


def question(name):
    return ({"role": "user", "content": name},)


def course(folder, courses, run="r1", **fields):
    """A run in which each prompt is answered twice in each step, with the passes that its course names."""
    rows = [
        one(
            step, 2 * group + place, group=group, prompt=question(name),
            rewards={"correct": None if passed == "-" else float(passed)},
            reward=None if passed == "-" else float(passed), **fields,
        )
        for group, (name, steps) in enumerate(courses.items())
        for step, answers in enumerate(steps, 1)
        for place, passed in enumerate(answers)
    ]  # fmt: skip
    return write(folder, rows, run)


def by_name(found):
    return {row["prompt"][0]["content"]: row for row in found.table.to_pylist()}


def test_bands_say_what_became_of_each_prompt(tmp_path):
    found = prompts_of(open_run(course(tmp_path, COURSES)), "correct")
    rows = by_name(found)
    assert {name: row["band"] for name, row in rows.items()} == {name: name for name in COURSES}
    assert found.bands == dict.fromkeys(found.bands, 1)
    learnt = rows["learnt"]
    assert (learnt["attempts"], learnt["passes"], learnt["pass_rate"], learnt["first_solved"]) == (6, 3, 0.5, 2)
    assert (learnt["pass_low"], learnt["pass_high"]) == (
        pytest.approx(0.1876, abs=1e-4),
        pytest.approx(0.8124, abs=1e-4),
    )
    assert learnt["trend"] == [0.0, 0.5, 1.0]
    assert (learnt["first_step"], learnt["last_step"], learnt["steps_seen"]) == (1, 3, 3)
    assert rows["stuck"]["first_solved"] is None
    unscored = rows["unscored"]
    assert (unscored["rollouts"], unscored["attempts"], unscored["pass_rate"], unscored["pass_low"]) == (
        6,
        0,
        None,
        None,
    )


def test_several_runs_are_one_course_in_the_order_that_they_are_given_in(tmp_path):
    early = open_run(course(tmp_path, {"a": ["00"], "b": ["11"]}))
    late = open_run(course(tmp_path, {"a": ["11"], "c": ["11"]}, "r2"))
    rows = by_name(prompts_of([early, late], "correct"))
    assert {name: row["band"] for name, row in rows.items()} == {"a": "learnt", "b": "saturated", "c": "saturated"}
    assert by_name(prompts_of([late, early], "correct"))["a"]["band"] == "forgotten"


def test_rewards_of_any_size_need_a_bound_and_nan_is_no_attempt(tmp_path):
    rewards = [0.2, 0.9, math.nan, math.inf]
    run = open_run(write(tmp_path, [one(1, i, prompt=question("q"), reward=r) for i, r in enumerate(rewards)]))
    found = prompts_of(run)
    (row,) = found.table.to_pylist()
    assert (row["rollouts"], row["attempts"], row["pass_rate"], row["band"]) == (4, 2, None, None)
    assert row["reward_mean"] == pytest.approx(0.55)
    (row,) = prompts_of(run, pass_at=0.5).table.to_pylist()
    assert row["pass_rate"] == 0.5
    with pytest.raises(RunError, match=r"runs from 0.2 to 0.9; say what counts as a pass with pass_at="):
        prompt_weights(run)


def test_evaluations_are_left_out_unless_they_are_all_there_is(tmp_path):
    train = [one(1, index, prompt=question("train")) for index in range(2)]
    eval_ = [one(1, index, prompt=question("eval"), split="eval", id=f"e{index}") for index in range(2)]
    run = open_run(write(tmp_path, train + eval_))
    assert list(by_name(prompts_of(run))) == ["train"]
    assert list(by_name(prompts_of(run, split="eval"))) == ["eval"]
    alone = open_run(write(tmp_path, eval_, "r2"))
    assert list(by_name(prompts_of(alone))) == ["eval"]
    with pytest.raises(RunError, match="has no such rollouts"):
        prompts_of(run, step=99)


def test_weights_are_highest_where_half_of_the_attempts_pass_and_nothing_falls_below_the_floor(tmp_path):
    run = open_run(course(tmp_path, {"half": ["10"], "never": ["00"], "always": ["11"], "most": ["11", "10"]}))
    rows = Dataset.from_list([{"prompt": list(question(name))} for name in ("half", "never", "always", "most", "new")])
    assert prompt_weights(run, by="correct").of(rows) == pytest.approx([1.0, 0.05, 0.05, 0.75, 0.05])
    assert prompt_weights(run, 2, 0.1, by="correct").of(rows) == pytest.approx([1.0, 0.1, 0.1, 0.5625, 0.1])


def test_the_file_trains_again_as_it_is_and_its_rows_keep_their_ids(tmp_path, capsys):
    def parity(completions, index, **kwargs):
        return [float(row % 2) for row in index]

    rows = dataset(4, index=[0, 1, 2, 3], note=["a", None, "c", "d"])
    make(
        tmp_path / "a",
        rows=rows,
        rewards=parity,
        max_steps=2,
        callbacks=[RolloutPluginCallback(dir=tmp_path / "runs")],
    ).train()
    file = tmp_path / "prompts.parquet"
    assert main(["prompts", str(tmp_path / "runs"), "--to", str(file), "--band", "saturated"]) == 0
    assert "prompts, " in capsys.readouterr().err
    again = load_dataset("parquet", data_files=str(file), split="train")
    assert set(again["index"]) <= {1, 3}
    assert {tuple(row["prompt"][0].items()) for row in again} <= {tuple(row["prompt"][0].items()) for row in rows}
    assert [prompt_id(row) for row in again] == again["prompt_id"]
    known = {prompt_id(row) for row in rows}
    assert set(again["prompt_id"]) <= known
    trainer = make(
        tmp_path / "b", rows=again, rewards=parity, callbacks=[RolloutPluginCallback(dir=tmp_path / "again")]
    )  # fmt: skip
    trainer.train()
    assert set(prompts_of(open_run(tmp_path / "again")).table["prompt_id"].to_pylist()) <= set(again["prompt_id"])


def test_prompts_with_images_or_calls_do_not_spoil_the_file(tmp_path):
    from rollout_hookspecs import Image

    shown = (
        {"role": "user", "content": [{"type": "image", "image": Image(hash="x")}, {"type": "text", "text": "?"}]},
    )
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"x": n}}} for n in (1, 2)]
    calls[1]["function"]["arguments"] = {"y": ["z"]}
    called = (*question("a"), {"role": "assistant", "content": "", "tool_calls": calls})
    odd = [{"answer": 1}, {"answer": "one"}, {"answer": [1, 2]}]
    prompts = [shown, called, question("b")]
    rows = [
        one(1, index, prompt=prompt, columns=columns)
        for index, (prompt, columns) in enumerate(zip(prompts, odd, strict=True))
    ]
    folder = write(tmp_path, rows)
    assert main(["prompts", str(folder), "--to", str(tmp_path / "p.parquet")]) == 0
    table = load_dataset("parquet", data_files=str(tmp_path / "p.parquet"), split="train").to_list()
    assert {row["prompt"][-1]["content"] for row in table} == {"", "b"}
    assert [row["prompt"][-1]["tool_calls"] for row in table if len(row["prompt"]) > 1] == [calls]
    assert {prompt_id(row) for row in table} == {row["prompt_id"] for row in table}
    assert {row["answer"] for row in table} == {'"one"', "[1,2]"}


def test_the_command_lists_prompts_for_a_pipe_and_for_a_program(tmp_path, capsys):
    folder = str(course(tmp_path, COURSES))
    assert main(["prompts", folder, "--by", "correct"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split("\t")[:4] == ["prompt_id", "band", "passed", "95%"]
    assert len(out.splitlines()) == 1 + len(COURSES)
    assert "6 prompts, 30 attempts, 47% passed; a pass is reward/correct >= 1" in err
    assert "forgotten 1 · stuck 1 · mixed 1 · learnt 1 · saturated 1 · unscored 1" in err
    assert main(["prompts", folder, "--by", "correct", "--band", "0.2:0.8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prompts"]
    assert all(0.2 <= row["pass_rate"] <= 0.8 for row in told["prompts"])
    assert told["bands"]["stuck"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "corect"], "no column 'corect' to judge by; did you mean 'reward/correct'"),
        (["--step", "99"], "no rollout has step 99"),
        (["--to", "nowhere/p.parquet"], "does not exist"),
    ],
)
def test_wrong_input_gets_one_sentence(tmp_path, capsys, words, message):
    assert main(["prompts", str(course(tmp_path, COURSES)), *words]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_band_is_bounds_or_a_name(tmp_path, capsys):
    folder = str(course(tmp_path, COURSES))
    for band in ("0.8:0.2", "x:1", "0:7"):
        with pytest.raises(SystemExit):
            main(["prompts", folder, "--band", band])
        assert "is not LOW:HIGH, such as 0.2:0.8, and none of forgotten, stuck" in capsys.readouterr().err
