"""What tests of reading share."""

import pytest
from exported import rollout
from loaded import install  # noqa: F401 - a fixture for all tests

from rollout_plugins import Run, open_run
from rollout_plugins.store.write import RunWriter


@pytest.fixture
def run(tmp_path):
    """What is exported: two steps of four rollouts, and one of evaluation."""
    facts = Run(id="r1", dir=str(tmp_path / "r1"), reward_names=("half",))
    writer = RunWriter(facts)
    for generation, split in enumerate(("train", "train", "eval")):
        writer.write(split, [rollout(split, generation, index) for index in range(4)])
    writer.close()
    return open_run(tmp_path / "r1")
