"""What tests of failures share: what fails, and what was said of it."""

import logging
import sys

from store_rig import batch

from rollout_plugins import hookimpl


def told(caplog, text):
    """Warnings that say this."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and text in r.getMessage()]


def send(line, made, step):
    line.submit(batch(made, step=step))
    assert line.drain(600)


def raises():
    raise ValueError("the sink is broken")


def exits():
    sys.exit(3)


HOOKS = {
    "on_run_start": lambda act: lambda self, run: act(),
    "on_tool_call": lambda act: lambda self, tool_call: act(),
    "on_rollout": lambda act: lambda self, rollout: act(),
    "select_rollouts": lambda act: lambda self, rollouts: act(),
    "format_trace": lambda act: lambda self, rollout: act(),
    "rollout_metrics": lambda act: lambda self, rollouts: act(),
    "on_run_end": lambda act: lambda self, run: act(),
}


def plugin_with(hook, act, name="bad"):
    """A plugin with one hook that does this, and nothing else."""
    function = HOOKS[hook](act)
    function.__name__ = hook
    return type("Bad", (), {"name": name, hook: hookimpl(function)})()


def says(error):
    def act():
        raise error

    return act
