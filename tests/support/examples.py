"""How many examples hypothesis tries: few in the quick tests, as many as EXAMPLES says in `.ci/run slow`."""

import os

from hypothesis import HealthCheck, settings

thorough = settings(
    max_examples=int(os.environ.get("EXAMPLES", "20")), deadline=None, suppress_health_check=list(HealthCheck)
)
