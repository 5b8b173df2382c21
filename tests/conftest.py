"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No timing decides a test: a loaded machine is no failure. Failing examples print how to replay them.
settings.register_profile("warmtier", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmtier")
