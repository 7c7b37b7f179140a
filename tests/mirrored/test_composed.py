"""Functions with derivatives of their own have, at the edges of their domains and with all options, those of JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tn

EDGES = {
    ("numpy", "hypot"): [(0.0, 0.0), (0.0, 2.0), (-3.0, 0.0), (-3.0, 4.0)],
    ("scipy.special", "entr"): [(-1.0,), (-0.0,), (0.0,), (0.5,)],
    ("scipy.special", "rel_entr"): [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0), (-1.0, 2.0), (2.0, -1.0), (0.5, 2.0)],
    ("scipy.special", "kl_div"): [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0), (-1.0, 2.0), (2.0, -1.0), (0.5, 2.0)],
    ("scipy.special", "xlogy"): [(0.0, 2.0), (2.0, 0.5)],
    ("scipy.special", "xlog1py"): [(0.0, 2.0), (2.0, 0.5), (3.0, -0.5)],
    ("nn", "squareplus"): [(3.0, 4.0), (-3.0, 4.0), (0.0, 4.0)],
    ("nn", "soft_sign"): [(0.0,), (-0.0,), (-3.0,)],
}
# Those of JAX before 0.12, which has NaN where both sides are zero, and zeros where ``kl_div`` is infinite.
BEFORE = {
    ("numpy", "hypot"): [[0.5, 0.0, -1.0, -0.6], [0.5, 1.0, 0.0, 0.8]],
    ("scipy.special", "kl_div"): [[-1.0, -1.0, -1.0, -1.0, -1.0, -2 * np.log(2.0)], [1.0, 1.0, 1.0, 1.0, 1.0, 0.75]],
}


def named(space, path, name):
    for part in filter(None, path.split(".")):
        space = getattr(space, part)
    return getattr(space, name)


@pytest.mark.parametrize(("path", "name"), EDGES)
def test_slopes_at_the_edges_are_jaxs(path, name):
    columns = [np.array(column) for column in zip(*EDGES[path, name], strict=True)]
    argnums = tuple(range(len(columns)))
    with jax.enable_x64(True):
        ours, theirs = (space.grad(lambda *xs, s=space: named(s, path, name)(*xs).sum(), argnums)(*columns) for space in (tape, jax))
    for found, expected in zip(ours, BEFORE.get((path, name), theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_slopes_of_halves_are_rounded_once(dtype):
    """They are computed in single precision: of squares and exponentials of halves few digits would be left."""
    x = jnp.asarray([-9.0, -3.3, 0.7, 300.0], dtype)
    y = jnp.asarray([2.2, 250.0, -0.3, 299.0], dtype)
    for fun in (tn.hypot, tn.logaddexp, lambda x, y: tape.nn.squareplus(x, abs(y))):
        slope = tape.grad(lambda x, y, f=fun: f(x, y).sum())
        found, exact = slope(x, y), slope(*(v.astype("float32") for v in (x, y)))
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, exact.astype(dtype))


def test_complex_arguments_have_jaxs_slopes():
    x, y = np.array([0.3 + 0.4j, 30.0 - 1j, -30.0 + 2j]), np.array([-1.0 + 0.2j, -30.0 + 0.5j, 30.0 + 0.1j])
    with jax.enable_x64(True):
        ours, theirs = (
            space.grad(lambda x, y, f=f: f(x, y).sum(), (0, 1), holomorphic=True)(x, y)
            for space, f in ((tape, tn.logaddexp), (jax, jnp.logaddexp))
        )
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("fun", [lambda n, z: n.nn.soft_sign(z), lambda n, z: n.nn.squareplus(z, 4.0)])
def test_complex_arguments_of_functions_of_real_ones_are_jaxs(fun):
    z = np.array([0.3 + 0.4j, -2.0 - 1j])
    with jax.enable_x64(True):
        ours, theirs = (space.grad(lambda z, n=space: abs(fun(n, z)).sum())(z) for space in (tape, jax))
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_gelu_that_is_accurate_and_not_approximate_has_the_slope_of_its_value():
    x = np.array([-3.0, -1.0, 0.5, 2.0])
    with jax.enable_x64(True):
        slope = tape.grad(lambda x: tape.nn.gelu(x, approximate=False, accurate=True).sum())(x)
        np.testing.assert_allclose(slope, jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum())(x), rtol=1e-12)


def test_the_entropy_has_jaxs_curvature_left_of_zero():
    ours, theirs = (space.grad(space.grad(space.scipy.special.entr))(-2.0) for space in (tape, jax))
    assert ours == theirs


def test_options_of_universal_functions_are_not_passed_over():
    for space in (tn, jnp):
        with pytest.raises(Exception, match="where"):
            space.logaddexp(np.ones(2), np.ones(2), where=np.array([True, False]))
