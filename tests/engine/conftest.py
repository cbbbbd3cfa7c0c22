"""What tests of the engine share."""

import time

import pytest
from loaded import install  # noqa: F401 - a fixture for all tests


class Clock:
    """What plugins are timed by. It stands still, so that only those take long that move it on."""

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("rollout_plugins.engine.isolation.time", made)
    return made
