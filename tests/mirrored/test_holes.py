"""What the coverage page (tests/coverage) found missing or wrong in the mirrored namespaces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.lax
import tape.nn
import tape.numpy as tnp
import tape.ops
from tests.agreement import close, same

INTEGERS, FLOATS = jnp.array([2, 1, 3]), jnp.array([0.5, 2.0, 7.0])
TIES = jnp.array([2, 0, 2, 1])


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setxor1d", "setdiff1d"])
@pytest.mark.parametrize("sets", [(INTEGERS, FLOATS), (FLOATS, INTEGERS), (FLOATS > 1, FLOATS)])
def test_a_set_has_the_dtype_of_both(name, sets):
    """The elements of sets of integers and of numbers were rounded to integers."""
    same(getattr(tnp, name)(*map(tape.Variable, sets)), getattr(jnp, name)(*sets))


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setxor1d", "setdiff1d", "unique"])
@pytest.mark.parametrize("sets", [(2.5, 2.5), (jnp.full(3, 2.0), jnp.full(2, 2.0)), (jnp.full(3, 2.0), FLOATS)])
def test_a_set_of_weak_numbers_is_weak(name, sets):
    given = sets[:1] if name == "unique" else sets
    ours, theirs = getattr(tnp, name)(*map(tape.Variable, given)), getattr(jnp, name)(*given)
    same(ours, theirs)
    assert (ours.weak_type, ours.requires_grad) == (theirs.weak_type, True)


@pytest.mark.parametrize("name", ["histogram", "histogram_bin_edges"])
def test_bins_that_require_grad(name):
    """By keyword as well; edges that are handed back have their gradient."""
    x, bins = tape.Variable(FLOATS), tape.Variable(jnp.array([0.0, 1.0, 9.0]))
    for found in (getattr(tnp, name)(x, bins), getattr(tnp, name)(x, bins=bins)):
        edges = found if name == "histogram_bin_edges" else found[1]
        same(found, getattr(jnp, name)(FLOATS, bins.value))
        close(tape.gradients(edges[1] ** 2, bins), jnp.array([0.0, 2.0, 0.0]))


@pytest.mark.parametrize("p", [0.5, jnp.zeros(4), jnp.zeros(0), jnp.array([0.0, 1.0, -3.0, 2.0])])
def test_roots_of_constants(p):
    same(tnp.roots(tape.Variable(p)), jnp.roots(p))


def test_trimming_a_number():
    same(tnp.trim_zeros(tape.Variable(0.5)), jnp.trim_zeros(jnp.asarray(0.5)))
    for axis in (1, -2, (0, 1)):  # none of these wraps around
        with pytest.raises(tape.errors.TapeIndexError, match="out of bounds"):
            tnp.trim_zeros(tape.Variable([0.0, 1.0, 0.0]), axis=axis)


def test_a_value_whose_derivative_cannot_be_traced():
    """JAX's derivative of ``det`` indexes into nothing."""
    v = tape.Variable(jnp.zeros((0, 0)))
    assert float(tnp.linalg.det(v)) == 1.0
    with pytest.raises(IndexError):
        tape.gradients(tnp.linalg.det(v), v)


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
@pytest.mark.parametrize("options", [{}, {"num_segments": 4}, {"indices_are_sorted": False, "mode": "clip"}])
def test_segments(name, options):
    ours, theirs = getattr(tape.ops, name), getattr(jax.ops, name)
    x = jnp.array([0.5, 2.0, -1.0, 3.0])
    same(ours(tape.Variable(x), TIES, **options), theirs(x, TIES, **options))
    same(ours(tape.Variable(x), tape.constant(TIES), **options), theirs(x, TIES, **options))
    same(ours(segment_ids=np.asarray(TIES), data=tape.Variable(x), **options), theirs(x, TIES, **options))
    v = tape.Variable(x)
    weights = jnp.arange(1.0, 1 + theirs(x, TIES, **options).size)
    found = tape.gradients((ours(v, TIES, **options)[:3] * weights[:3]).sum(), v)
    if name != "segment_prod":  # which JAX does not differentiate
        close(found, jax.grad(lambda x: (theirs(x, TIES, **options)[:3] * weights[:3]).sum())(x))
    else:
        close(found, jnp.array([-3.0, 1.0, 1.5, 2.0]))


def test_segments_need_their_number_in_a_transformation():
    with pytest.raises(tape.errors.TapeError):
        jax.jit(lambda i: tape.ops.segment_sum(tape.Variable(jnp.ones(4)), i).value)(TIES)
    close(jax.jit(lambda i: tape.ops.segment_sum(jnp.ones(4), i, 3).value)(TIES), jnp.array([1.0, 1.0, 2.0]))


def test_attention_in_half_precision():
    """XLA on CPU has no sums in float32 of products of float16, which JAX asks for; without ``jit`` it does without."""
    x = jnp.linspace(-1, 1, 24, dtype=jnp.float16).reshape(1, 4, 2, 3)
    mask = jnp.tril(jnp.ones((4, 4), bool))[None, None]

    def wanted(x, mask):
        return jax.nn.dot_product_attention(x, x, x, mask=mask).sum()

    single = jax.grad(wanted)(x.astype(jnp.float32), mask)
    v = tape.Variable(x)
    out = tape.nn.dot_product_attention(v, v, value=v, mask=mask)
    assert out.dtype == jnp.float16
    g = tape.gradients(out.sum(), v)
    assert g.dtype == jnp.float16
    close(g.astype("float32"), single, 1e-2)


@pytest.mark.parametrize("run", [lambda f, x: f(x), lambda f, x: jax.jit(f)(x)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_the_extreme_of_nan_has_the_gradient_nan(run, name):
    """Interpreted it was NaN, compiled zero: XLA makes a choice of a product with zeros and ones."""
    x = jnp.array([[jnp.nan, -1.0, 2.0], [0.0, 3.0, 3.0]])

    def gradient(x):
        v = tape.Variable(x)
        return tape.gradients(getattr(tnp, name)(v, axis=1).sum(), v).value

    expected = [[np.nan] * 3, [0, 0.5, 0.5] if name == "max" else [1, 0, 0]]
    np.testing.assert_array_equal(run(gradient, x), expected)


@pytest.mark.parametrize(("name", "times"), [("cummax", [3, 0, 0, 2, 0]), ("cummin", [1, 1, 3, 0, 0])])
def test_running_extremes_of_complex_numbers(name, times):
    """Each has the gradient of as many results as it is; since 0.12 JAX has no derivative of them."""
    x = jnp.array([1 + 1j, 0.5 + 2j, 3j, 1.5 + 1j, 1 + 1j])
    v = tape.Variable(x)
    found = tape.gradients(abs(getattr(tape.lax, name)(v)).sum(), v)
    close(found, jnp.array(times) * jnp.conj(x) / jnp.abs(x))
