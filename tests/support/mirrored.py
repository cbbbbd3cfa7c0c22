"""Record runs, and compare them with their copies."""

from pathlib import Path

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.remote.folders import files_of


def batch(step):
    return [{"prompt": f"question {step}", "completion": f"answer {step}.{n}", "reward": float(n)} for n in range(4)]


def recorded(folder, steps=(1, 2), **options):
    """Record some steps, and return the run's folder."""
    with RolloutRecorder(dir=folder, **options) as recorder:
        for step in steps:
            recorder.record(step, batch(step))
            recorder.flush()
    return Path(recorder.run.dir)


def contents(folder):
    """Return the content of every file of a run, by name."""
    return {file.name: file.path.read_bytes() for file in files_of(folder)}


def answers(folder):
    """Return the text of every completion of a run."""
    return [rollout.completion[0]["content"] for rollout in open_run(folder).rollouts()]
