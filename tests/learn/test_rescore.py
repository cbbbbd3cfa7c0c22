"""Rewards again: any TRL reward function over a stored run, its cache, and what it says of the old rewards."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from reading import one, write
from rig import RLOO, dataset, make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError
from rollout_plugins.learn.disagreement import disagreement
from rollout_plugins.learn.rescore import rescore

GIVEN = """
import json
from pathlib import Path

def note(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
    rows = zip(prompts, completions, [list(ids) for ids in completion_ids], answer)
    given = [[*row, trainer_state.global_step] for row in rows]
    with Path({path!r}).open("a") as file:
        file.writelines(json.dumps(row) + "\\n" for row in given)
    log_extra("answered", answer)
    log_metric("size", len(prompts))
    return [None if i == 0 else i / 3 for i in range(len(prompts))]

async def later(**kwargs):
    return note(**kwargs)
"""


def rewards_in(folder, source, name="my_rewards.py", **values):
    path = folder / name
    text = textwrap.dedent(source)
    path.write_text(text.format(**values) if values else text)
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["messages", "text"])
def test_a_reward_function_is_given_what_the_trainer_gave_it_and_scores_as_it_did(tmp_path, monkeypatch, kind):
    seen, again = tmp_path / "seen.jsonl", tmp_path / "again.jsonl"
    rewards = {}
    for name, path in (("in_training.py", seen), ("afterwards.py", again)):
        file = rewards_in(tmp_path, GIVEN, name, path=str(path))
        exec(compile(file.read_text(), file, "exec"), namespace := {})
        rewards[name] = namespace
    rows = dataset(4, answer=["a", "b", "c", "d"])
    if kind == "text":
        rows = rows.map(lambda row: {"prompt": row["prompt"][0]["content"]})
    make(
        tmp_path, ["4", "five", "six", "7"], rows=rows, rewards=[rewards["in_training.py"]["note"]], max_steps=2,
        callbacks=[RolloutPluginCallback(dir=tmp_path / "runs", tokens=True)],
    ).train()  # fmt: skip
    run = open_run(tmp_path / "runs")
    found = rescore(run, f"{tmp_path}/afterwards.py:note")
    assert lines_of(again) == lines_of(seen)
    assert found.metrics == {"size": 4.0}
    before = [rollout.rewards["note"] for rollout in run]
    assert None in before
    stored = list(open_run(tmp_path / "runs"))
    assert [rollout.extra.get("note.value") for rollout in stored] == before
    assert [rollout.extra["note.advantage"] for rollout in stored] == pytest.approx(
        [rollout.advantage for rollout in stored], abs=1e-5
    )
    assert [rollout.extra["note.answered"] for rollout in stored] == [r.columns["answer"] for r in stored]
    again.unlink()
    assert rescore(run, f"{tmp_path}/afterwards.py:later", name="note").table["value"].to_pylist() == before
    assert lines_of(again) == lines_of(seen)


def small_run(folder, values=(1, 0, 1, 0), steps=2, **fields):
    return write(
        folder,
        [
            one(step, i, rewards={"correct": float(v)}, reward=float(v), columns={"answer": i}, **fields)
            for step in range(1, steps + 1)
            for i, v in enumerate(values)
        ],
        reward_names=("correct",),
    )


def test_an_error_costs_its_rollout_alone_and_is_tried_again(tmp_path, capsys):
    folder = small_run(tmp_path)
    file = rewards_in(
        tmp_path,
        """
        def odd(completions, answer, **kwargs):
            if 2 in answer and "step 2" in str(completions):
                raise ValueError("no 2")
            return ["x" if row == 3 else row / 2 for row in answer]
        """,
    )
    found = rescore(open_run(folder), f"{file}:odd")
    assert found.table["value"].to_pylist() == [0.0, 0.5, 1.0, None, 0.0, 0.5, None, None]
    assert disagreement(found).failed == 3
    assert main(["rescore", str(folder), f"{file}:odd"]) == 0
    out = capsys.readouterr().out
    assert "failed        2 rollouts: returned str, not a number" in out
    assert "failed        1 rollout: ValueError('no 2') at my_rewards.py:4" in out
    assert "5 of them known from before" in out
    assert open_run(folder).table(["odd.error"], where="odd.error is not null").num_rows == 3


def test_groups_are_given_whole_and_one_at_a_time(tmp_path):
    folder = small_run(tmp_path, values=(1, 0) * 6)
    file = rewards_in(
        tmp_path,
        """
        def relative(prompts, completions, **kwargs):
            assert len(completions) == 2
            assert prompts[0] == prompts[1]
            if prompts[0][0]["content"] == "question 3":
                raise RuntimeError("a judge that is down")
            return [0.0, 1.0]
        """,
    )
    found = rescore(open_run(folder), f"{file}:relative", by_group=True)
    report = disagreement(found)
    assert report.failed == 4  # a group cannot be judged in parts
    assert (report.rose, report.fell, report.best_changed, report.keep_spread) == (10, 10, 10, 10)
    assert report.correlation == -1.0
    assert rescore(open_run(folder), f"{file}:relative", by_group=True).cached == 20


def test_scores_are_kept_until_the_functions_file_changes(tmp_path):
    folder = small_run(tmp_path)
    calls = tmp_path / "calls"
    source = """
        from pathlib import Path
        def count(completions, **kwargs):
            with Path({path!r}).open("a") as file:
                file.write("x" * len(completions))
            return [{value}] * len(completions)
        """
    file = rewards_in(tmp_path, source, path=str(calls), value="float('inf')")
    rescore(open_run(folder), f"{file}:count")
    again = rescore(open_run(folder), f"{file}:count")
    assert (again.cached, len(calls.read_text())) == (8, 8)
    assert again.table["value"].to_pylist() == [math.inf] * 8
    assert rescore(open_run(folder), f"{file}:count", again=True).cached == 0
    rewards_in(tmp_path, source, path=str(calls), value="0.5")
    assert rescore(open_run(folder), f"{file}:count").table["value"].to_pylist() == [0.5] * 8
    assert len(calls.read_text()) == 24


@pytest.mark.parametrize("workers", [1, 2])
def test_after_ctrl_c_it_continues_where_it_stopped(tmp_path, workers):
    folder = small_run(tmp_path, steps=40)
    calls = tmp_path / "calls"
    file = rewards_in(
        tmp_path,
        """
        import time
        from pathlib import Path
        def slow(completions, **kwargs):
            with Path({path!r}).open("a") as file:
                file.write("x" * len(completions))
            time.sleep({seconds})
            return [1.0] * len(completions)
        """,
        path=str(calls), seconds=0.3,
    )  # fmt: skip
    command = [sys.executable, "-m", "rollout_plugins.cli.main", "rescore", str(folder), f"{file}:slow"]
    process = subprocess.Popen(
        [*command, "--workers", str(workers)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    kept = folder / "none"
    while not (kept.exists() and kept.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
        kept = next(iter(folder.glob(".rescored-*")), kept)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "the same command continues there" in err
    assert "Traceback" not in err
    assert "slow" not in open_run(folder).annotations
    known = len(kept.read_text().splitlines())
    assert 0 < known < 160
    found = rescore(open_run(folder), f"{file}:slow", workers=workers)
    assert found.cached == known
    assert found.table["value"].to_pylist() == [1.0] * 160


def test_processes_score_as_one_does(tmp_path):
    folder = small_run(tmp_path, steps=6)
    (tmp_path / "helper.py").write_text("def half(x): return x / 2\n")
    file = rewards_in(
        tmp_path,
        """
        from helper import half
        def halves(answer, completions, **kwargs):
            return [half(x) for x in answer]
        """,
    )
    here = rescore(open_run(folder), f"{file}:halves")
    there = rescore(open_run(folder), f"{file}:halves", workers=2, again=True)
    assert here.table.equals(there.table)
    assert here.table["value"].to_pylist() == [0.0, 0.5, 1.0, 1.5] * 6


def test_two_verifiers_give_estimates_of_what_the_old_one_missed(tmp_path):
    values = [1, 1, 0, 0, 1, 0, 1, 0]
    folder = small_run(tmp_path, values)
    file = rewards_in(
        tmp_path,
        """
        def strict(completions, answer, **kwargs):
            return [float(row in (0, 2)) for row in answer]
        """,
    )
    report = disagreement(rescore(open_run(folder), f"{file}:strict", against="correct"))
    verifiers = report.verifiers
    assert (verifiers.right, verifiers.wrong) == (4, 12)
    assert verifiers.false_negatives.value == 0.5
    assert verifiers.false_positives.value == pytest.approx(3 / 6)
    assert verifiers.false_positives.low < 0.5 < verifiers.false_positives.high
    assert (report.old_mean, report.new_mean) == (0.5, 0.25)
    assert (report.lose_spread, report.gain_spread) == (4, 4)


def test_the_other_rewards_stay_in_the_total_unless_all_are_replaced(tmp_path):
    rows = [
        one(1, i, rewards={"correct": float(i % 2), "format": 0.5}, reward=2.0 * (i % 2) + 0.5 * 0.5) for i in range(4)
    ]
    folder = write(tmp_path, rows, reward_names=("correct", "format"), reward_weights=(2.0, 0.5))
    file = rewards_in(tmp_path, "def one(completions, **kwargs): return [1.0] * len(completions)\n")
    found = rescore(open_run(folder), f"{file}:one", against="correct")
    assert found.table["new_reward"].to_pylist() == [2.25] * 4
    found = rescore(open_run(folder), f"{file}:one", against="reward")
    assert found.table["new_reward"].to_pylist() == [1.0] * 4
    found = rescore(open_run(folder), f"{file}:one", name="format")
    assert found.against == "format"
    assert found.table["new_reward"].to_pylist() == [0.5, 2.5, 0.5, 2.5]


@pytest.mark.parametrize("cls", [None, RLOO])
def test_recorded_advantages_are_those_of_the_formula(tmp_path, cls):
    def graded(completions, **kwargs):
        return [i / 3 for i in range(len(completions))]

    make(
        tmp_path, rewards=graded, max_steps=2, callbacks=[RolloutPluginCallback(dir=tmp_path / "runs")], beta=0.0,
        **({"cls": cls} if cls else {}),
    ).train()  # fmt: skip
    file = rewards_in(tmp_path, "def one(completions, **kwargs): return [1.0] * len(completions)\n")
    found = rescore(open_run(tmp_path / "runs"), f"{file}:one")
    assert (found.differing, found.unknown, found.against) == (0, 0, "graded")
    assert disagreement(found).lose_spread == 4


def test_a_run_without_advantages_is_compared_by_the_formula(tmp_path, capsys):
    folder = small_run(tmp_path, advantage=None)
    file = rewards_in(tmp_path, "def flip(answer, completions, **kwargs): return [float(a % 2) for a in answer]\n")
    assert main(["rescore", str(folder), f"{file}:flip"]) == 0
    out = capsys.readouterr().out
    assert "8 rollouts without a recorded advantage; computed for both sides" in out
    assert "4 turn from positive to negative, 4 the other way" in out


def test_what_is_printed_names_the_command_that_opens_each_disagreement(tmp_path, capsys):
    folder = small_run(tmp_path)
    file = rewards_in(tmp_path, "def flip(answer, completions, **kwargs): return [float(a % 2) for a in answer]\n")
    assert main(["rescore", str(folder), f"{file}:flip", "--list", "1"]) == 0
    out = capsys.readouterr().out
    command = next(line for line in out.splitlines() if "rollouts show" in line)
    assert main(command.split()[1:]) == 0
    assert "stored as flip.value, flip.reward, flip.advantage (GRPO with scale_rewards='group')" in out
    capsys.readouterr()
    assert main(["rescore", str(folder), f"{file}:flip", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["scored"], told["cached"], told["against"]) == (8, 8, "correct")


WRONG = {
    "def f(text): return 1": "it needs 'text', and there are prompts, completions",
    "def f(environments, **kwargs): return []": "takes `environments`, which a run does not have",
    "def f(completion_ids, **kwargs): return []": "this run has no token ids: record with tokens=True",
    "def f(completions, **kwargs): return kwargs['completion_ids'][0]": "name `completion_ids` among the function's",
    "def f(completions, **kwargs): return [1.0]": "returned 1 rewards for 4 rollouts",
    "def f(completions, **kwargs): return 1.0": "returned float, not a list of one reward each",
    "def f(completions, **kwargs): raise KeyError('x')": "f failed for each of the first 4 rollouts: KeyError('x')",
    "def f(): return []": "takes no `completions`",
    "class f: pass": "is a class",
    "def g(completions): pass": "has no function 'f'; it has g",
    "import nowhere": "cannot be imported: ModuleNotFoundError",
    "def f(": "cannot be imported: SyntaxError",
}


@pytest.mark.parametrize("source", WRONG)
def test_a_wrong_function_gets_one_sentence_and_nothing_is_stored(tmp_path, capsys, source):
    folder = small_run(tmp_path)
    file = rewards_in(tmp_path, source)
    assert main(["rescore", str(folder), f"{file}:f"]) == 1
    err = capsys.readouterr().err
    assert WRONG[source] in err
    assert err.count("\n") == 1
    assert open_run(folder).annotations == {}


def test_wrong_options_get_one_sentence(tmp_path, capsys):
    folder = small_run(tmp_path)
    file = rewards_in(tmp_path, "def f(completions, **kwargs): return [1.0] * len(completions)")
    for words, message in {
        ("--as", "reward"): "'reward' is a column of every run; store the scores under another name, with --as NAME",
        ("--against", "corect"): "--against 'corect' is no reward function",
    }.items():
        assert main(["rescore", str(folder), f"{file}:f", *words]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(RunError, match=r"there is no file nowhere\.py"):
        rescore(open_run(folder), "nowhere.py:f")
    with pytest.raises(RunError, match=r"write FILE.py:FUNCTION or MODULE:FUNCTION"):
        rescore(open_run(folder), "nowhere")
