"""Drawing for the terminal and the page: what a rollout, its group and its run look like."""

from rollout_plugins.show.chart import render_steps, sparkline
from rollout_plugins.show.render import render_group, render_history, render_rollout, render_rollouts

__all__ = ["render_group", "render_history", "render_rollout", "render_rollouts", "render_steps", "sparkline"]
