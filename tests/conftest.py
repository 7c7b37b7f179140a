"""Hypothesis profiles and the fixtures that all tests share."""

import gc
import os
import pathlib

import jax
import pytest
from hypothesis import settings

import tape
from tape.recording import trie
from tests import idle

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, derandomize=True, print_blob=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_runtest_setup():
    """Begin each test with an idle background, and with room for structures: none is dropped in the middle of a test that counts."""
    idle.settle()
    if trie._count > trie._limit // 2:
        trie._ROOTS.clear()
        trie._count = 0


@pytest.fixture
def stats():
    """The counters of ``tape.stats()``, from zero."""
    counters = tape.stats()
    counters.reset()
    return counters


MEMORY = 2 << 30  # bytes; without a limit each of two workers grows to 7 GB of compiled programs


def resident():
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """Drop compiled programs after a module that left too many of them."""
    yield
    if resident() > MEMORY:
        trie._ROOTS.clear()
        jax.clear_caches()
        gc.collect()
