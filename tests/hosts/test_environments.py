"""Harbor and OpenReward through GRPO: TRL's own specs, with only what is remote replaced.

Harbor starts a container for each rollout; here it is a folder and a shell, put in through `agent=`, which is Harbor's
own door for that. OpenReward's service is played by a stand-in, and by its own server where `openreward` is installed.
"""

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from rig import call, make

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow

harbor = pytest.importorskip("trl.experimental.harbor", reason="this TRL has no Harbor")
openreward = pytest.importorskip("trl.experimental.openreward", reason="this TRL has no OpenReward")


def trained(folder, spec, script, **config):
    trainer = make(
        folder, script, rows=spec.train_dataset, environment_factory=spec.environment_factory,
        rewards=spec.reward_funcs, **config,
    )  # fmt: skip
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(folder / "out")
    stored = list(run.rollouts())
    assert [list(r.prompt) for r in stored] == [row["prompt"] for row in trainer.truth]
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.advantage for r in stored] == [row["advantage"] for row in trainer.truth]
    return stored, run


# --- Harbor -----------------------------------------------------------------------------------------------------------


class Folder:
    """A sandbox, as far as TRL asks for one."""

    def __init__(self):
        self.path = tempfile.mkdtemp()

    async def exec(self, command, timeout_sec=None):
        done = await asyncio.create_subprocess_shell(
            command, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await done.communicate()
        return SimpleNamespace(stdout=out.decode(), stderr=err.decode(), return_code=done.returncode)


class Shell(harbor.HarborBashEnv):
    """TRL's bash agent in a folder; a task is right when its answer is what `tests/answer.txt` says."""

    async def _start(self, task_dir):
        self._task_dir, self._env = Path(task_dir), Folder()
        return (self._task_dir / "instruction.md").read_text()

    async def _verify(self):
        found = await self._env.exec("cat answer.txt")
        return float(found.stdout.strip() == (self._task_dir / "tests" / "answer.txt").read_text().strip())

    async def _stop(self):
        self._env = None


class Broken(Shell):
    def bash(self, command: str) -> str:
        """
        Run a command.

        Args:
            command: the command
        """
        raise ConnectionError("the sandbox is gone")


@pytest.fixture
def tasks(tmp_path):
    for number, (question, answer) in enumerate([("What is two and two?", "4"), ("What is the capital?", "Rome")]):
        folder = tmp_path / "suite" / "tasks" / f"task-{number}"
        (folder / "tests").mkdir(parents=True)
        (folder / "instruction.md").write_text(question)
        (folder / "tests" / "answer.txt").write_text(answer)
        (folder / "task.toml").write_text(f'[metadata]\ngold_answer = "{answer}"\ndifficulty_level = "easy"\n')
    return str(tmp_path / "suite")


def test_harbor_tasks_commands_and_verdicts_are_recorded(tmp_path, tasks):
    script = [
        call("bash", {"command": text})
        for text in ("echo 4 > answer.txt", "echo Rome > answer.txt; echo ok", "ls /nowhere", "true")
    ]
    stored, run = trained(tmp_path, harbor.HarborSpec(tasks, agent=Shell), [*script, *["done"] * 4])
    assert [r.prompt[0]["content"].partition("?")[0] for r in stored[::2]] == list(
        dict.fromkeys(r.prompt[0]["content"].partition("?")[0] for r in stored)
    )
    assert all("You have a single `bash` tool" in r.prompt[0]["content"] for r in stored)
    answers = {"What is two and two": "4", "What is the capital": "Rome"}
    given = ["4", "Rome", None, None]
    right = [
        answers[r.prompt[0]["content"].partition("?")[0]] == answer for r, answer in zip(stored, given, strict=True)
    ]
    assert [r.rewards for r in stored] == [{"_outcome_reward_func": float(one)} for one in right]
    assert [r.reward for r in stored] == [float(one) for one in right]
    calls = [r.tool_calls[0] for r in stored]
    assert [c.name for c in calls] == ["bash"] * 4
    assert [c.status for c in calls] == ["ok"] * 4
    assert calls[1].result == "ok\n"
    assert "nowhere" in calls[2].result
    assert calls[3].result == "(empty output, rc=0)"
    assert all(c.seconds > 0 for c in calls)
    assert {r.columns["difficulty_level"] for r in stored} == {"easy"}
    assert {r.columns["gold_answer"] for r in stored} == {"4", "Rome"}
    assert [tool["function"]["name"] for tool in run.info.tools] == ["bash"]


def test_a_sandbox_that_fails_is_an_error_of_the_call(tmp_path, tasks):
    script = [call("bash", {"command": "ls"})] * 4 + ["done"] * 4
    stored, _ = trained(tmp_path, harbor.HarborSpec(tasks, agent=Broken), script)
    (made,) = stored[0].tool_calls
    assert (made.status, made.error) == ("error", "ConnectionError: the sandbox is gone")
    assert stored[0].reward == 0.0


# --- OpenReward -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["stand-in", "openreward"])
def game(request, monkeypatch):
    """Where the game is served."""
    if request.param == "stand-in":
        import openreward_stand_in

        monkeypatch.setitem(sys.modules, "openreward", openreward_stand_in)
        yield "http://nowhere"
        return
    if importlib.util.find_spec("openreward") is None:
        pytest.skip("openreward is not installed")
    from openreward_server import serving

    with serving() as url:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", url)  # else the client puts a subdomain before the host
        monkeypatch.setenv("OPENREWARD_API_URL", url)
        yield url


def test_openreward_tasks_calls_and_rewards_are_recorded(tmp_path, game):
    spec = openreward.OpenRewardSpec(game)
    script = [call("guess", {"number": 3}), call("guess", {"number": 5}), call("cheat", {}), "I give up"]
    stored, run = trained(tmp_path, spec, [*script, *["done"] * 3])
    assert {r.prompt[0]["content"] for r in stored} == {
        "Guess a number, not above 6.",
        "Guess a number, not above 10.",
    }
    assert {(r.columns["number"], r.columns["level"]) for r in stored} == {(3, "easy"), (5, "easy")}
    right = [guess == r.columns["number"] for guess, r in zip((3, 5), stored, strict=False)]
    nothing = {"_outcome_only_reward_func": None}
    assert [r.rewards for r in stored] == [
        *({"_outcome_only_reward_func": float(one)} for one in right),
        nothing,
        nothing,
    ]
    assert [r.reward for r in stored] == [*map(float, right), None, None]
    assert [[c.name for c in r.tool_calls] for r in stored] == [["guess"], ["guess"], ["cheat"], []]
    assert [r.tool_calls[0].result for r in stored[:2]] == ["right" if one else "wrong" for one in right]
    cheat = stored[2].tool_calls[0]
    assert cheat.result.startswith("Error: ")
    assert "no cheating" in cheat.result
    assert cheat.status == "ok"  # TRL's adapter turns failures into results
    assert sorted(tool["function"]["name"] for tool in run.info.tools) == ["cheat", "guess"]
    assert run.info.reward_names == ("_outcome_only_reward_func",)
