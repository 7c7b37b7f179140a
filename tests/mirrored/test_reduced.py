"""Norms, spreads and softmax: derivatives hold where squares overflow or underflow, about a large mean, and where a weight is nearly 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tn
from tape import nn
from tests.daily import pairs

BASE = np.array([0.3, -1.2, 2.5, 0.7])


def slope(fun):
    return tape.grad(lambda x: tn.sum(fun(x)))


def both(fun, weights):
    first = slope(fun)
    return lambda x: (first(x), slope(lambda x: first(x) * weights.astype(x.dtype))(x))


def true(fun, x, weights):
    with jax.enable_x64(True):
        first = jax.grad(lambda x: jnp.sum(fun(x)))
        second = jax.grad(lambda x: jnp.sum(first(x) * weights))
        return [np.asarray(f) for f in jax.jit(lambda x: (first(x), second(x)))(np.asarray(x, "float64"))]


@pytest.mark.parametrize("size", [1e-37, 1e-20, 1e19, 1.2e38])
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", ["norm", "vector_norm", "std"])
def test_squares_out_of_range_lose_no_gradient(name, jitted, size):
    ours, theirs = (getattr(n, name) if name == "std" else getattr(n.linalg, name) for n in (tn, jnp))
    x = (BASE * size).astype("float32")
    weights = np.array([0.4, -0.8, 0.5, 1.3])
    fun = slope(ours)
    once = (jax.jit(fun) if jitted else fun)(x)
    np.testing.assert_allclose(once, true(theirs, x, weights)[0], rtol=2e-6)


@pytest.mark.parametrize("name", ["norm", "vector_norm", "std"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_second_derivatives_of_norms_are_scaled(name, size):
    ours, theirs = (getattr(n, name) if name == "std" else getattr(n.linalg, name) for n in (tn, jnp))
    x = (BASE * size).astype("float32")
    weights = np.array([0.4, -0.8, 0.5, 1.3])
    np.testing.assert_allclose(jax.jit(both(ours, weights))(x)[1], true(theirs, x, weights)[1], rtol=2e-5)


@pytest.mark.parametrize("x", [[2, 2, -1, -2], [0, 0, 3, 0], [-5, 5, 5, 5]], ids=str)
def test_second_derivatives_of_norms_with_several_largest_elements(x):
    weights = np.array([0.4, -0.8, 0.5, 1.3])
    x = np.asarray(x, "float32")
    found = both(tn.linalg.norm, weights)(x)
    _, along = tape.jvp(slope(tn.linalg.norm), (x,), (weights.astype("float32"),))
    np.testing.assert_allclose(along, found[1], rtol=1e-6, atol=1e-7)
    for a, b in zip(found, true(jnp.linalg.norm, x, weights), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("axis", [None, -1, (0, 1)])
@pytest.mark.parametrize(("name", "keepdims"), pairs(["norm", "std", "var"], [False, True], 2))
def test_axes_are_those_of_the_function(name, keepdims, axis):
    ours, theirs = (n.linalg.norm if name == "norm" else getattr(n, name) for n in (tn, jnp))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    weights = np.cos(np.arange(12.0)).reshape(3, 4)
    options = {"axis": axis, "keepdims": keepdims} | ({} if name == "norm" else {"ddof": 1})
    found = jax.jit(both(lambda x: tn.sin(ours(x, **options)), weights))(x)
    for a, b in zip(found, true(lambda x: jnp.sin(theirs(x, **options)), x, weights), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("fun", [tn.var, tn.std])
def test_spreads_about_a_large_mean(fun):
    x = (1e6 + np.random.default_rng(1).standard_normal(40)).astype("float32")
    expected = true(jnp.var if fun is tn.var else jnp.std, x, np.ones(40))[0]
    np.testing.assert_allclose(slope(fun)(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("x", [[1, 1, 2, 2], [1, 2, 2], [0, 5, 5, 5], [3, 1, 2], [0, 0, 0, 7, 7, 7, 2], [1e6, 1e6 + 2, 1e6 - 900]], ids=str)
def test_spreads_to_third_order_with_ties_at_the_ends(x):
    weights = np.cos(np.arange(len(x)))
    twice = both(tn.std, weights)
    found = jax.jit(lambda x: (*twice(x), slope(lambda x: twice(x)[1] * weights.astype(x.dtype))(x)))(np.asarray(x, "float32"))
    with jax.enable_x64(True):
        second = jax.grad(lambda x: jnp.sum(jax.grad(jnp.std)(x) * weights))
        third = jax.jit(jax.grad(lambda x: jnp.sum(second(x) * weights)))(np.asarray(x, "float64"))
    for a, b in zip(found, [*true(jnp.std, x, weights), third], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("side", [1, -1])
def test_one_number_far_from_the_others_has_a_second_derivative(side):
    far = np.array([side * 1e6, 3.0, 5.0, 4.5], "float32")
    found = jax.jit(slope(lambda x: slope(tn.std)(x)[0]))(far)
    with jax.enable_x64(True):
        expected = jax.grad(lambda x: jax.grad(jnp.std)(x)[0])(far.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    large = np.array([1e22, 3e25, -3e25], "float32")
    mean = np.mean(large.astype("float64"))
    np.testing.assert_allclose(jax.jit(slope(tn.std))(large), (large - mean) / 3 / np.std(large.astype("float64")), rtol=1e-6)


LOGITS = [np.array(v, "float32") for v in ([20, 0, -1, -2], [12, 0, -1, -2], [40, 0, 1, 2], [1, 1, 0, 0], [0, 0, 0, 0], [-np.inf, 3, 1, 0])]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("x", LOGITS, ids=str)
def test_the_gradient_of_what_is_nearly_certain(name, x):
    own = jax.jit(slope(lambda x: getattr(nn, name)(x)[0]))(x)
    z = np.exp(x.astype("longdouble") - x.max())
    p = z / z.sum()
    rest = z[1:].sum() / z.sum()  # 1 - p of the first
    expected = np.concatenate([[rest], -p[1:]])
    if name == "softmax":
        expected = expected * p[0]
    np.testing.assert_allclose(own, expected.astype("float64"), rtol=2e-6, atol=1e-38)


def test_a_classifier_that_is_sure_still_learns():
    logits = tape.Variable(np.array([[20.0, 0.0, -1.0], [0.0, 25.0, 1.0]], "float32"))
    loss = -tn.mean(nn.log_softmax(logits)[np.arange(2), np.array([0, 1])])
    loss.backward()
    rows = np.asarray(logits.grad.value, "float64")
    assert np.all(rows[[0, 1], [0, 1]] < 0)
    np.testing.assert_allclose(rows.sum(1), 0, atol=1e-16)


def test_options_beyond_the_plain_ones_are_jaxs():
    x = BASE.astype("float32")
    keep = np.array([True, True, False, True])
    for ours, theirs in (
        (lambda x: tn.std(x, where=keep), lambda x: jnp.std(x, where=keep)),
        (lambda x: tn.linalg.norm(x, 3), lambda x: jnp.linalg.norm(x, 3)),
        (lambda x: nn.softmax(x, where=keep), lambda x: jax.nn.softmax(x, where=keep)),
    ):
        np.testing.assert_allclose(
            slope(lambda x, f=ours: tn.sin(f(x)))(x), jax.grad(lambda x, f=theirs: jnp.sum(jnp.sin(f(x))))(x), rtol=1e-5
        )


CUBE = np.random.default_rng(3).standard_normal((2, 3, 4))
OPTIONS = {
    "correction": lambda n, x: n.numpy.std(x, 2, correction=1),
    "a mean that is given": lambda n, x: n.numpy.var(x, 2, mean=n.numpy.full((2, 3, 1), 0.3)),
    "dtype": lambda n, x: n.numpy.std(x, -1, dtype="float32"),
    "weights": lambda n, x: n.nn.logsumexp(x, 1, b=n.numpy.array([[0.5], [2.0], [3.0]])),
    "signs": lambda n, x: n.nn.logsumexp(x, 1, return_sign=True)[0],
    "where": lambda n, x: n.nn.log_softmax(x, where=np.array([True, True, False, True])),
    "all axes of a cube": lambda n, x: n.numpy.linalg.norm(x),
    "Frobenius": lambda n, x: n.numpy.linalg.norm(x, "fro", (0, -1)),
    "the largest singular value": lambda n, x: n.numpy.linalg.norm(x[0], 2),
    "the largest singular values": lambda n, x: n.numpy.linalg.norm(x, 2, (-2, -1)),
    "nuclear": lambda n, x: n.numpy.linalg.norm(x[1], "nuc"),
    "another order": lambda n, x: n.numpy.linalg.vector_norm(x, axis=1, ord=3),
    "order zero": lambda n, x: n.numpy.linalg.vector_norm(x, ord=0),
    "a number": lambda n, x: n.numpy.linalg.norm(x[0, 0, 0]),
    "the spread of a number": lambda n, x: n.numpy.var(x[0, 0, 0]),
    "the share of a number": lambda n, x: n.nn.logsumexp(x[0, 0, 0]),
    "axes from the end": lambda n, x: n.nn.softmax(x, (-1, 0)),
    "complex numbers": lambda n, x: n.numpy.linalg.norm(x * (1 + 2j)) + n.numpy.var(x * (2 - 1j)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_jaxs_slope(name):
    with jax.enable_x64(True):
        ours, theirs = (n.grad(lambda x, n=n: n.numpy.sum(n.numpy.sin(OPTIONS[name](n, x))))(CUBE) for n in (tape, jax))
        rtol = 1e-6 if name == "dtype" else 1e-12  # that one asks for float32
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("options", [{"ddof": 2}, {"ddof": 3}, {"correction": 2}], ids=str)
def test_a_spread_of_no_degree_of_freedom_has_jaxs_slope(options):
    ours, theirs = (n.grad(lambda x, n=n: n.numpy.var(x, 0, **options).sum())(CUBE.astype("float32")) for n in (tape, jax))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("axis", [(0, 0), 3, -4, (0, 3)])
@pytest.mark.parametrize("fun", [lambda n, x, axis: n.numpy.std(x, axis), lambda n, x, axis: n.nn.logsumexp(x, axis)])
def test_axes_that_are_none_are_refused_as_jax_does(fun, axis):
    for space in (tape, jax):
        with pytest.raises((ValueError, IndexError), match=r"axis|axes|index out of range"):
            space.numpy.sum(fun(space, jnp.asarray(CUBE), axis))


@pytest.mark.parametrize("fun", [lambda n, x: n.numpy.linalg.norm(x), lambda n, x: n.numpy.var(x, 1), lambda n, x: n.nn.logsumexp(x, 1)])
def test_arrays_without_elements_have_gradients_without_elements(fun):
    for shape in ((0, 3), (3, 0)):
        assert tape.grad(lambda x: fun(tape, x).sum())(np.zeros(shape, "float32")).shape == shape


def test_halves_keep_their_dtype():
    for dtype in ("float16", "bfloat16"):
        x = jnp.asarray(BASE * 200, dtype)
        grad = slope(tn.linalg.norm)(x)
        assert grad.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(grad, "float64"), BASE / np.linalg.norm(BASE), rtol=2 * float(jnp.finfo(dtype).eps))


def test_third_derivatives_of_a_softmax_are_jaxs():
    with jax.enable_x64(True):
        third = []
        for space in (tape, jax):
            first = space.grad(lambda x, space=space: space.nn.softmax(x)[0])
            third.append(space.jacfwd(space.jacrev(first))(BASE))
        np.testing.assert_allclose(*third, atol=1e-14)
