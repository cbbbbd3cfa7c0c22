"""The terminal viewer, through its keys, on real runs."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from PIL import Image as Pil
from reading import called, one, steps, write, writer
from rollout_hookspecs import Tokens
from viewer import look

from rollout_plugins import open_run
from rollout_plugins.store.media import MediaStore
from rollout_plugins.view.widgets.grid import Grid


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Twelve steps of eight rollouts in groups of four; the later, the better."""
    folder = tmp_path_factory.mktemp("view")
    made = [
        one(
            step,
            index,
            group=index // 4,
            group_size=4,
            reward=step / 10 + index,
            advantage=index - 3.5,
            prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": f"question {index // 4}"}),
            completion=(
                {
                    "role": "assistant",
                    "content": "Let me look.",
                    "reasoning_content": f"thought {step}",
                    "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"page": index}}}],
                },
                {"role": "tool", "name": "find", "content": f"found {index}"},
                {"role": "assistant", "content": f"It is {'sunny' if index % 2 else 'rainy'} on day {step}."},
            ),
            tool_calls=(replace(called("find", page=index), reply=1, result=f"found {index}", seconds=0.25),),
            completion_tokens=(index * 37 + step) % 150,
            marks={"cap": "kept: the best of its group"},
            columns={"answer": "42"},
        )
        for step in range(1, 13)
        for index in range(8)
    ]
    path = write(folder, made)
    open_run(path).annotate("judge", [{"id": rollout.id, "score": rollout.index / 8} for rollout in made])
    return path


def test_steps_then_rollouts_then_one_rollout_and_back(run):
    async def scenario(eye):
        await eye.sees("96 rollouts", "reward", "step", "4.5")
        await eye.press("j", "j", "enter")
        await eye.sees("step 3", "8 rollouts", "0.3")
        await eye.press("down", "enter")
        await eye.sees("rollout 2 of 8", "reward 1.3", "Let me look.", "thought 3")
        await eye.press("q")
        await eye.sees("step 3", "8 rollouts")
        await eye.press("escape")
        await eye.sees("96 rollouts")
        assert eye.column("step")[:3] == ["1", "2", "3"]

    look(run, scenario)


def test_escape_takes_the_filter_away_first_and_never_leaves(run):
    async def scenario(eye):
        await eye.sees("where reward > 5", "with “sunny”")
        await eye.press("escape")
        await eye.sees("all rollouts", "96 rollouts")
        await eye.press("escape")
        await eye.sees("spread")
        await eye.press("escape", "escape")
        await eye.sees("q leaves", "spread")
        assert eye.app.is_running
        await eye.press("q")
        await eye.until(lambda: not eye.app.is_running)

    look(run, scenario, filters={"where": "reward > 5", "search": "sunny"})


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_list_says_what_was_asked_and_answered_at_any_width(run, width):
    async def scenario(eye):
        await eye.sees("asked", "question 1", "reward", *["It is rainy"] * (width > 80))

    look(run, scenario, filters={"step": 3}, size=(width, 24))


def test_a_wide_screen_has_all_columns_beside_the_rollout(run):
    async def scenario(eye):
        await eye.sees("question 1", "finish", "judge.score", "stop", "→ found 0")
        grid = eye.app.screen.query_one(Grid)
        await eye.until(lambda: grid.size.width >= grid.needs)
        await eye.sees_not("→ ▏")

    look(run, scenario, filters={"step": 3}, size=(200, 24))


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


def test_a_rollout_shows_all_that_is_known_of_it(run):
    async def scenario(eye):
        await eye.sees("group 0", "#3", "reward 3.5", "advantage -0.5", "correct 8.0", "format —", "answer=42")
        await eye.sees(
            "judge", "score=0.375", "marks", "cap=kept: the best of its group", "find(page=3)  250 ms", "→ found 3"
        )

    look(run, scenario, rollout="r1.1.t5.0.3")


def test_columns_sort_as_numbers_in_both_directions_and_back(run):
    async def scenario(eye):
        await eye.sees("0.1", "tokens")
        for _ in range(5):
            await eye.press("l")
        await eye.press("s")
        await eye.sees("tokens▼")
        await eye.until(lambda: (down := list(map(int, eye.column("tokens▼")))) == sorted(down, reverse=True))
        down = list(map(int, eye.column("tokens▼")))
        assert down != sorted(down, key=str, reverse=True)
        await eye.press("s")
        await eye.sees("tokens▲")
        await eye.until(lambda: list(map(int, eye.column("tokens▲"))) == down[::-1])
        await eye.press("s")
        await eye.sees_not("▲", "▼")

    look(run, scenario, filters={"step": 1}, size=(109, 24))


def test_steps_sort_too(run):
    async def scenario(eye):
        await eye.sees("spread")
        await eye.press("h", "h", "s")
        await eye.sees("step▼")
        assert eye.column("step▼")[:2] == ["12", "11"]
        await eye.press("enter")
        await eye.sees("step 12")

    look(run, scenario)


def test_a_filter_keeps_what_was_typed_until_it_is_right(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("f")
        await eye.type("completion_tok")
        await eye.sees("completion_tokens")
        await eye.press("tab")
        await eye.type(" > ")
        await eye.press("enter")
        await eye.sees("not understood", "where completion_tokens >")
        await eye.type("50 and nonsense > 1")
        await eye.press("enter")
        await eye.sees("no column is named 'nonsense'", "where completion_tokens > 50 and nonsense > 1")
        for _ in " and nonsense > 1":
            await eye.press("backspace")
        await eye.press("enter")
        await eye.sees("where completion_tokens > 50", "5 rollouts")
        assert all(int(tokens) > 50 for tokens in eye.column("tokens"))
        await eye.press("f", "ctrl+u", "enter")
        await eye.sees("8 rollouts")

    look(run, scenario, filters={"step": 1}, size=(109, 24))


def test_annotations_are_columns_to_see_and_to_filter_by(run):
    async def scenario(eye):
        await eye.sees("judge.score", "0.500", "0.875")
        await eye.press("f")
        await eye.type("judge.score > 0.8")
        await eye.press("enter")
        await eye.sees("1 rollout")

    look(run, scenario, filters={"step": 1}, size=(160, 30))


def test_a_text_is_searched_in_the_whole_run_and_gone_to(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        await eye.press("slash")
        await eye.sees("search")
        await eye.type("Sunny on DAY 7")
        await eye.press("enter")
        await eye.sees("4 rollouts", "with “Sunny on DAY 7”")
        assert set(eye.column("step")) == {"7"}
        await eye.press("enter")
        await eye.sees("rollout 1 of 4", "sunny on day 7")
        line = next(line for line in eye.lines if "sunny on day 7" in line)
        assert line.startswith("▌")
        await eye.press("q", "slash", "ctrl+u", "enter")
        await eye.sees("96 rollouts")

    look(run, scenario)


def test_a_search_keeps_the_order_and_the_filter(run):
    async def scenario(eye):
        await eye.sees("4 rollouts")
        assert eye.column("reward▼") == ["7.700", "5.700", "3.700", "1.700"]

    look(run, scenario, filters={"search": "sunny on day 7", "where": "reward < 8", "order": "-reward"})


def test_the_filters_of_the_command_are_where_it_starts(run):
    async def scenario(eye):
        await eye.sees("step 3", "where reward > 5", "2 rollouts", "6.300")
        assert eye.column("reward▼") == ["7.300", "6.300"]
        await eye.press("q")
        await eye.sees("96 rollouts")

    look(run, scenario, filters={"step": 3, "where": "reward > 5", "order": "-reward", "limit": 2})


def test_turns_fold_by_role_and_one_by_one(run):
    async def scenario(eye):
        await eye.sees("answer=42")
        await eye.press("j", "j", "enter")
        await eye.sees("answer: 42")
        await eye.press("space")
        await eye.sees("answer=42")
        await eye.press("6")
        await eye.sees("answer: 42", "score: 0.0")
        await eye.press("6")
        await eye.sees("answer=42")

    look(run, scenario, rollout="r1.1.t1.0.0")


def test_the_next_rollout_is_a_key_away_and_the_list_follows(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("enter")
        await eye.sees("rollout 1 of 8")
        await eye.press("l", "right")
        await eye.sees("rollout 3 of 8", "reward 2.1")
        await eye.press("h")
        await eye.sees("rollout 2 of 8")
        await eye.press("q")
        await eye.sees("8 rollouts")
        assert next(line for line in eye.lines if line.startswith("▌")).split()[1:3] == ["0", "1"]

    look(run, scenario, filters={"step": 1})


def test_text_is_found_in_a_rollout(run):
    async def scenario(eye):
        await eye.sees("Let me look.")
        await eye.press("slash")
        await eye.type("nowhere")
        await eye.press("enter")
        await eye.sees("not in this rollout", "nowhere")
        await eye.press("ctrl+u")
        await eye.type("DAY")
        await eye.press("enter")
        await eye.sees("1 of 1 with “DAY”")
        await eye.press("slash", "ctrl+u")
        await eye.type("e")
        await eye.press("enter", "n", "n", "N")
        await eye.sees("with “e”")

    look(run, scenario, rollout="r1.1.t1.0.0")


def test_siblings_stand_beside_the_best_and_the_parting_is_marked(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("b")
        await eye.sees("4 answers", "rewards", "#3 reward 3.1", "#0 reward 0.1", "◆ they diverge here")
        await eye.sees("2 messages in common, to “question 0”", "page=3", "page=0")
        await eye.press("h")
        await eye.sees("#1 reward 1.1", "#3 reward 3.1")
        await eye.press("enter")
        await eye.sees("reward 1.1", "thought 1")

    look(run, scenario, filters={"step": 1})


def test_equal_siblings_are_said_to_be_equal(tmp_path):
    same = ({"role": "assistant", "content": "the same"},)

    async def scenario(eye):
        await eye.sees("2 rollouts", "1.0")
        await eye.press("b")
        await eye.sees("equal to the best, word for word")

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


def test_copy_and_export_say_where_it_went(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def scenario(eye):
        await eye.sees("Let me look.")
        await eye.press("e")
        await eye.sees("wrote")
        assert json.loads((tmp_path / "r1.1.t1.0.0.json").read_text())["reward"] == 0.1
        await eye.press("e", "E")
        await eye.until((tmp_path / "r1.1.t1.0.0.md").exists)
        assert (tmp_path / "r1.1.t1.0.0-2.json").exists()
        assert "## assistant" in (tmp_path / "r1.1.t1.0.0.md").read_text()
        await eye.press("Y")
        await eye.until(lambda: "It is rainy on day 1." in eye.app.clipboard)
        await eye.press("G", "y")
        await eye.until(lambda: eye.app.clipboard == "It is rainy on day 1.")

    look(run, scenario, rollout="r1.1.t1.0.0", size=(120, 30))


def test_the_run_is_described(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        await eye.press("i")
        await eye.sees("About the run", "id: r1", "dropped", "none", "judge: score")
        await eye.press("q")
        await eye.sees("96 rollouts")

    look(run, scenario, size=(100, 40))


def test_help_lists_the_keys_of_the_screen(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        await eye.press("question_mark")
        await eye.sees("Keys", "Half a screen down", "This screen", "All rollouts")
        await eye.press("question_mark")
        await eye.sees("96 rollouts")

    look(run, scenario, size=(80, 50))


def test_commands_are_in_the_palette(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        await eye.press("colon")
        await eye.sees("Search for commands")
        await eye.type("all rollouts")
        await eye.pilot.pause(0.5)
        await eye.press("enter")
        await eye.sees("all rollouts", "96 rollouts", "tokens")

    look(run, scenario, size=(109, 24))


def test_every_action_has_a_key(run):
    from rollout_plugins.view.pages.group import GroupPage
    from rollout_plugins.view.pages.rollout import RolloutPage
    from rollout_plugins.view.pages.rollouts import RolloutsPage
    from rollout_plugins.view.pages.steps import StepsPage
    from rollout_plugins.view.pages.through_time import TimePage
    from rollout_plugins.view.widgets.pager import Pager

    for widget in (Grid, Pager, StepsPage, RolloutsPage, RolloutPage, GroupPage, TimePage):
        bound = {
            b.action.partition("(")[0] for some in widget._merge_bindings().key_to_bindings.values() for b in some
        }
        ours = [base for base in widget.__mro__ if base.__module__.startswith("rollout_plugins")]
        actions = {name.removeprefix("action_") for base in ours for name in vars(base) if name.startswith("action_")}
        assert actions <= bound, widget


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
        await eye.pilot.pause(1)
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
            await eye.pilot.pause(0.01)
        await eye.pilot.pause(0.3)
        assert shown(eye) == before
        writing.close({"rollouts": 80})

    look(tmp_path, scenario, filters={"split": "train"}, period=0.1, size=(140, 40))


def test_a_run_that_ended_is_not_polled(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        asked = []
        eye.app._signature = lambda: asked.append(1) or ()
        await eye.pilot.pause(0.5)
        assert not asked

    look(run, scenario, period=0.1)


def test_it_is_resized_from_large_to_tiny_and_back(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.sees("Let me look.")
        for width, height in ((80, 24), (40, 10), (20, 6), (200, 60)):
            await eye.pilot.resize_terminal(width, height)
            await eye.pilot.pause(0.1)
            assert len(eye.lines) == height
            assert all(len(line) <= width for line in eye.lines)
        await eye.press("enter")
        for width, height in ((80, 24), (40, 10), (20, 6), (200, 60)):
            await eye.pilot.resize_terminal(width, height)
            await eye.pilot.pause(0.1)
            assert len(eye.lines) == height
        await eye.sees("rollout 1 of 8", "Let me look.")

    look(run, scenario, filters={"step": 1}, size=(140, 40))


def test_the_one_under_the_cursor_stands_beside_the_list_where_there_is_room(run):
    async def scenario(eye):
        await eye.sees("thought 1", "find(page=0)")
        await eye.press("j", "j")
        await eye.sees("find(page=2)")
        await eye.press("p")
        await eye.sees_not("find(page=2)")

    look(run, scenario, filters={"step": 1}, size=(140, 40))


def test_an_empty_run_says_so(tmp_path):
    async def scenario(eye):
        await eye.sees("no rollouts yet", "0 rollouts")
        await eye.press("enter", "j", "G", "s", "a")
        await eye.sees("all rollouts", "0 rollouts")
        await eye.press("enter", "b", "t", "Y", "e", "j")
        assert eye.page == "RolloutsPage"

    look(write(tmp_path, []), scenario)


def test_a_filter_that_nothing_matches_says_so(run):
    async def scenario(eye):
        await eye.sees("no rollouts match", "0 rollouts")

    look(run, scenario, filters={"where": "reward > 1000"})


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


def test_numbers_that_are_none_come_last(tmp_path):
    values = (float("nan"), 2.0, None, 10.0)

    async def scenario(eye):
        await eye.sees("nan")
        await eye.press("s")
        await eye.sees("reward▼")
        assert eye.column("reward▼") == ["10.000", "2.000", "nan", "—"]

    look(write(tmp_path, [one(1, i, reward=v) for i, v in enumerate(values)]), scenario, filters={"step": 1})


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


def test_a_huge_group_is_not_read_whole(tmp_path, monkeypatch):
    from rollout_plugins.store.matches import Matches

    made = [one(1, i, group=0, group_size=2000, reward=i / 10) for i in range(2000)]
    read = []
    numbered = Matches.numbered

    def counted(self, **options):
        for pair in numbered(self, **options):
            read.append(pair)
            yield pair

    async def scenario(eye):
        await eye.sees("2,000 rollouts", "grp")
        monkeypatch.setattr(Matches, "numbered", counted)
        await eye.press("b")
        await eye.sees("2,000 answers", "#1,999 reward 199.9", "#0 reward 0.0")
        assert len(read) < 10

    look(write(tmp_path, made), scenario, filters={"step": 1})


def test_without_colours(run, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario(eye):
        await eye.sees("96 rollouts", "▌")
        await eye.press("enter")
        await eye.sees("step 1", "▌")

    look(run, scenario)


def test_of_a_large_run_only_the_rows_on_the_screen_are_read(tmp_path, monkeypatch):
    path = write(tmp_path, steps(300, size=32))
    open_run(path).stats()
    pages, put = [], Grid.put
    monkeypatch.setattr(Grid, "put", lambda grid, start, rows: pages.append(len(rows)) or put(grid, start, rows))

    async def scenario(eye):
        await eye.sees("9,600 rollouts")
        pages.clear()
        await eye.press("a")
        await eye.sees("grp")
        await eye.press("G")
        await eye.sees("300", "31")
        await eye.press("g")
        assert max(pages) <= 64
        assert sum(pages) < 1000

    look(path, scenario)


def test_tokens_are_coloured_by_what_was_kept_of_them(tmp_path):
    kept = Tokens(prompt=[7], completion=[1, 2, 3], mask=[1, 1, 0], logprobs=[-0.01, -1.0, -9.0])
    path = write(tmp_path, [one(1, 0, tokens=kept), one(1, 1)])

    def style(eye, token):
        strips = eye.app.screen._compositor.render_strips()
        return next(segment.style for strip in strips for segment in strip if segment.text == f"{token} ")

    async def scenario(eye):
        await eye.sees("Answer 0")
        await eye.press("T")
        await eye.sees("3 tokens by log-prob", "mean -3.337", "least -9.0", "only ids", "1 2 3")
        assert style(eye, 1).color != style(eye, 2).color != style(eye, 3).color
        await eye.press("T")
        await eye.sees("3 tokens by mask", "not trained")
        assert style(eye, 1).color == style(eye, 2).color != style(eye, 3).color
        await eye.press("T")
        await eye.sees("Answer 0")

    look(path, scenario, rollout="r1.1.t1.0.0")

    async def without(eye):
        await eye.sees("Answer 1")
        await eye.press("T")
        await eye.sees("no tokens are kept")

    look(path, without, rollout="r1.1.t1.0.1", size=(120, 30))


def test_ids_become_text_where_the_model_has_a_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = write(tmp_path, [one(1, 0, tokens=Tokens(completion=[1, 0, 99]))], model=str(tmp_path))

    async def scenario(eye):
        await eye.sees("Answer 0")
        await eye.press("T")
        await eye.sees("3 tokens by ids", "worldhello<99>")

    look(path, scenario, rollout="r1.1.t1.0.0")


def test_an_image_is_drawn_and_opened(tmp_path, monkeypatch):
    folder = tmp_path / "r1"
    red = MediaStore(folder).put(Pil.new("RGB", (30, 20), "red"), uri="file:///data/red.png")
    asked = {"role": "user", "content": [{"type": "image", "image": red}, {"type": "text", "text": "what is it?"}]}
    write(tmp_path, [one(1, 0, prompt=(asked,), images=(red,))])
    opened = []
    monkeypatch.setattr("rollout_plugins.view.pages.rollout.shutil.which", lambda name: name)
    monkeypatch.setattr(
        "rollout_plugins.view.pages.rollout.subprocess.Popen", lambda command, **_: opened.append(command)
    )

    async def scenario(eye):
        await eye.sees("[IMAGE red.png 30x20]", "what is it?", "▀▀▀▀")
        strips = eye.app.screen._compositor.render_strips()
        drawn = {segment.style.color.triplet for strip in strips for segment in strip if "▀" in segment.text}
        assert (255, 0, 0) in drawn
        await eye.press("o")
        await eye.until(lambda: opened)
        assert opened[0][-1] == str(folder / red.path)

    look(folder, scenario, rollout="r1.1.t1.0.0", size=(80, 40))


def test_a_run_that_vanishes_is_said_and_what_was_read_stays(tmp_path):
    writing = writer(tmp_path)
    writing.write_run()
    writing.write("train", steps(1, size=8))

    async def scenario(eye):
        await eye.sees("8 rollouts", "running")
        shutil.rmtree(tmp_path / "r1")
        await eye.sees("is gone", "8 rollouts")

    look(tmp_path / "r1", scenario, period=0.1, size=(120, 30))


def test_a_low_screen_has_the_reward_in_one_line(run):
    async def scenario(eye):
        await eye.sees("reward ▁▂▂▃▄▄▅▅▆▇▇█", "3.6")

    look(run, scenario, size=(80, 12))


def test_the_mouse_is_welcome(run):
    async def scenario(eye):
        await eye.sees("8 rollouts", "7.1")
        await eye.pilot.click("Grid", offset=(10, 4))
        await eye.until(lambda: next(line for line in eye.lines if line.startswith("▌")).split()[2] == "3")
        head = next(line for line in eye.lines if "tokens" in line)
        await eye.pilot.click("Grid", offset=(head.index("tokens"), 0))
        await eye.sees("tokens▼")
        await eye.pilot.click("Grid", offset=(10, 2))
        await eye.pilot.click("Grid", offset=(10, 2))
        await eye.sees("rollout 2 of 8")

    look(run, scenario, filters={"step": 1}, size=(109, 24))
