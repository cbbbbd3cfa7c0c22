"""Record a run in which every generation becomes a part of its own."""

from store_rig import batch, started

from rollout_plugins import hookimpl


class SealsOften:
    """A plugin that asks for a part for each generation, as a mirror may."""

    name = "often"
    seal_seconds = 1e-9

    @hookimpl
    def on_run_end(self):
        pass


def record(folder, steps, line=None):
    line = line or started(folder, SealsOften())
    for step in steps:
        line.submit(batch(step=step))
    assert line.drain(600)
    return line
