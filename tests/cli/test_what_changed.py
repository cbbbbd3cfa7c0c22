"""`rollouts diff` and `rollouts show --history` say what changed, and leave out what did not."""

from __future__ import annotations

import json

import pytest
from reading import one, write

LONG = " ".join(f"word{n}" for n in range(200))


def asked(number):
    return ({"role": "user", "content": f"question {number}"},)


def said(text):
    return ({"role": "assistant", "content": text},)


@pytest.fixture
def printed(rollouts):
    def call(*words):
        code, out, _ = rollouts(*words)
        assert code == 0
        return out

    return call


def answers(folder, texts, reward=1.0):
    """Four prompts, of which the given answers are to the first ones."""
    made = [
        one(1, n, group=n, group_size=1, reward=reward, prompt=asked(n), completion=said(text))
        for n, text in enumerate(texts)
    ]
    return write(folder, made)


def test_diff_shows_the_prompts_whose_answers_or_rewards_changed(tmp_path, printed):
    before = answers(tmp_path / "a", ["yes", "no", f"{LONG} seven", "the same"])
    after = answers(tmp_path / "b", ["yes", "maybe", f"{LONG} eight", "the same"])
    shown = printed("diff", before, after)
    assert "2 unchanged" in " ".join(shown.split())  # a narrow terminal may break the line there
    assert "question 0" not in shown
    assert "[-no-]{+maybe+}" in shown
    assert "[- seven-]{+ eight+}" in shown
    assert "word100 " not in shown
    facts = json.loads(printed("diff", before, after, "--json"))
    assert (facts["unchanged"], len(facts["prompts"])) == (2, 2)
    better = answers(tmp_path / "c", ["yes", "no", "x", "y"], reward=2.0)
    assert "the same answer" in printed("diff", before, better)


def test_history_shows_each_answer_where_it_is_given_first(tmp_path, printed):
    given = {1: ["no", "no", "yes"], 2: ["yes", "yes", "yes"], 5: ["yes", "it is", "yes"]}
    made = [
        one(
            step, n, group=0, group_size=3, prompt=asked(0), completion=said(text),
            reward=float(text != "no"), advantage=0.0,
        )
        for step, texts in given.items()
        for n, text in enumerate(texts)
    ]  # fmt: skip
    shown = printed("show", write(tmp_path, made), "--history", "question 0")
    assert shown.count("question 0") == 1
    assert [shown.count(f"assistant  {text}") for text in ("no", "yes", "it is")] == [1, 1, 1]
    heads = [line.split(" ─")[0] for line in shown.splitlines() if " ─" in line]
    assert [" ".join(head.split()) for head in heads] == [
        "×2 step 1 group 0 #0",
        "step 1 group 0 #2",
        "×3 as at step 1 step 2 group 0 #0",
        "×2 as at step 1 step 5 group 0 #0",
        "step 5 group 0 #1",
    ]
