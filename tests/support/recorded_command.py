"""`rollouts record` as a person starts it, in the environment of a person's shell."""

import os
import sys

RECORD = [sys.executable, "-m", "rollout_plugins.cli.main", "record"]


def outside(**more):
    """Return an environment in which nothing of the tests is on the path for imports."""
    left_out = ("PYTHONPATH", "ROLLOUT_PLUGINS_RECORD", "ROLLOUT_PLUGINS_RECORD_END")
    return {name: value for name, value in os.environ.items() if name not in left_out} | more
