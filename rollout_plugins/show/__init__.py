"""Draw rollouts, groups and runs for the terminal and the report."""

from rollout_plugins.show.chart import render_steps, sparkline
from rollout_plugins.show.render import render_group, render_history, render_rollout, render_rollouts

__all__ = ["render_group", "render_history", "render_rollout", "render_rollouts", "render_steps", "sparkline"]
