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


class Mixed(tape.Function):
    """Its backward puts two cotangents together: of one that is zero the other stays."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(True)
        return x * 1, x * 3

    @staticmethod
    def backward(ctx, a, b):
        mixed = tnp.where(np.array([True, False, True]), a, b) + tape.lax.dynamic_update_slice(a, b[:2], (1,))
        return mixed + a.at[0].add(b[0]) + a.at[1].set(b[1])


@jax.custom_vjp
def shifted(x):
    return x * 1


shifted.defvjp(lambda x: (x * 1, None), lambda _, g: (jnp.clip(g, -1, 1) + 1,))


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


def _hooked_in_a_loop(x, w):
    y, z = x * w, x * 1
    for _ in range(40):
        y, z = tnp.sqrt(y) * w, z * w + x
        y.register_hook(lambda g: g * 0.5 + 1)
    return y, z, y + z


def _function_in_a_loop(x, w):
    (a, b), _ = tape.lax.scan(lambda c, _: ((Rounded.apply(tnp.sqrt(c[0])) * w, tnp.sin(c[1]) + x), None), (x * w, x * 1), None, length=3)
    return a, b, a + b


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
    "hooked in a loop": _hooked_in_a_loop,
    "function in a loop": _function_in_a_loop,
    "mixed": lambda x, w: (*Mixed.apply(x * w), tnp.sqrt(x)),
    "function of JAX": lambda x, w: (interop.lift(shifted)(tnp.sqrt(x)), *interop.lift(lambda x: (shifted(x), x * 2))(tnp.sqrt(x * w))),
    "one of a function": lambda x, w: (Rounded.apply(x) * w, tnp.sqrt(x), x * w),
}


@pytest.mark.parametrize("way", STEPS)
def test_results_that_are_not_swept_give_nothing(way):
    def outcome(step, swept):
        x, w = tape.Variable(X), tape.Variable(W)
        results = step(x, w)
        slopes = tape.gradients([results[i].sum() for i in swept], [x, w], unconnected="none", create_graph=True)
        further = () if way.startswith("hooked") else sum((g * g).sum() for g in slopes if g is not None)
        return [*slopes, *(() if way.startswith("hooked") else tape.gradients(further, [x, w], unconnected="none"))]

    compiled = tape.jit(STEPS[way])
    count = len(STEPS[way](tape.Variable(X), tape.Variable(W)))
    for swept in [some for n in range(1, count + 1) for some in itertools.combinations(range(count), n)]:
        for a, b in zip(outcome(STEPS[way], swept), outcome(compiled, swept), strict=True):
            assert (a is None) == (b is None), swept
            if a is not None:
                finite = np.isfinite(a.value)  # what overflows there may do so in another way
                np.testing.assert_allclose(b.numpy()[finite], a.numpy()[finite], rtol=2e-5, atol=1e-6, err_msg=str(swept))
    assert compiled.cache_info().traces == 1


def test_a_rule_of_the_users_makes_nothing_of_zeros():
    def slopes(wrap):
        x, w = tape.Variable(X), tape.Variable(W)
        _, other = wrap(lambda: (tnp.tan(tnp.sqrt(x)), x * w))()
        return [g.tolist() for g in tape.gradients(other.sum(), [x, w])]

    tan = jax.extend.core.primitives.tan_p
    before = tape.rules.lookup(tan)
    tape.rules.defvjp(tan, lambda ct, out, *_, **__: ct * (1 + out * out) + 1)
    try:
        assert slopes(tape.jit) == slopes(lambda step: step) == [W.tolist(), X.tolist()]
    finally:
        tape.rules.defvjp(tan, before.vjp)
