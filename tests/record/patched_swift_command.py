"""ms-swift's real command line from a YAML. `.ci/patched` runs it where ms-swift is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from recorded_command import RECORD, outside
from rig import tiny_model

from rollout_plugins import open_run

SWIFT = str(Path(sys.executable).with_name("swift"))
REWARD = """
from swift.rewards import ORM, orms

class Half(ORM):
    def __call__(self, completions, **kwargs):
        return [float(i % 2) for i in range(len(completions))]

orms["half"] = Half
"""
PLUGIN = (Path(__file__).parents[2] / "docs" / "how-to" / "ms-swift.md").read_text(encoding="utf-8")
PLUGIN = PLUGIN.partition('title="rollouts.py"\n')[2].partition("```")[0]


@pytest.fixture
def place(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"hello {i}"}]} for i in range(16)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "rollouts.py").write_text(PLUGIN)
    return tmp_path


def train(place, command, **more):
    config = {
        "rlhf_type": "grpo", "model": tiny_model(place), "model_type": "qwen3", "template": "qwen3",
        "tuner_type": "full", "dataset": "data.jsonl", "external_plugins": ["rewards.py"], "reward_funcs": ["half"],
        "output_dir": "out", "add_version": False, "torch_dtype": "float32", "attn_impl": "sdpa",
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "num_generations": 2,
        "max_completion_length": 8, "max_steps": 2, "logging_steps": 1, "save_strategy": "no", "eval_strategy": "no",
        "split_dataset_ratio": 0, "report_to": "none", "check_model": False, "gradient_checkpointing": False,
        "dataset_num_proc": 1, "dataloader_num_workers": 0,
    } | more  # fmt: skip
    (place / "grpo.yaml").write_text(yaml.safe_dump(config))
    env = outside(USE_HF="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    words = [*command, SWIFT, "rlhf", "grpo.yaml"]
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run = open_run(place / "out")
    assert (len(run), dict(run.health.drops)) == (8, {})
    assert all(rollout.rewards == {"Half": float(rollout.index % 2)} for rollout in run.rollouts())
    return done


def test_the_command_line_is_recorded(place):
    assert train(place, [*RECORD, "--"]).stderr.count("rollout-plugins recorded 8 rollouts") == 1


def test_the_callback_of_a_yaml_is_recorded_and_once_if_the_command_is_too(place):
    own = {"external_plugins": ["rewards.py", "rollouts.py"], "callbacks": ["rollouts"]}
    train(place, [], **own)
    train(place, [*RECORD, "--dir", "elsewhere", "--"], output_dir="out", **own | {"seed": 1})
    assert not (place / "elsewhere").exists()
