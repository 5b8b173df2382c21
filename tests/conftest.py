"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No timing decides a test: a loaded machine is no failure. Failing examples print how to replay them. Where CI is set
# the same examples are tried each time, so that a run says something of the change; `make fuzz` looks for new ones.
settings.register_profile(
    "warmtier",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("warmtier")
