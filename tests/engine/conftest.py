"""What tests of the engine share."""

from clock import clock  # noqa: F401 - a fixture for all tests
from loaded import install  # noqa: F401 - a fixture for all tests
