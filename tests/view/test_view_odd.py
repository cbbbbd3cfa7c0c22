"""The viewer on runs that grow, end or vanish, and on empty, odd and damaged ones."""

import re

import pytest
from reading import one, steps, write, writer
from viewer import look

from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import StoredRun


def test_a_live_run_grows_on_the_screen_and_keeps_the_place(tmp_path):
    writing = writer(tmp_path)
    writing.write_run()
    writing.write("train", steps(1, size=8))

    async def scenario(eye):
        await eye.sees("8 rollouts", "running")
        writing.write("train", [one(2, i) for i in range(8)])
        await eye.sees("16 rollouts")
        await eye.press("a")
        await eye.sees("16 rollouts", "grp")
        await eye.press("j", "j", "j", "l", "l")
        writing.write("train", [one(3, i) for i in range(8)])
        await eye.sees("24 rollouts")
        await eye.press("s")
        await eye.sees("format▼")
        await eye.press("s", "s", "j", "j", "j")
        await eye.sees_not("▼", "▲")
        await eye.press("f")
        await eye.type("rewa")
        writing.write("train", [one(4, i) for i in range(8)])
        await eye.until(lambda: len(eye.app.stored) == 32)
        await eye.sees("where rewa", "24 rollouts")
        await eye.press("escape")
        await eye.sees("32 rollouts")
        await eye.until(lambda: any(line.startswith("▌") for line in eye.lines))
        assert next(line for line in eye.lines if line.startswith("▌")).split()[1:4] == ["1", "1", "3"]
        writing.close({"rollouts": 32})
        await eye.press("q")
        await eye.sees("32 rollouts")
        await eye.sees_not("running")

    look(tmp_path, scenario, period=0.1)


def test_nothing_flickers_when_a_live_run_grows(tmp_path):
    writing = writer(tmp_path)
    writing.write_run()
    writing.write("train", steps(1, size=40))

    def shown(eye):
        """All but the title, the footer and the scrollbar."""
        return [re.sub("[▁▂▃▄▅▆▇█]", " ", line) for line in eye.lines[1:-1]]

    async def scenario(eye):
        await eye.sees("40 rollouts", "grp", "Answer 0 of step 1.", "question 15")
        for _ in range(20):
            await eye.press("j")
        await eye.sees("Answer 20 of step 1.")
        await eye.press("tab", "j", "j")
        before = shown(eye)
        writing.write("train", [one(2, i) for i in range(40)])
        while "80 rollouts" not in eye.text:
            assert shown(eye) == before
            await eye.moment(0.01)
        await eye.rests()
        assert shown(eye) == before
        writing.close({"rollouts": 80})

    look(tmp_path, scenario, filters={"split": "train"}, period=0.1, size=(140, 40))


def test_what_cannot_be_read_at_one_look_is_read_at_the_next(tmp_path, monkeypatch):
    writing, refresh, failures = writer(tmp_path), StoredRun.refresh, iter([True, True, True])
    writing.write_run()
    writing.write("train", steps(1, size=8))

    def fails_at_first(run):
        if next(failures, False):
            raise RunError("cannot be read just now")
        refresh(run)

    async def scenario(eye):
        await eye.sees("8 rollouts", "running")
        monkeypatch.setattr(StoredRun, "refresh", fails_at_first)
        writing.write("train", [one(2, i) for i in range(8)])
        await eye.sees("16 rollouts")
        assert [note.message for note in eye.app._notifications] == ["cannot be read just now"]

    look(tmp_path, scenario, period=0.1)


def test_a_run_that_ended_is_not_polled(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        asked = []
        eye.app._signature = lambda: asked.append(1) or ()
        await eye.moment(0.5)
        assert not asked

    look(run, scenario, period=0.1)


def test_an_empty_run_says_so(tmp_path):
    async def scenario(eye):
        await eye.sees("no rollouts", "0 rollouts")
        await eye.press("enter", "j", "G", "s", "a")
        await eye.sees("all rollouts", "0 rollouts")
        await eye.press("enter", "b", "t", "Y", "e", "j")
        assert eye.page == "RolloutsPage"

    look(write(tmp_path, []), scenario)


@pytest.mark.parametrize(
    ("made", "seen"),
    [
        ([one(s, i, split="eval") for s in (10, 20) for i in range(2)], ["10", "20"]),
        ([one(s, i, reward=None, advantage=None, rewards={}) for s in (1, 2) for i in range(2)], ["—"]),
        ([one(1, i, reward=value) for i, value in enumerate((float("nan"), float("inf"), None, 1.0))], ["inf"]),
    ],
    ids=["evals only", "no rewards", "nan"],
)
def test_odd_runs_look_right(tmp_path, made, seen):
    async def scenario(eye):
        await eye.sees(f"{len(made)} rollouts", *seen)
        await eye.press("a")
        await eye.sees("grp")
        await eye.press("enter")
        await eye.sees("rollout 1 of", "reward")
        await eye.press("b")
        await eye.sees("answers")

    look(write(tmp_path, made), scenario)


def test_a_damaged_run_shows_what_is_left(tmp_path):
    write(tmp_path, steps(2))
    folder = write(tmp_path, steps(4, attempt=2)[8:], attempt=2)
    first = min(folder.rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:100])

    async def scenario(eye):
        await eye.sees("1 damaged", "8 rollouts")
        await eye.press("i")
        await eye.sees(first.name)

    look(folder, scenario, size=(100, 40))


def test_a_run_that_vanishes_is_said_and_what_was_read_stays(tmp_path):
    writing = writer(tmp_path)
    writing.write_run()
    writing.write("train", steps(1, size=8))

    async def scenario(eye):
        await eye.sees("8 rollouts", "running")
        (tmp_path / "r1").rename(tmp_path / "away")
        await eye.sees("does not exist any more", "8 rollouts")

    look(tmp_path / "r1", scenario, period=0.1, size=(120, 30))
