"""The terminal viewer, through its keys: from screen to screen and back, help, commands and sizes."""

from viewer import look

from rollout_plugins import open_run
from rollout_plugins.view.widgets.grid import Grid


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
        await eye.sees("where reward > 5", "with “sunny”", " rollouts\n")  # found; Esc stops a search that goes on
        await eye.press("escape")
        await eye.sees("all rollouts", "96 rollouts")
        await eye.press("escape")
        await eye.sees("spread")
        await eye.press("escape", "escape")
        await eye.sees("press q to leave", "spread")
        assert eye.app.is_running
        await eye.press("q")
        await eye.until(lambda: not eye.app.is_running)

    look(run, scenario, filters={"where": "reward > 5", "search": "sunny"})


def test_the_run_is_described(run):
    async def scenario(eye):
        await eye.sees("96 rollouts")
        await eye.press("i")
        await eye.sees("About the run", "id: r1", "lost", "none", "failed", "judge: score")
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


def test_it_is_resized_from_large_to_tiny_and_back(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.sees("Let me look.")
        for width, height in ((80, 24), (40, 10), (20, 6), (200, 60)):
            await eye.pilot.resize_terminal(width, height)
            await eye.rests()
            assert len(eye.lines) == height
            assert all(len(line) <= width for line in eye.lines)
        await eye.press("enter")
        for width, height in ((80, 24), (40, 10), (20, 6), (200, 60)):
            await eye.pilot.resize_terminal(width, height)
            await eye.rests()
            assert len(eye.lines) == height
        await eye.sees("rollout 1 of 8", "Let me look.")

    look(run, scenario, filters={"step": 1}, size=(140, 40))


def test_without_colours(run, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario(eye):
        await eye.sees("96 rollouts", "▌")
        await eye.press("enter")
        await eye.sees("step 1", "▌")

    look(run, scenario)


def test_a_low_screen_has_the_reward_in_one_line(run):
    async def scenario(eye):
        await eye.sees("reward ▁▂▂▃▄▄▅▅▆▇▇█", "3.6")

    look(run, scenario, size=(80, 12))


def test_the_mouse_is_welcome(run):
    async def scenario(eye):
        await eye.sees("8 rollouts", "7.1")
        await eye.click("Grid", (10, 4))
        assert next(line for line in eye.lines if line.startswith("▌")).split()[2] == "3"
        head = next(line for line in eye.lines if "tokens" in line)
        await eye.click("Grid", (head.index("tokens"), 0))
        await eye.sees("tokens▼")
        await eye.click("Grid", (10, 2))
        await eye.click("Grid", (10, 2))
        await eye.sees("rollout 2 of 8")

    look(run, scenario, filters={"step": 1}, size=(109, 24))


def test_findings_come_first_and_lead_to_their_rollouts(run, tmp_path):
    import shutil

    from rollout_hookspecs import Finding

    from rollout_plugins.reading.checking import save

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    stored = open_run(copy)
    ids = [rollout.id for rollout in stored.rollouts(step=3, limit=2)]
    finding = Finding(check="mine", title="t", text="two odd answers", severity="severe", rollouts=ids, advice="Look.")
    save(stored, [finding])

    async def scenario(eye):
        await eye.sees("severe   two odd answers", "96 rollouts")
        await eye.press("F")
        await eye.sees("1 finding", "two odd answers", "Look.")
        await eye.press("enter")
        await eye.sees("2 rollouts", "mine", "●")

    look(copy, scenario, size=(140, 40))
