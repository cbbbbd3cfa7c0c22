"""Two runs, two steps or two evaluations on the same prompts, with a verdict that chance does not make."""

import json

import pytest
from reading import one, write

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.learn.comparison import compare
from rollout_plugins.learn.statistics import mcnemar


def answers(folder, values, run="a", samples=1, step=1, **fields):
    """A run that answered prompt 0, 1, … with these values, so many times each."""
    rows = [
        one(
            step, samples * number + place, group=number, prompt=({"role": "user", "content": f"question {number}"},),
            reward=float(value), completion=({"role": "assistant", "content": f"answer {value}"},), **fields,
        )
        for number, value in enumerate(values)
        for place in range(samples)
    ]  # fmt: skip
    return write(folder, rows, run=run)


def printed(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    return capsys.readouterr()


def test_the_same_runs_are_one_line(tmp_path, capsys):
    a, b = answers(tmp_path, [0, 1, 1]), answers(tmp_path, [0, 1, 1], "b")
    out = printed(capsys, "diff", a, b).out
    assert out == "3 prompts in both (3 and 3): identical: the same answers with the same values\n"
    assert json.loads(printed(capsys, "diff", a, b, "--json").out)["identical"] is True
    assert not compare(open_run(a), open_run(answers(tmp_path, [0, 1, 0], "c"))).is_identical
    assert not compare(open_run(a), open_run(answers(tmp_path, [0, 1, 1, 1], "d"))).is_identical


def test_one_sample_of_0_or_1_for_each_prompt_is_mcnemars_exact_test(tmp_path, capsys):
    before = [0] * 12 + [1] * 20 + [0] * 10
    after = [1] * 12 + [1] * 18 + [0] * 2 + [0] * 10
    a, b = answers(tmp_path, before), answers(tmp_path, after, "b")
    found = compare(open_run(a), open_run(b))
    assert (found.improved, found.regressed) == (12, 2)
    assert found.mcnemar == pytest.approx(mcnemar(12, 2)) == pytest.approx(0.0129, abs=1e-4)
    assert found.verdict == "B is better"
    out = " ".join(printed(capsys, "diff", a, b).out.split())  # lines end where the terminal does
    assert "42 prompts in both (42 and 42); reward 0.476 → 0.714; 12 improved, 2 regressed, 28 unchanged" in out
    low, high = f"{found.change.low:+.3f}", f"{found.change.high:+.3f}"
    line = f"B is better: +0.238 on average (95% from {low} to {high}, McNemar's exact test p = 0.013)"
    assert line.replace("0)", ")") in out.replace("0)", ")")
    assert found.change == compare(open_run(a), open_run(b)).change
    assert compare(open_run(b), open_run(a)).verdict == "A is better"


def test_with_repeated_samples_prompts_are_drawn_and_mcnemar_is_not_used(tmp_path):
    a = answers(tmp_path, [0, 1] * 10, samples=4)
    b = answers(tmp_path, [1, 1] * 10, "b", samples=4)
    found = compare(open_run(a), open_run(b))
    assert found.mcnemar is None
    assert found.change.value == 0.5
    assert 0.25 <= found.change.low < 0.5 < found.change.high <= 0.75
    single = compare(open_run(answers(tmp_path, [0, 0.5] * 10, "c")), open_run(answers(tmp_path, [1, 1] * 10, "d")))
    assert single.mcnemar is None


def test_chance_gets_no_verdict_and_few_prompts_a_caution(tmp_path):
    a, b = answers(tmp_path, [0, 1] * 20), answers(tmp_path, [1, 0] * 19 + [0, 1], "b")
    assert compare(open_run(a), open_run(b)).verdict == "no difference beyond chance"
    a, b = answers(tmp_path, [0.1, 0.2, 0.3], "c"), answers(tmp_path, [0.5, 0.7, 0.9], "d")
    assert compare(open_run(a), open_run(b)).verdict == "B is better, though 3 prompts are too few to be sure"


def test_two_steps_of_one_run_and_two_evaluations(tmp_path, capsys):
    rows = [
        one(
            step, number, group=number, split=split, id=f"{split}{step}.{number}", reward=float(step > 1),
            prompt=({"role": "user", "content": f"{split} question {number}"},),
        )
        for split in ("train", "eval")
        for step in (1, 2, 3)
        for number in range(12)
    ]  # fmt: skip
    run = write(tmp_path, rows)
    out = printed(capsys, "diff", f"{run}@1", f"{run}@last").out
    assert "24 prompts in both (24 and 24); reward 0.0 → 1.0; 24 improved" in out
    out = printed(capsys, "diff", f"{run}@1", f"{run}@2-3", "--split", "eval").out
    assert "12 prompts in both (12 and 12); reward 0.0 → 1.0; 12 improved" in out
    assert main(["diff", f"{run}@1", f"{run}@99"]) == 1
    assert "no rollout has step 99; the run has 1, 2, 3" in capsys.readouterr().err


def test_pass_rates_and_single_functions_can_be_compared(tmp_path):
    a = answers(tmp_path, [0.2, 0.6], rewards={"correct": 1.0})
    b = answers(tmp_path, [0.4, 0.9], "b", rewards={"correct": 1.0})
    found = compare(open_run(a), open_run(b), pass_at=0.5)
    assert (found.value_a, found.value_b, found.improved) == (0.5, 0.5, 0)
    assert compare(open_run(a), open_run(b), "correct").column == "reward/correct"


def test_prompts_are_paired_by_row_and_by_text_where_no_row_matches(tmp_path, capsys):
    a = answers(tmp_path, [0, 1, 0], columns={"index": 1})
    b = answers(tmp_path, [1, 1, 1], "b", columns={"index": 2})
    found = printed(capsys, "diff", a, b)
    assert "3 prompts in both" in found.out
    assert "prompts are paired by their text alone: the columns that name their rows differ" in found.err
    assert not compare(open_run(a), open_run(a)).by_text


def test_values_that_are_missing_are_in_no_mean(tmp_path):
    a = answers(tmp_path, [0, "nan", 1])
    b = answers(tmp_path, [1, 1, 1], "b")
    found = compare(open_run(a), open_run(b))
    assert (len(found), found.value_a, found.value_b, found.odd_a) == (3, 0.5, 1.0, 1)
    one_prompt = compare(open_run(answers(tmp_path, [0], "e")), open_run(b))
    assert one_prompt.verdict == "one prompt in both says nothing about others"
    nothing = compare(open_run(answers(tmp_path, ["nan"], "c")), open_run(b))
    assert (nothing.change, nothing.verdict) == (None, "no prompt has a value in both")
