"""The clock by which a plugin takes too long, in the hands of a test."""

import time

import pytest


class Clock:
    """It stands still, so that only those take long that move it on."""

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("rollout_plugins.engine.isolation.time", made)
    return made
