"""Settings of every test run."""

import os

from hypothesis import HealthCheck, settings

# A deadline measures who else is working on the machine. In continuous integration the same examples are tried each
# time, so that a failure is always about the change at hand.
settings.register_profile(
    "shardwise", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shardwise")
