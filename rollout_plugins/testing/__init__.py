"""Test your own plugins: records to feed them, the real pipeline to run them in, and a real trainer.

    result = run_plugins([MyPlugin()], [make_rollout(reward=1.0), make_rollout(reward=0.0)])
    assert result.metrics["rollouts/mine"] == 0.5

Works with any test runner and registers nothing with it. Only `scripted_grpo` needs torch and TRL.
"""

from __future__ import annotations

from rollout_plugins.testing._again import run_again
from rollout_plugins.testing._hostile import hostile_rollouts
from rollout_plugins.testing._records import make_rollout, make_run, make_step
from rollout_plugins.testing._run import PluginError, Result, run_plugins, show_panels
from rollout_plugins.testing._trainer import call, scripted_grpo

__all__ = [
    "PluginError",
    "Result",
    "call",
    "hostile_rollouts",
    "make_rollout",
    "make_run",
    "make_step",
    "run_again",
    "run_plugins",
    "scripted_grpo",
    "show_panels",
]
