"""What tests of the engine share."""

from loaded import install  # noqa: F401 - a fixture for all tests
