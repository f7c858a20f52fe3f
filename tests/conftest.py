"""What all tests share: reproducible examples from hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; a failing example is printed in a form to replay.
settings.register_profile(
    "migratory", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("migratory")
