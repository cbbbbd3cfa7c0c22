"""Rollouts beside each other in the viewer: the answers to one prompt, and one prompt over time."""

from reading import one, write
from viewer import look


def test_equal_answers_of_a_group_stand_once_with_their_number(tmp_path):
    said = ["yes", "no", "yes", "yes", "maybe", "no"]
    made = [
        one(
            1, index, group=0, group_size=6, reward=float(text == "yes"), prompt=({"role": "user", "content": "Shall we?"},),
            completion=({"role": "assistant", "content": text},),
        )
        for index, text in enumerate(said)
    ]  # fmt: skip

    async def scenario(eye):
        await eye.sees("asked", "yes")
        await eye.press("b")
        await eye.sees("6 answers, 3 different", "1.0 ×3", "0.0 ×2", "#0 ×3", "#1 ×2", "#4 ")
        assert eye.text.count("yes") == 1
        await eye.press("l", "enter")
        await eye.sees("maybe", "reward 0.0")

    look(write(tmp_path, made), scenario, filters={"step": 1}, size=(130, 24))


def test_siblings_stand_beside_the_best_and_the_parting_is_marked(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("b")
        await eye.sees("4 answers", "rewards", "#3 reward 3.1", "#0 reward 0.1", "◆ they diverge here")
        await eye.sees("2 messages in common, to “question 0”", "page=3", "page=0")
        await eye.press("h")
        await eye.sees("#1 reward 1.1", "#3 reward 3.1")
        await eye.press("question_mark")
        await eye.sees("   space             Fold")
        await eye.press("G")
        await eye.sees("   ⏎                 Open")
        await eye.press("q")
        await eye.sees("#1 reward 1.1", "#3 reward 3.1")
        await eye.press("enter")
        await eye.sees("reward 1.1", "thought 1")

    look(run, scenario, filters={"step": 1})


def test_equal_siblings_are_said_to_be_equal(tmp_path):
    same = ({"role": "assistant", "content": "the same"},)

    async def scenario(eye):
        await eye.sees("2 rollouts", "1.0")
        await eye.press("b")
        await eye.sees("equal to the best one")

    look(write(tmp_path, [one(1, i, completion=same) for i in range(2)]), scenario, filters={"step": 1})


def test_the_same_prompt_over_time_with_what_changed(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("t")
        await eye.sees("one prompt at 12 steps", "step 1 reward", "step 6 reward", "step 12 reward", "best of 4")
        await eye.press("p")
        await eye.sees("step 11 reward")
        await eye.press("h", "n")
        await eye.sees("step 7 reward")
        await eye.press("m", "m")
        await eye.sees("worst of 4", "0.1", "1.1")

    look(run, scenario, filters={"step": 1}, size=(120, 30))


def test_what_changed_is_marked_word_by_word(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("t")
        await eye.sees("step 12 reward")
        strips = eye.app.screen._compositor.render_strips()
        styled = {segment.text.strip(): segment.style for strip in strips for segment in strip if segment.style}
        assert styled["12."].bold
        assert styled["1."].strike
        await eye.press("d")
        await eye.sees_not("1. 12.")

    look(run, scenario, filters={"step": 1})


def test_a_huge_group_is_not_read_whole(tmp_path, monkeypatch):
    from rollout_plugins.reading.lazy_rollouts import Rollouts

    made = [one(1, i, group=0, group_size=2000, reward=i / 10) for i in range(2000)]
    read = []
    numbered = Rollouts.numbered

    def counted(self, **options):
        for pair in numbered(self, **options):
            read.append(pair)
            yield pair

    async def scenario(eye):
        await eye.sees("2,000 rollouts", "grp")
        monkeypatch.setattr(Rollouts, "numbered", counted)
        await eye.press("b")
        await eye.sees("2,000 answers", "#1,999 reward 199.9", "#0 reward 0.0")
        assert len(read) < 10

    look(write(tmp_path, made), scenario, filters={"step": 1})
