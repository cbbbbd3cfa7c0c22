"""What a rollout, its group and its run look like in a terminal; the app and the page draw with it too."""

from rollout_plugins.show.chart import render_steps, sparkline
from rollout_plugins.show.render import render_group, render_rollout, render_rollouts

__all__ = ["render_group", "render_rollout", "render_rollouts", "render_steps", "sparkline"]
