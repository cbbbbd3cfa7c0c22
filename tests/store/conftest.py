import pytest


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """A disk that promises at once; how well it keeps what it promised is not ours to test."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
