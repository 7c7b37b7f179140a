"""The pytest plugin: failed gradients render as their report, and ``--tape-nightly`` searches longer.

A module of its own, because pytest loads it in every run: importing ``tape`` here would import JAX before the user's conftest.py can set
its environment variables.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

EXAMPLES = "JAX_TAPE_EXAMPLES"  # read by tape.testing.properties
NIGHTLY = 5000
_STASH = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's option."""
    group = parser.getgroup("jax-tape", "gradients (jax-tape)")
    group.addoption("--tape-examples", type=int, metavar="N", help="search gradient properties with N examples each, not derandomized")
    group.addoption("--tape-nightly", action="store_true", help=f"the same with {NIGHTLY} examples")


def pytest_configure(config: pytest.Config) -> None:
    """Tell gradient properties how long to search."""
    examples = config.getoption("--tape-examples") or (NIGHTLY if config.getoption("--tape-nightly") else None)
    if examples:
        config.stash[_STASH] = os.environ.get(EXAMPLES)
        os.environ[EXAMPLES] = str(examples)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was."""
    if _STASH in config.stash:
        old = config.stash[_STASH]
        if old is None:
            os.environ.pop(EXAMPLES, None)
        else:
            os.environ[EXAMPLES] = old


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Show what is wrong with a gradient instead of the frames of the checker that found it."""
    outcome = yield
    if call.excinfo is None or not _is_mismatch(call.excinfo.value) or item.config.getoption("tbstyle") in ("native", "long"):
        return
    error = call.excinfo.value
    entry = next((e for e in reversed(call.excinfo.traceback) if str(e.path) == str(item.path)), None)
    where = "" if entry is None else f"{item.location[0]}:{entry.lineno + 1}: in {entry.name}\n\n"
    notes = "\n".join(getattr(error, "__notes__", ()))
    outcome.get_result().longrepr = f"{where}{type(error).__name__}: {error}" + (f"\n\n{notes}" if notes else "")


def _is_mismatch(error: BaseException) -> bool:
    return any(c.__module__ == "tape.errors" and c.__name__ == "GradientMismatch" for c in type(error).__mro__)
