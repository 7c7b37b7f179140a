"""A segment is pending, and then has run: what it has in one state, it does not have in the other."""

import gc

import jax.numpy as jnp
import numpy as np

import tape
import tape.numpy as tnp
from tape.graph.segment import NOTHING
from tape.programs import retention


def test_what_has_run_is_another_type_than_what_is_pending():
    x = tape.Variable(np.ones(3, np.float32))
    y = tnp.sin(x)
    z = tnp.exp(y) * 2.0
    segment = z._segment
    assert segment.pending
    assert segment.run is None
    assert segment.results is segment.cells
    assert retention.entries_of(segment) == 3
    z.block_until_ready()
    assert not segment.pending
    assert not segment.cells
    assert segment.results is segment.run.saved
    assert segment.run.saved[z._place.slot] is z._cell
    assert not segment.run.failed
    assert segment.swept
    z.sum().backward()
    assert segment.run is NOTHING
    assert not segment.swept


def test_what_no_sweep_comes_to_keeps_the_same_nothing():
    """So nobody may write there: cuts, sweeps, hooks that pack and what is dropped leave it empty."""
    x = tape.Variable(np.ones((2, 3), np.float32))
    with tape.no_grad():
        constant = tnp.sin(x)
        constant.block_until_ready()
    seen = []
    y = tnp.cos(x)
    with tape.saved_value_hooks(lambda v: seen.append(v.shape) or v, lambda v: v):
        z = (tnp.tanh(y @ jnp.ones((3, 3))) * constant).sum()
    z.backward()
    y.unchain()
    constant.unchain()
    (y * y).sum().backward()
    u = tnp.exp(x)
    u.sum().backward()
    u.unchain_backward()
    del z, y, u
    gc.collect()
    assert seen
    assert NOTHING.saved == {}
    assert NOTHING.failed == {}


def test_a_finalizer_of_what_a_run_lets_go_of_may_sweep_the_same_segment():
    x = tape.Variable(np.arange(1.0, 4.0, dtype=np.float32))
    kept, told = [], []

    class Last:
        def __del__(self):
            if kept:
                told.append(tape.gradients(kept.pop(), x).value)

    class Doubled(tape.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.last = Last()
            return a * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 2.0

    first, second, other = Doubled.apply(x), Doubled.apply(x), (x * 3.0).sum()
    other.block_until_ready()
    del first, second
    kept.append(other)
    for _ in range(3):  # one of them lets go of what made the first two
        np.testing.assert_allclose(float((x * 5.0).sum()), 30.0)
    np.testing.assert_allclose(told, [[3.0, 3.0, 3.0]])
