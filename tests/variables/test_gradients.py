"""``.grad`` of Variables that have none."""

import re
import warnings

import jax
import pytest

import tape
from tape.errors import TapeWarning


def test_the_gradient_of_a_result_that_has_none_comes_with_a_hint():
    x = tape.Variable([1.0, 2.0])
    y = x * 2
    z = y + 1
    z.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert y.grad is None  # no sweep has come by
        z.sum().backward()
        assert x.grad is not None
        assert z.grad is not None
        z.grad = None
        assert z.grad is None
        repr(y)
        jax.tree.map(lambda v: v.shape, [y])
        assert tape.constant(1.0).grad is (tape.constant([1.0]) * 2).grad is None
    words = re.escape(
        "(shape (2,), dtype float32), which is not a leaf, and left no gradient there; call y.retain_grad() before backward(), or"
    )
    with pytest.warns(TapeWarning, match=words) as told:
        assert y.grad is None
    assert told[0].filename == __file__
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            assert y.grad is None
    assert len(told) == 1
