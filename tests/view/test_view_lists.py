"""The viewer's lists of steps and rollouts: columns, order, filters and search."""

import threading

import pytest
from reading import one, steps, write
from viewer import look

from rollout_plugins import open_run
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.view.widgets.grid import Grid


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_list_says_what_was_asked_and_answered_at_any_width(run, width):
    async def scenario(eye):
        await eye.sees("answered", "Let me look", "asked", "question 0", "reward")
        await eye.sees(*["It is rainy"] * (width > 80), *["question 1"] * (width != 120))  # beside it stands the first

    look(run, scenario, filters={"step": 3}, size=(width, 24))


def test_a_wide_screen_has_all_columns_beside_the_rollout(run):
    async def scenario(eye):
        await eye.sees("question 1", "finish", "judge.score", "stop", "→ found 0")
        grid = eye.app.screen.query_one(Grid)
        await eye.until(lambda: grid.size.width >= grid.needs)
        await eye.sees_not("→ ▏")

    look(run, scenario, filters={"step": 3}, size=(200, 24))


def test_columns_sort_as_numbers_in_both_directions_and_back(run):
    async def scenario(eye):
        await eye.sees("0.1", "tokens")
        for _ in range(5):
            await eye.press("l")
        await eye.press("s")
        await eye.sees("tokens▼")
        down = list(map(int, eye.column("tokens▼")))
        assert down == sorted(down, reverse=True) != sorted(down, key=str, reverse=True)
        await eye.press("s")
        await eye.sees("tokens▲")
        assert list(map(int, eye.column("tokens▲"))) == down[::-1]
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


def test_the_one_under_the_cursor_stands_beside_the_list_where_there_is_room(run):
    async def scenario(eye):
        await eye.sees("thought 1", "find(page=0)")
        await eye.press("j", "j")
        await eye.sees("find(page=2)")
        await eye.press("p")
        await eye.sees_not("find(page=2)")

    look(run, scenario, filters={"step": 1}, size=(140, 40))


def test_a_filter_that_nothing_matches_says_so(run):
    async def scenario(eye):
        await eye.sees("no rollouts match", "0 rollouts")

    look(run, scenario, filters={"where": "reward > 1000"})


def test_numbers_that_are_none_come_last(tmp_path):
    values = (float("nan"), 2.0, None, 10.0)

    async def scenario(eye):
        await eye.sees("nan")
        await eye.press("s")
        await eye.sees("reward▼")
        assert eye.column("reward▼") == ["10.000", "2.000", "nan", "—"]

    look(write(tmp_path, [one(1, i, reward=v) for i, v in enumerate(values)]), scenario, filters={"step": 1})


def test_the_cursor_may_move_while_the_list_is_read(run, monkeypatch):
    go_on, rollouts = threading.Event(), StoredRun.rollouts

    def slow(self, **filters):
        assert go_on.wait(600)
        return rollouts(self, **filters)

    async def scenario(eye):
        await eye.sees("0.1", "tokens")
        monkeypatch.setattr(StoredRun, "rollouts", slow)
        await eye.pilot.press("s", "j", "j")
        go_on.set()
        await eye.sees("reward▼")
        assert eye.column("reward▼")[:3] == ["7.100", "6.100", "5.100"]
        assert next(line for line in eye.lines if line.startswith("▌")).split()[2] == "5"

    look(run, scenario, filters={"step": 1}, size=(109, 24))


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
