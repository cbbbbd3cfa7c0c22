"""Fixtures for tests of remote runs."""

import threading

import pytest
from store_rig import until

from rollout_plugins.engine import run_setup
from rollout_plugins.remote import mirror


@pytest.fixture
def fast_mirror(monkeypatch):
    """Make mirrors look for new files all the time, and wait for their threads at the end."""
    monkeypatch.setattr(mirror, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(mirror, "SHARE", 1.0)
    monkeypatch.setattr(run_setup, "_warned_targets", set())
    yield
    until(lambda: "rollouts-mirror" not in [thread.name for thread in threading.enumerate()])
