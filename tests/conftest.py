"""Loads the shared fixtures and chooses how hard the property tests search."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.fixtures"]


def pytest_configure() -> None:
    """The usual run repeats the same examples every time; the soak run draws new ones, ten times as many.

    No time limit per example: cores are shared, and the promise about speed is the benches' to keep.
    """
    settings.register_profile("usual", deadline=None, derandomize=True, database=None, print_blob=True)
    settings.register_profile(
        "soak",
        deadline=None,
        max_examples=1000,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    is_soak = os.environ.get("LINESIDE_SOAK") == "1"  # noqa: TID251 - a switch of the test run, not of the service
    settings.load_profile("soak" if is_soak else "usual")
