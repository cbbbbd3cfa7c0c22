"""What tests of imports share: files, and the runs they became."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollout_plugins import open_run
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.shapes.importing import Report, import_rollouts


def lines(path: Path, rows: list[Any], *, torn: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn, encoding="utf-8")
    return path


def brought(format_name: str, path: Path, **options: Any) -> tuple[StoredRun, Report]:
    out = path.parent if path.is_file() else path
    report = import_rollouts(format_name, path, out / "out", **options)
    run = open_run(out / "out")
    assert len(run) == report.rollouts
    assert run.info.settings["lacks"] == list(report.lacks)
    assert run.health.damaged == {}
    run.stats()
    return run, report


def tinker_step(number: int, trace: dict[str, Any] | None = None) -> dict[str, Any]:
    step = {
        "step_idx": number, "ob_len": 10 + number, "ac_len": 5, "reward": 0.1, "episode_done": number == 1,
        "stop_reason": "stop", "metrics": {"format": 1.0}, "logs": {},
    }  # fmt: skip
    return {**step, "trace": trace} if trace is not None else step


def tinker_row(**fields: Any) -> dict[str, Any]:
    return {
        "schema_version": 1, "split": "train", "iteration": 7, "group_idx": 2, "traj_idx": 0, "tags": ["math"],
        "sampling_client_step": 6, "total_reward": 1.2, "final_reward": 1.0, "trajectory_metrics": {"turns": 2},
        "steps": [tinker_step(0), tinker_step(1)], "final_ob_len": 20, **fields,
    }  # fmt: skip
