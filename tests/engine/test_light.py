"""Importing the package, writing plugins for it and reading facts must not load what training loads."""

import subprocess
import sys

import pytest

import rollout_plugins

HEAVY = {"torch", "transformers", "trl", "wandb", "trackio", "pyarrow", "pandas", "numpy", "duckdb", "PIL", "datasets"}
PROGRAMS = {
    "the package": "import rollout_plugins",
    "the contract": "import rollout_hookspecs; from rollout_plugins import Rollout, hookimpl, Drop, Trace, Batch; Rollout(id='x')",
    "what is public": "import rollout_plugins; dir(rollout_plugins); rollout_plugins.__version__",
}


def loaded(program):
    command = [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_it_loads_nothing_heavy(program):
    assert loaded(PROGRAMS[program]) & HEAVY == set()


def test_the_contract_needs_pluggy_alone():
    there = loaded("import rollout_hookspecs")
    assert {name for name in there if name in {"orjson", "rich", "rollout_plugins"}} == set()
    assert "pluggy" in there


def test_reading_loads_nothing_that_only_training_needs():
    there = loaded("from rollout_plugins import open_run; open_run")
    assert there & {"torch", "transformers", "trl", "wandb", "trackio"} == set()


def test_recording_loads_nothing_that_only_reading_needs(tmp_path):
    rollouts = [{"prompt": "2+2?", "completion": "4"}]
    loop = f"recorder = RolloutRecorder(dir={str(tmp_path)!r}); recorder.record(1, {rollouts}); recorder.close()"
    there = loaded(f"from rollout_plugins import RolloutRecorder; {loop}")
    assert there & {"duckdb", "torch", "transformers"} == set()


def test_a_name_that_the_package_lacks_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rollout_plugins' has no attribute 'nonsense'"):
        rollout_plugins.nonsense  # noqa: B018 - the access raises
