"""Of several results of a step some are swept: what is on the way of the others gives nothing, be its slopes infinite or not linear."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp

X, W = np.array([0.0, 4.0, 1.0], np.float32), np.array([1.0, 2.0, 0.5], np.float32)  # the root of 0 has an infinite slope


class Shifted(tape.Function):
    """Its backward makes something of zeros, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x, x * 3

    @staticmethod
    def backward(ctx, square, triple):
        (x,) = ctx.saved
        gradient = 0.5 + 0 * x
        if square is not None:
            gradient = gradient + 2 * x * square
        return gradient if triple is None else gradient + 3 * triple


class Rounded(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g + 1.0


def _repeated(x, w):
    y, z = x * w, x * 1
    for _ in range(40):  # a loop of XLA's
        y, z = tnp.sqrt(y) * w, tnp.sin(z) * w + x
    return y, z, y + z


def _scanned(x, w):
    def body(carry, _):
        a, b = tnp.sqrt(carry[0]) * w, tnp.sin(carry[1]) + x
        return (a, b), (a.sum(), b.sum())

    (a, b), (p, q) = tape.lax.scan(body, (x * w, x * 1), None, length=3)
    return a, b, p, q


def _nested(x, w):
    a, b = tape.jit(lambda x, w: (tnp.sqrt(x) * w, x * w))(x, w)
    return a, b, a + b


def _hooked(x, w):
    y = x * w
    y.register_hook(lambda g: g * 2 + 1)
    return tnp.sqrt(y), x * 2, tnp.maximum(y, w)


def _function(x, w):
    a, b = Shifted.apply(x * w)
    return a * b, tnp.sqrt(x), w.sum()


STEPS = {
    "plain": lambda x, w: (tnp.sqrt(x * w), (x * w * 3).sum(), tnp.log(x)),
    "repeated": _repeated,
    "scan": _scanned,
    "cond": lambda x, w: tape.lax.cond(x.sum() > 9.0, lambda x, w: (x, w), lambda x, w: (tnp.sqrt(x) * w, x * w), x, w),
    "checkpoint": lambda x, w: tape.checkpoint(lambda x, w: (tnp.sqrt(x) * w, tnp.sin(x) * w))(x, w),
    "lifted": lambda x, w: interop.lift(lambda x, w: (jnp.sqrt(x) * w, jax.nn.relu(x) * w))(x, w),
    "nested": _nested,
    "norms": lambda x, w: (tnp.linalg.norm(x * 0 * w), (x * w).sum(), tnp.linalg.norm(x)),
    "extreme": lambda x, w: (tnp.sqrt(x * w).max(), tnp.sort(tnp.sqrt(x)), tape.lax.cummax(tnp.sqrt(w * x)), w * x),
    "places": lambda x, w: (x.at[np.array([0, 1])].mul(tnp.sqrt(x * w)[:2]), tnp.sqrt(x)[::-1], tnp.pad(x, 1).sum() * w),
    "solved": lambda x, w: (tnp.linalg.solve(tnp.eye(3) * w, tnp.sqrt(x)), tnp.linalg.inv(tnp.eye(3) * x), x @ w),
    "hooked": _hooked,
    "function": _function,
    "one of a function": lambda x, w: (Rounded.apply(x) * w, tnp.sqrt(x), x * w),
}


@pytest.mark.parametrize("way", STEPS)
def test_results_that_are_not_swept_give_nothing(way):
    def outcome(step, swept):
        x, w = tape.Variable(X), tape.Variable(W)
        results = step(x, w)
        slopes = tape.gradients([results[i].sum() for i in swept], [x, w], unconnected="none", create_graph=True)
        further = () if way == "hooked" else sum((g * g).sum() for g in slopes if g is not None)
        return [*slopes, *(() if way == "hooked" else tape.gradients(further, [x, w], unconnected="none"))]

    compiled = tape.jit(STEPS[way])
    count = len(STEPS[way](tape.Variable(X), tape.Variable(W)))
    for swept in [some for n in range(1, count + 1) for some in itertools.combinations(range(count), n)]:
        for a, b in zip(outcome(STEPS[way], swept), outcome(compiled, swept), strict=True):
            assert (a is None) == (b is None), swept
            if a is not None:
                finite = np.isfinite(a.value)  # what overflows there may do so in another way
                np.testing.assert_allclose(b.numpy()[finite], a.numpy()[finite], rtol=2e-5, atol=1e-6, err_msg=str(swept))
    assert compiled.cache_info().traces == 1
