"""Hypothesis profiles and the fixtures that all tests share."""

import os

import pytest
from hypothesis import settings

import tape

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=200, derandomize=True, print_blob=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def stats():
    """The counters of ``tape.stats()``, from zero."""
    counters = tape.stats()
    counters.reset()
    return counters
