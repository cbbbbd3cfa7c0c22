"""axolotl's real training from a YAML. `.ci/patched` runs it where axolotl is installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from recorded_command import RECORD, outside
from rig import dataset, tiny_model

from rollout_plugins import open_run

TRAIN = [sys.executable, str(Path(__file__).parents[1] / "support" / "axolotl_cpu.py"), "grpo.yaml"]
REWARDS = """
def half(completions, **kwargs):
    return [float(i % 2) for i in range(len(completions))]

def transform(cfg, *args, **kwargs):
    return lambda row, tokenizer=None: {"prompt": row["prompt"]}
"""
PLUGIN = {"plugins": ["rollout_plugins.record.axolotl.RolloutPlugins"]}


@pytest.fixture
def train(tmp_path):
    (tmp_path / "rewards.py").write_text(REWARDS)
    dataset(16).to_json(tmp_path / "train.jsonl")

    def run(before=(), **more):
        config = {
            "base_model": tiny_model(tmp_path), "rl": "grpo", "output_dir": "out", "dataset_prepared_path": "prepared",
            "trl": {"max_completion_length": 8, "num_generations": 2, "reward_funcs": ["rewards.half"], "beta": 0.001},
            "datasets": [{"path": "train.jsonl", "ds_type": "json", "type": "rewards.transform", "split": "train"}],
            "sequence_len": 64, "micro_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 2,
            "learning_rate": 0.001, "optimizer": "adamw_torch", "lr_scheduler": "constant", "logging_steps": 1,
            "save_strategy": "no", "bf16": False, "tf32": False, "flash_attention": False,
            "special_tokens": {"pad_token": "<|endoftext|>"},
        } | more  # fmt: skip
        (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(config))
        env = outside(AXOLOTL_DO_NOT_TRACK="1", DO_NOT_TRACK="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
        command = [*before, *TRAIN]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("rollout-plugins recorded 8 rollouts, none lost") == 1
        return tmp_path

    return run


def test_the_training_is_recorded(train):
    assert len(open_run(train([*RECORD, "--"]) / "out")) == 8


def test_the_plugin_of_a_yaml_records_with_its_options(train):
    place = train(**PLUGIN, rollouts={"dir": "my runs", "tokens": True, "plugins": ["redact"]})
    assert all(rollout.tokens for rollout in open_run(place / "my runs").rollouts(tokens=True))


def test_the_plugin_counts_if_the_command_is_recorded_too(train):
    place = train([*RECORD, "--tokens", "--"], **PLUGIN)
    stored = list(open_run(place / "out").rollouts(tokens=True))
    assert (len(stored), any(rollout.tokens for rollout in stored)) == (8, False)
