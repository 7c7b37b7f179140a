"""Who looks asks for what is computed before it waits."""

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.variables import awaiting, conversion


class Slow:
    """An array that is there when it has been asked for so often."""

    def __init__(self, times):
        self.left = self.asked = times

    def is_ready(self):
        self.left -= 1
        return self.left <= 0


def test_it_is_asked_for_until_it_is_there():
    awaited, slow = awaiting.Awaiting(), Slow(7)
    assert awaited(slow) is slow
    assert slow.left == 0
    assert awaited(Slow(3)).left == 0


def test_what_takes_long_is_not_asked_for_again_and_again():
    awaited, slow = awaiting.Awaiting(), Slow(10**6)
    awaited(slow)
    assert slow.asked - slow.left == awaiting.ASKED
    for _ in range(awaiting.RESTS):
        awaited(slow)
    assert slow.asked - slow.left == awaiting.ASKED
    assert awaited(Slow(3)).left == 0


@pytest.mark.parametrize(
    "look",
    [
        float,
        int,
        bool,
        complex,
        lambda v: v.item(),
        lambda v: v.numpy(),
        lambda v: v.tolist(),
        np.asarray,
        lambda v: v.tobytes(),
        lambda v: v.block_until_ready().numpy(),
    ],
    ids=["float", "int", "bool", "complex", "item", "numpy", "tolist", "asarray", "tobytes", "block_until_ready"],
)
def test_looks_ask(look, monkeypatch):
    asked = []
    monkeypatch.setattr(conversion, "awaited", lambda array: asked.append(array) or array)
    y = tnp.exp(tape.constant(0.0)) * 2
    assert look(y) == look(np.float32(2.0)) if look in {float, int, bool, complex} else np.all(look(y) == look(tape.constant(2.0)))
    assert asked[0] is y.value
