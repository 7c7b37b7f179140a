"""What a report says of a wrong gradient: for which numbers, which step, what it does with the cotangent, whose rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.testing import GradientMismatch, check_gradients
from tests.testing.cases import ruled

X = np.float32([0.7, -1.3, 0.4, 2.1])
A = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
tanh = ruled(jnp.tanh, lambda kept, ct: (ct / jnp.cosh(kept[0]),))


def where(wrong, *numbers):
    """Return a sine with half the gradient for some numbers, and where to look at it."""
    return ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * jnp.where(wrong(kept[0]), 0.5, 1),)), (np.float32(numbers),)


def only(on_values, traced):
    """Return a sine with a factor in its rule, for values and for tracers."""
    return ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * (traced if isinstance(kept[0], jax.core.Tracer) else on_values),))


def cubed():
    """Return a cube that takes no heed of its cotangent when it is differentiated again."""
    return ruled(lambda x: x**3, lambda kept, ct: (jax.lax.stop_gradient(ct) * 3 * kept[0] ** 2,))


def stored():
    """Return a square of the tape whose class keeps the argument."""

    class Square(tape.Function):
        @staticmethod
        def forward(ctx, x):
            Square.x = x
            return x**2

        @staticmethod
        def backward(ctx, g):
            return 2 * g * Square.x

    return Square.apply


def cross(w):
    return jnp.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])


def turned(w):
    """Return the rotation by a small vector, by the series of its coefficients."""
    return jnp.eye(3) + (1 - w @ w / 6) * cross(w) + (0.5 - w @ w / 24) * cross(w) @ cross(w)


def turned_back(kept, ct):
    """Leave out the derivatives of the coefficients."""
    k, square = cross(kept[0]), kept[0] @ kept[0]
    g = (1 - square / 6) * ct + (0.5 - square / 24) * (ct @ k.T + k.T @ ct)
    return (jnp.array([g[2, 1] - g[1, 2], g[0, 2] - g[2, 0], g[1, 0] - g[0, 1]]),)


SAID = {
    "a bound": (*where(lambda x: x > 1, 0.3, -1.0, 2.5, 3.5), "2x too small where x > 1"),
    "between two bounds": (*where(lambda x: (x > 0.5) & (x < 1), 0.1, 0.6, 0.7, 0.9, 1.4, 2.0), "too small where 0.502 < x < 0.995"),
    "whole numbers": (*where(lambda x: x == jnp.round(x), 0.3, 1.7, 2.6, -1.2), "where x is a whole number"),
    "a number alone": (*where(lambda x: x > 3, 3.0), "2x too small where x > 3"),
    "equal elements": (
        ruled(jnp.max, lambda kept, ct: (ct * (kept[0] == jnp.max(kept[0])),)),
        (X,),
        "2x too large where elements are equal",
    ),
    "a small element": (
        ruled(lambda x: x * jnp.float32([1e8, 1, 1, 1e-8]), lambda kept, ct: (ct * jnp.float32([1e8, 1, 1, 2e-8]),)),
        (X,),
        "2x too large at the last index of axis 0",
    ),
    "a mean": (
        ruled(lambda x: jnp.mean(x, 1), lambda kept, ct: (jnp.broadcast_to(ct[:, None], kept[0].shape),)),
        (A,),
        "4x too large everywhere, which is the size of axis 1",
    ),
    "another argument": (ruled(jnp.subtract, lambda kept, ct: (-ct, ct)), (X, X + 3), "the gradient of argument 1 (or sign flipped)"),
    "a product": (ruled(lambda x: x * jnp.sin(x), lambda kept, ct: (ct * jnp.sin(kept[0]),)), (X,), "through sin at test_diagnosis.py:"),
    "a mean that is taken off": (ruled(lambda x: x - jnp.mean(x), lambda kept, ct: (ct,)), (X,), "is missing"),
    "a sign of one term": (
        ruled(lambda x: jnp.exp(x) + jnp.cos(x), lambda kept, ct: (ct * (jnp.exp(kept[0]) + jnp.sin(kept[0])),)),
        (X,),
        "has the wrong sign",
    ),
    "a diagonal": (
        ruled(jax.nn.softmax, lambda y, ct: (y * (1 - y) * ct,), lambda x: (jax.nn.softmax(x),) * 2),
        (X,),
        "depended on its own element alone",
    ),
    "no cotangent": (ruled(lambda x: jnp.sum(jnp.sin(x)), lambda kept, ct: (jnp.cos(kept[0]),)), (X,), "the same for all cotangents"),
    "more than the cotangent": (ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) + 0.1,)), (X,), "0.1 for the cotangent zero"),
    "the cotangent's size": (ruled(jnp.sin, lambda kept, ct: (jnp.abs(ct) * jnp.cos(kept[0]),)), (X,), "not linear in the cotangent"),
    "the cotangent, twice": (cubed(), (X,), "does not depend on the cotangent as it should"),
    "traced": (only(1, 1.01), (X,), "wrong as traced, though right op by op: 1.01x too large"),
    "op by op": (only(1.01, 1), (X,), "wrong op by op, though right under jit: 1.01x too large"),
    "places, whatever their numbers": (
        ruled(lambda x: x**2, lambda kept, ct: (2 * ct * kept[0] * jnp.float32([1, 0.5, 1, 0.7]),)),
        (X,),
        "wrong in places (2 of 4 elements)",
    ),
    "everywhere but far out": (
        ruled(jnp.tanh, lambda kept, ct: (ct * (1 - jnp.tanh(kept[0]) ** 2) * (1 + 0.1 / jnp.cosh(kept[0]) ** 2),)),
        (np.abs(X),),
        "wrong everywhere argument 0: seen",
    ),
    "a bound beyond which JAX has a convention": (
        ruled(jax.nn.softplus, lambda kept, ct: (ct * jnp.where(kept[0] > 20, 0, jax.nn.sigmoid(kept[0])),)),
        (np.float32([-3, 0.5, 19, 21]),),
        "zero where x > 20",
    ),
    "close arguments": (
        ruled(
            lambda x, y: x * x * y,
            lambda kept, ct: (2 * ct * kept[0] * kept[1] * ~jnp.isclose(kept[0], kept[1], rtol=1e-3), ct * kept[0] ** 2),
        ),
        (X, X[::-1] + np.float32(0.3)),
        "zero where argument 0 = argument 1",
    ),
    "two that change places": (
        ruled(lambda x: x**2, lambda kept, ct: ((2 * ct * kept[0])[:, ::-1],)),
        (A[:, :2],),
        "reversed along axis 1",
    ),
    "a norm": (
        ruled(
            lambda v: v / jnp.sqrt(jnp.sum(v * v, 1, keepdims=True)),
            lambda kept, ct: (ct / jnp.sqrt(jnp.sum(kept[0] ** 2, 1, keepdims=True)),),
        ),
        (A,),
        "the derivative through reduce_sum at test_diagnosis.py:",
    ),
    "an infinite element": (
        ruled(lambda x: jnp.sum(jnp.exp(x)), lambda kept, ct: (ct * jnp.exp(kept[0]) * kept[0] / kept[0],)),
        (np.float32([0.5, -np.inf, 1]),),
        "NaN where x is not finite",
    ),
    "a real part alone": (
        ruled(lambda z: (z * z.conj()).real, lambda kept, ct: (2 * ct * kept[0].real.astype(kept[0].dtype),)),
        (np.complex64([0.7 + 0.2j, -1.3 - 0.9j, 0.4j]),),
        "the imaginary part is missing",
    ),
    "a Fourier transform the other way": (
        ruled(lambda x: jnp.abs(jnp.fft.fft(x)) ** 2, lambda kept, ct: (2 * jnp.fft.fft(ct * jnp.fft.fft(kept[0]).conj())[::-1].real,)),
        (np.float32([0.7, -1.3, 0.4, 2.1, 0.9]),),
        "reversed along axis 0",
    ),
    "random numbers": (
        ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * np.float32(np.random.default_rng().uniform(0.5, 1.5)),)),
        (X,),
        "another at each call, though the values are the same",
    ),
    "an output far beneath the others": (
        ruled(lambda x: jnp.stack([x, 1e-6 * x**2]), lambda kept, ct: (ct[0] + 1.4e-6 * ct[1] * kept[0],)),
        (X,),
        "1.42857x too small everywhere",
    ),
    "what elements by themselves are too small to show": (
        ruled(turned, turned_back),
        (np.float32([4e-3, -5e-3, 3e-3]),),
        "the derivative through div at test_diagnosis.py:",
    ),
    "what is small beside a part of the result that is large": (
        ruled(lambda x: jnp.stack([1e12 * x[2], x[1] / 2]), lambda kept, ct: (jnp.stack([5 * ct[0], ct[1] / 2, 1e12 * ct[0], 0 * ct[0]]),)),
        (X,),
        "not zero, though the derivative is",
    ),
    "a triangle, of a symmetric matrix": (
        ruled(lambda a: jnp.sum(jnp.sin(a) * a.T), lambda kept, ct: (ct * jnp.tril(jnp.cos(kept[0]) * kept[0].T + jnp.sin(kept[0].T)),)),
        (A @ A.T,),
        "zero above the diagonal",
    ),
    "in a loop": (lambda x: jax.lax.scan(lambda c, a: (tanh(c + a), c), 0.1, x)[0], (X,), "in a loop or a branch"),
    "in a branch": (lambda x: jax.lax.cond(x.sum() > 0, tanh, jnp.sin, x), (X,), "in a loop or a branch"),
    "what another call keeps": (stored(), (X,), "wrong at a third call, with the first values, when another forward pass"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_is_said(name):
    fun, args, words = SAID[name]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, *args)
    assert words in " ".join(str(caught.value).split())


def test_what_is_kept_of_another_call_is_not_laid_on_jax_or_a_loop():
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(stored(), X)
    said = " ".join(str(caught.value).split())
    assert "JAX cannot differentiate" not in said
    assert "loop" not in said


def test_a_rule_that_narrows_is_not_called_right_in_its_own_dtype():
    with jax.enable_x64(True):
        fun = ruled(jnp.sin, lambda kept, ct: ((ct.astype(np.float32) * jnp.cos(kept[0]).astype(np.float32)).astype(ct.dtype),))
        with pytest.raises(GradientMismatch) as caught:
            check_gradients(fun, jnp.asarray([0.7, -1.3, 0.4], np.float64))
    said = caught.value.report.failures[0].diagnosis
    assert said.startswith("wrong in float64, though right where nothing is computed in a narrower dtype")


def test_what_is_wrong_everywhere_but_too_little_to_be_seen_near_zero_has_no_bound():
    fun = ruled(jnp.tanh, lambda kept, ct: (ct * (1 - jnp.tanh(kept[0])),))
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, X)
    assert caught.value.report.failures[0].diagnosis == "wrong everywhere"


@pytest.mark.parametrize("of", [jnp.sin, jnp.square, jax.nn.relu, lambda t: jnp.clip(t, -1, 1), lambda t: jnp.where(t > 0, t, 0)])
def test_a_forward_rule_that_is_not_linear_is_named_where_reverse_mode_refuses_it(of):
    op = jax.custom_jvp(lambda x: jnp.sin(x))
    op.defjvp(lambda primals, tangents: (jnp.sin(*primals), jnp.cos(*primals) * of(*tangents)))
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(op, X)
    assert "the forward rule is not linear in its tangents" in " ".join(str(caught.value.report).split())


def test_what_is_wrong_at_the_given_point_too_is_not_laid_on_special_values():
    small = ruled(
        lambda x, w: jnp.sum(1e4 * x) + jnp.sum(1e-2 * w**2), lambda kept, ct: (1e4 * ct * jnp.ones_like(kept[0]), 1.9e-2 * ct * kept[1])
    )
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(small, *[np.float32([-0.28, 0.5164, 0.6173])] * 2)
    assert caught.value.report.failures[0].diagnosis == "1.05263x too small everywhere"
