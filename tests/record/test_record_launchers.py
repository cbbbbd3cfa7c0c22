"""Real command lines: `trl grpo` and `trl rloo` from YAML, `accelerate launch`, torchrun, in one process and in two."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trl
import yaml
from recorded_command import RECORD, outside
from rig import dataset, tiny_model
from terminal import Terminal

from rollout_plugins import open_run

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
TRL = [sys.executable, "-m", "trl.cli.main"] if not (BIN / "trl").exists() else [str(BIN / "trl")]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
REWARDS = "def half(completions, **kwargs):\n    return [float(i % 2) for i in range(len(completions))]\n"


@pytest.fixture
def place(tmp_path):
    """A folder with a model, a dataset, a reward and a config, as a person would have them."""
    shutil.copytree(tiny_model(tmp_path / "made"), tmp_path / "model")
    (tmp_path / "data").mkdir()
    dataset(16).to_json(tmp_path / "data" / "train.jsonl")
    (tmp_path / "rewards.py").write_text(REWARDS)
    config = {
        "model_name_or_path": "model", "dataset_name": "data", "output_dir": "out", "reward_funcs": ["rewards.half"],
        "max_steps": 2, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 8,
        "learning_rate": 1e-3, "use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 1,
        "save_strategy": "no", "seed": 7,
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def script(name):
    return str(Path(trl.__file__).with_name("scripts") / f"{name}.py")


def train(place, command, *, out="out", options=(), recorded=True):
    before = [*RECORD, *options, "--"] if recorded else []
    words = [*before, *command, "--config", "train.yaml", "--output_dir", out]
    # One thread in each process, so that sums have one order and two runs are comparable.
    env = outside(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


COMMANDS = {
    "trl grpo": ([*TRL, "grpo"], 1),
    "trl rloo": ([*TRL, "rloo"], 1),
    "accelerate launch": ([*ACCELERATE, "--num_processes", "1", script("grpo")], 1),
    "torchrun": ([*TORCHRUN, script("rloo")], 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_line_is_recorded_and_trains_the_same_model(place, name):
    command, world = COMMANDS[name]
    done = train(place, command, options=["--tokens", "--plugins", "redact"])
    run = open_run(place / "out")
    assert (len(run), run.info.world_size, dict(run.health.drops)) == (8 * world, world, {})
    assert {rollout.rank for rollout in run.rollouts()} == set(range(world))
    assert all(rollout.rewards["half"] in {0.0, 1.0} for rollout in run.rollouts())
    assert done.stderr.count("rollout-plugins recorded") == 1
    assert "rollouts record:" not in done.stderr
    train(place, command, out="alone", recorded=False)
    assert not (place / "alone-rollouts").exists()
    assert (place / "out" / "model.safetensors").read_bytes() == (place / "alone" / "model.safetensors").read_bytes()
    assert (place / "model" / "model.safetensors").read_bytes() != (place / "alone" / "model.safetensors").read_bytes()


def test_two_processes_of_accelerate_are_recorded(place):
    # With --cpu, accelerate starts several processes through MPI alone; this is how it starts torchrun.
    more = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    launch = [*ACCELERATE[:-1], *more, script("grpo")]
    train(place, launch, options=["--dir", "my runs"])
    assert len(open_run(place / "my runs")) == 16


def test_ctrl_c_in_a_training_ends_it_and_keeps_what_there_was(place):
    text = (place / "train.yaml").read_text().replace("max_steps: 2", "max_steps: 100000")
    (place / "train.yaml").write_text(text)
    env = outside(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    command = ["env", "-C", str(place), *RECORD, "--", sys.executable, script("grpo"), "--config", "train.yaml"]
    terminal = Terminal(command, columns=200, signals=True, **env)
    terminal.sees("'loss'")
    terminal.press("\x03")
    assert terminal.ends() != 0
    assert "KeyboardInterrupt" in terminal.seen
    assert "rollouts record:" not in terminal.seen
    run = open_run(place / "out")
    assert len(run) >= 4
    assert f"recorded {len(run):,} rollouts, none lost" in terminal.seen


def test_a_training_that_fails_keeps_what_there_was(place):
    (place / "rewards.py").write_text(
        REWARDS
        + "\n\ncalls = []\nfine = half\n\ndef half(completions, **kwargs):\n    calls.append(1)\n    assert len(calls) < 2\n    return fine(completions)\n"
    )
    words = [*RECORD, "--", sys.executable, script("grpo"), "--config", "train.yaml"]
    done = subprocess.run(words, cwd=place, env=outside(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert "rollouts record:" not in done.stderr
    assert any(rollout.rewards for rollout in open_run(place / "out").rollouts())


def test_a_launcher_that_was_started_without_us_says_so_itself(place):
    """The variables alone, as a Slurm template or an image sets them."""
    lines = subprocess.run(
        [*RECORD, "--environment"], env=outside(), capture_output=True, text=True, check=True
    ).stdout
    command = f"{lines}exec {sys.executable} {script('grpo')} --config train.yaml"
    done = subprocess.run(["sh", "-c", command], cwd=place, env=outside(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(open_run(place / "out")) == 8


def test_a_process_that_lacks_us_says_so_once_and_trains(place):
    """A shell script starts a Python that was not checked before."""
    (place / "lacks").mkdir()
    (place / "lacks" / "sitecustomize.py").write_text("import sys; sys.modules['rollout_plugins'] = None\n")
    train = " ".join([*TORCHRUN, script("grpo"), "--config", "train.yaml"])
    launch = f'export PYTHONPATH="$PYTHONPATH:{place}/lacks"; {train}'
    env = outside(OMP_NUM_THREADS="1")
    done = subprocess.run(
        [*RECORD, "--", "sh", "-c", launch], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line for line in done.stderr.splitlines() if line.startswith("rollouts record: ")]
    missing = f"not recorded, because rollout-plugins is not installed for {sys.executable}"
    assert told == [f"rollouts record: {missing}", f"rollouts record: nothing was recorded: {missing}"]
    assert not (place / "out-rollouts").exists()
