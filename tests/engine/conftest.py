"""What tests of the engine share."""

import sys
from functools import partial

import pytest
from exported import rollout
from loaded import distribution

from rollout_plugins import Run, open_run
from rollout_plugins.store.write import RunWriter


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with entry points on the path, and forget its modules afterwards, whose names begin with x_."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield partial(distribution, tmp_path)
    for name in [name for name in sys.modules if name.startswith("x_")]:
        del sys.modules[name]


@pytest.fixture
def run(tmp_path):
    """What is exported: two steps of four rollouts, and one of evaluation."""
    facts = Run(id="r1", dir=str(tmp_path / "r1"), reward_names=("half",))
    writer = RunWriter(facts)
    for generation, split in enumerate(("train", "train", "eval")):
        writer.write(split, [rollout(split, generation, index) for index in range(4)])
    writer.close()
    return open_run(tmp_path / "r1")
