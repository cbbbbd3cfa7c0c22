"""Benchmarks train the tests' tiny models: `from rig import make` finds `tests/support/rig.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
