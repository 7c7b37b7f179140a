"""``import interop`` is enough: submodules load at their first use, and say what they need."""

import subprocess
import sys

import pytest

import interop
import tape

SCRIPT = """
import sys, interop
assert "interop.optax" not in sys.modules and "optax" not in sys.modules
assert "optax" in dir(interop) and "lift" in dir(interop)
assert interop.optax.Optimizer is sys.modules["interop.optax"].Optimizer
assert callable(interop.lift)  # a function still, not the module of its name
"""
MISSING = """
import sys
sys.modules["optax"] = None  # what is not installed
import interop, tape
for use in (lambda: interop.optax, lambda: __import__("interop.optax")):
    try:
        use()
    except ImportError as e:
        assert isinstance(e, tape.errors.TapeError)
        assert "pip install 'jax-tape[optax]'" in str(e), e
    else:
        raise AssertionError
"""


@pytest.mark.parametrize("script", [SCRIPT, MISSING], ids=["loaded", "missing"])
def test_submodules_load_at_their_first_use(script):
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - its own interpreter


def test_what_there_is_not_is_an_ordinary_error():
    assert not hasattr(interop, "wombat")
    with pytest.raises(tape.errors.TapeError, match="module 'interop' has no attribute 'wombat'"):
        interop.wombat
