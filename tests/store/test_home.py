"""Rollouts stay at home: what is uploaded with a model has none of them, unless somebody says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hub import hub
from rig import make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.reading.runs import runs
from rollout_plugins.store.runs_folder import home_of


def trained(folder, *, home=None, **options):
    trainer = make(folder, max_steps=2, **options)
    trainer.add_callback(RolloutPluginCallback(dir=home))
    trainer.train()
    return trainer


def pushed(monkeypatch, folder, **options):
    with hub(monkeypatch) as server:
        trained(folder, push_to_hub=True, hub_model_id="me/out", hub_token="token", **options).push_to_hub()
    uploads = server.repos["me/out"]["commits"]
    paths = [path for upload in uploads for path in upload]
    assert "model.safetensors" in paths
    return uploads, paths


def of_rollouts(paths):
    return [path for path in map(str, paths) if path.endswith((".arrows", ".parquet", "run.json"))]


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_push_to_hub_uploads_no_rollouts(tmp_path, monkeypatch, strategy):
    options = {"save_strategy": "steps", "save_steps": 1, "hub_strategy": strategy, "hub_always_push": True}
    uploads, paths = pushed(monkeypatch, tmp_path, **options)
    assert len(uploads) == {"end": 1, "every_save": 3, "checkpoint": 5, "all_checkpoints": 5}[strategy]
    assert [path for path in paths if "rollouts/" in path] == of_rollouts(paths) == []
    assert len(open_run(tmp_path / "out")) == 8


def test_push_to_hub_leaves_out_rollouts_that_had_to_be_inside(tmp_path, monkeypatch):
    home = tmp_path / "out" / "_rollouts"
    _, paths = pushed(monkeypatch, tmp_path, home=home)
    assert of_rollouts(paths) == []
    assert len(open_run(tmp_path / "out")) == 8


def test_rollouts_are_published_with_the_model_when_told_so(tmp_path, monkeypatch):
    _, paths = pushed(monkeypatch, tmp_path, home=tmp_path / "out" / "rollouts")
    assert any(path.endswith("run.json") for path in of_rollouts(paths))
    assert len(open_run(tmp_path / "out")) == 8


def test_uploads_of_the_output_folder_by_trackers_hold_no_rollouts(tmp_path, monkeypatch):
    import trackio
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_LOG_MODEL", "checkpoint")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, save_strategy="steps", save_steps=1, report_to=["wandb"])
    artifact = wandb.Artifact("model", "model")
    artifact.add_dir(str(tmp_path / "out"))
    assert any(path.endswith("model.safetensors") for path in artifact.manifest.entries)
    assert of_rollouts(artifact.manifest.entries) == []
    saved = wandb.save("out/**")
    assert saved
    assert of_rollouts(saved) == []
    wandb.finish()
    trackio.init(project="p", embed=False)
    trackio.save("out/**")
    trackio.finish()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and "out-rollouts" not in path.parts]
    assert of_rollouts(kept) == []
    assert len(open_run("out")) == 8


def test_a_resume_goes_on_where_its_run_is(tmp_path):
    for home in (None, tmp_path / "out" / "rollouts"):
        out = tmp_path / str(bool(home))
        trained(out, home=home and out / "out" / "rollouts", save_strategy="steps", save_steps=1)
        trainer = make(out, max_steps=3)
        trainer.add_callback(RolloutPluginCallback())
        trainer.train(resume_from_checkpoint=True)
        assert len(runs(out / "out")) == 1
        assert [attempt["attempt"] for attempt in open_run(out / "out").attempts] == [1, 2]


def test_home_is_beside_the_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert home_of("a/b/") == home_of("a/b") == tmp_path / "a" / "b-rollouts"
    assert home_of(".") == tmp_path.with_name(f"{tmp_path.name}-rollouts")
    assert home_of("/") == Path("/_rollouts")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert home_of("link") == tmp_path / "disk-rollouts"


def test_home_is_inside_a_mounted_volume():
    volume = next(path for path in ("/dev/shm", "/proc") if os.path.ismount(path))
    assert home_of(volume) == Path(volume) / "_rollouts"


def test_runs_are_found_beside_their_output_folders_and_without_them(tmp_path):
    trained(tmp_path / "a")
    trained(tmp_path / "b")
    assert len(runs(tmp_path / "a")) == 1
    (tmp_path / "a" / "out").rmdir()
    assert [len(run) for run in runs(tmp_path / "a")] == [8]
