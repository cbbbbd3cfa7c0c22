"""The concern plugins in real GRPO and RLOO runs, images by a real vision-language trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rig import GRPO, RLOO, call, dataset, make
from tools import multiply
from vlm import look, make_vlm, picture, rows

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.hashing import pixel_hash
from rollout_plugins.plugins.cap import Cap

HERE = Path(__file__).parent
KEY = "hf_" + "aB3d" * 9


def hashes(*numbers):
    return {pixel_hash(picture(number)) for number in numbers}


def media(folder):
    return sorted(path for path in (folder / "out-rollouts").rglob("media/*"))


def recorded(trainer, **options):
    trainer.add_callback(RolloutPluginCallback(strict=True, **options))
    trainer.train()
    return open_run(trainer.args.output_dir)


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_images_of_the_dataset_become_one_file_each_over_siblings_and_epochs(tmp_path, cls):
    held = Counter()

    def reward(completions, image, **kwargs):
        held.update(id(each) for each in image)
        assert len({id(each) for each in image}) == len(image), "siblings hold objects of their own"
        return [float(i) for i in range(len(completions))]

    trainer = make_vlm(tmp_path, rows(image=[picture(i) for i in range(4)]), cls=cls, rewards=reward, max_steps=4)
    run = recorded(trainer)
    rollouts = list(run.rollouts())
    assert len(rollouts) == len(trainer.truth) == 16
    assert held
    for rollout, truth in zip(rollouts, trainer.truth, strict=True):
        shown, text = rollout.prompt[0]["content"]
        assert shown["image"].hash == rollout.columns["image"].hash == pixel_hash(truth["row"]["image"])
        assert text == truth["prompt"][0]["content"][1]
        assert rollout.images == (shown["image"],)
    assert {path.stem for path in media(tmp_path)} == hashes(0, 1, 2, 3)
    assert len(media(tmp_path)) == 4


def test_a_resumed_run_writes_no_image_again(tmp_path):
    data = rows(image=[picture(i) for i in range(4)])
    recorded(make_vlm(tmp_path, data, max_steps=2, save_strategy="steps", save_steps=2))
    before = {path: path.stat().st_mtime_ns for path in media(tmp_path)}
    trainer = make_vlm(tmp_path, data, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.add_callback(RolloutPluginCallback(strict=True))
    trainer.train(resume_from_checkpoint=True)
    assert {path: path.stat().st_mtime_ns for path in media(tmp_path)} == before
    assert {rollout.attempt for rollout in open_run(tmp_path / "out").rollouts()} == {1, 2}


def test_lists_of_images_and_empty_ones(tmp_path):
    data = rows(images=[[picture(0), picture(1)], [picture(2)], [], []])
    run = recorded(make_vlm(tmp_path, data, cls=RLOO, max_steps=2))
    found = {tuple(image.hash for image in rollout.images) for rollout in run.rollouts()}
    first, second, third = (pixel_hash(picture(i)) for i in range(3))
    assert found == {(first, second), (third,), ()}
    assert len(media(tmp_path)) == 3


def test_images_that_tools_return_beside_rows_without_any(tmp_path):
    data = rows(image=[picture(0), None, picture(2), None])
    script = [call("look", {"n": 1}), "nothing to see"]
    trainer = make_vlm(tmp_path, data, script, tools=[look], max_steps=2)
    run = recorded(trainer)
    looked = [rollout for rollout in run.rollouts() if len(rollout.completion) > 1]
    assert looked
    for rollout in looked:
        (block, text) = rollout.completion[1]["content"]
        assert block["image"].hash == pixel_hash(picture(1))
        assert text == {"type": "text", "text": "seen 1"}
        assert rollout.tool_calls[0].result[0]["image"] == block["image"]
        assert rollout.images[-1] == block["image"]
    assert {path.stem for path in media(tmp_path)} == hashes(0, 1, 2)
    assert {rollout.columns["image"] is None for rollout in run.rollouts()} == {True, False}


def test_training_is_the_same_with_and_without(tmp_path):
    data = rows(image=[picture(i) for i in range(4)])
    plain = make_vlm(tmp_path / "a", data, max_steps=3, temperature=1.0)
    plain.train()
    watched = make_vlm(tmp_path / "b", data, max_steps=3, temperature=1.0)
    recorded(watched, plugins=["redact", "dedup", "cap"])
    numbers = [[(e.get("loss"), e.get("grad_norm")) for e in t.state.log_history] for t in (plain, watched)]
    assert numbers[0] == numbers[1]
    weights = [t.model.state_dict() for t in (plain, watched)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


class Sink:
    def __init__(self):
        self.traces = []

    @hookimpl
    def export_traces(self, traces, step):
        self.traces += [(step.split, step.step, trace) for trace in traces]


def secret() -> str:
    """
    Read the configuration.
    """
    return f"HF_TOKEN={KEY}"


def test_all_concerns_in_one_run(tmp_path):
    script = [call("secret", {}), call("multiply", {"a": 2, "b": 3}), f"the key is {KEY}", "same", "same", "same"]
    data = dataset(4, note=[f"use {KEY}"] * 4)
    trainer = make(
        tmp_path, script, rows=data, eval_rows=data, tools=[secret, multiply], max_steps=3, per_device_train_batch_size=8,
        num_generations=4, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8,
    )  # fmt: skip
    sink = Sink()
    run = recorded(trainer, plugins=[Cap(4), "redact", "dedup", sink])
    assert any(KEY in str(row) for row in trainer.truth), "the trainer itself sees the secret"
    assert len(list(run.rollouts())) == len(trainer.truth)
    assert not any(KEY in str(rollout) for rollout in run.rollouts())
    assert not any(KEY in str(trace) for _, _, trace in sink.traces)
    assert all(KEY.encode() not in path.read_bytes() for path in (tmp_path / "out-rollouts").rglob("*.json"))
    assert any("[REDACTED:huggingface]" in str(rollout.completion) for rollout in run.rollouts())
    shown = Counter((split, step) for split, step, _ in sink.traces)
    assert all(count <= 4 for count in shown.values())
    assert {split for split, _ in shown} == {"train", "eval"}
    marks = Counter(" ".join(rollout.marks) for rollout in run.rollouts(split="train"))
    assert sum(marks.values()) == 24
    logged = {name for entry in trainer.state.log_history for name in entry}
    for name in ("duplicated", "tools/secret/calls", "redacted/huggingface", "dedup/duplicates", "cap/kept", "turns"):
        assert f"rollouts/{name}" in logged
    assert any(name.startswith("eval") and name.endswith("rollouts/duplicated") for name in logged)


def test_default_on_and_removable(tmp_path):
    trainer = make_vlm(tmp_path, rows(image=[picture(i) for i in range(4)]))
    run = recorded(trainer, disable=["images", "metrics"])
    assert media(tmp_path) == []
    assert all(rollout.images == () for rollout in run.rollouts())
    assert not any("rollouts/truncated" in entry for entry in trainer.state.log_history)


def test_two_ranks_share_files_and_the_cap(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [*command, str(HERE / "plugins_worker.py"), str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert Counter(rollout.rank for rollout in rollouts) == {0: 8, 1: 8}
    assert {path.name for path in media(tmp_path)} == {f"{digest}.png" for digest in hashes(0, 1, 2, 3)}
    assert all(len(rollout.images) == 1 for rollout in rollouts)
    seen = [tuple(each) for rank in range(2) for each in json.loads((tmp_path / f"rank-{rank}.json").read_text())]
    assert len(set(seen)) == len(seen)
    assert all(0 < count <= 3 for count in Counter(step for step, _ in seen).values())
    ranks = {rollout.id: rollout.rank for rollout in rollouts}
    told = open_run(tmp_path / "out").table(["id", "selection.why"]).to_pylist()
    assert {row["id"] for row in told if row["selection.why"]} == {ident for _, ident in seen if ranks[ident] == 1}
    assert all(row["selection.why"].startswith("cap: ") for row in told if row["selection.why"])
