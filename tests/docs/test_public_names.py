"""Every public name can be imported from the package, and is documented on one page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_plugins

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"


@pytest.mark.parametrize("name", rollout_plugins.__all__)
def test_every_public_name_can_be_imported_from_the_package(name):
    assert getattr(rollout_plugins, name) is not None


def test_the_page_lists_exactly_the_public_names():
    table = PAGE.read_text(encoding="utf-8").partition("Some names belong")[0]
    documented = {
        name for line in table.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)`", line)
    }
    assert documented - {"rollout_plugins"} == set(rollout_plugins.__all__)


@pytest.mark.parametrize(
    "module", re.findall(r"^\| `(rollout_plugins\.[\w.]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
)
def test_the_modules_on_the_page_exist(module):
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_listing_the_public_names_loads_no_heavy_library():
    program = "import rollout_plugins as r, sys; dir(r); print(*{'torch', 'duckdb', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
