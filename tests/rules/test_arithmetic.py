"""What the derived suite cannot ask of arithmetic: dtypes that change on the way, and quotients next to a jump."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import jax_vjp, own_vjp

import tape

REALS = ("float16", "bfloat16", "float32", "float64")


@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # JAX warns of the forward conversion, which is the one tested
@pytest.mark.parametrize("source", [*REALS, "complex64", "complex128"])
@pytest.mark.parametrize("target", [*REALS, "complex64", "complex128"])
def test_conversion_returns_to_the_dtype_it_came_from(source, target):
    with jax.enable_x64(True):
        x = jnp.array([0.5, 0.25], source)
        ct = jnp.array([1.5, -2.0], target) * (1 + 1j if target.startswith("complex") else 1)
        args = ((lambda v: (jax.lax.convert_element_type(v, target),)), (x,), (ct,))
        (own,), (expected,) = own_vjp(*args), jax_vjp(*args)
        assert own.dtype == x.dtype
        np.testing.assert_array_equal(own, expected)


def test_remainder_counts_the_quotient_that_was_taken_not_the_rounded_one():
    # In float32 x / y rounds up to 3, but the remainder was taken with 2 (and is almost y).
    y = np.float32(1.9)
    x = np.nextafter(np.float32(3) * y, np.float32(0))
    taken = (float(x) - float(np.fmod(x, y))) / float(y)
    (_, own) = own_vjp(lambda a, b: (jax.lax.rem(a, b),), (jnp.asarray(x), jnp.asarray(y)), (jnp.float32(1),))
    assert -own == round(taken)


def test_infinite_cotangent_of_the_argument_not_chosen_is_no_nan():
    own = own_vjp(lambda a, b: (jax.lax.max(a, b),), (jnp.float32(1), jnp.float32(2)), (jnp.float32(jnp.inf),))
    np.testing.assert_array_equal(own, (0.0, np.inf))


def test_conversion_to_an_integer_carries_no_gradient():
    (own,) = own_vjp(
        lambda x: (x * jax.lax.convert_element_type(jax.lax.convert_element_type(x, "int32"), x.dtype),),
        (jnp.float32(2.5),),
        (jnp.float32(1),),
    )
    assert own == 2.0


@pytest.mark.parametrize("exponent", [2**31, 2**33, -(2**31) - 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_a_power_is_of_any_whole_number(exponent, dtype):
    x = tape.Variable(np.ones(2, dtype))
    y = x**exponent
    gradient = tape.gradients(y, x, np.ones(2), create_graph=True)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(gradient.numpy(), np.full(2, exponent).astype(dtype))
        np.testing.assert_array_equal(
            tape.gradients(gradient, x, np.ones(2)).numpy(), np.full(2, float(exponent) * (exponent - 1)).astype(dtype)
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_equal_running_extremes_share_as_jaxs_do(name, reverse):
    for x in ([1.0, 1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 2.0, 1.0, 3.0, 3.0], [0.0, 0.0, -1.0, -1.0, 0.0, 0.0, -1.0]):
        args = (
            (lambda v: (getattr(jax.lax, name)(v, reverse=reverse),)),
            (np.array(x, "float32"),),
            (np.arange(1.0, 1 + len(x), dtype="float32"),),
        )
        np.testing.assert_array_equal(own_vjp(*args)[0], jax_vjp(*args)[0])


def test_the_size_of_a_complex_zero_has_the_gradient_zero():
    (own,) = own_vjp(lambda z: (jax.lax.abs(z),), (np.array([0j, 3 + 4j], "complex64"),), (np.ones(2, "float32"),))
    np.testing.assert_allclose(own, [0, 0.6 - 0.8j], rtol=1e-6)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
def test_equal_extremes_of_a_reduction_share_as_jaxs_do(name):
    x = np.array([[1, 2, 2, 1], [3, 3, 3, 3], [0, 1, 2, 3]], "float32")
    for axes, ct in (((1,), np.arange(1.0, 4.0, dtype="float32")), ((0,), np.arange(1.0, 5.0, dtype="float32")), ((0, 1), np.float32(6))):
        args = (lambda v, axes=axes: (getattr(jax.lax, name)(v, axes),)), (x,), (ct,)
        np.testing.assert_allclose(own_vjp(*args)[0], jax_vjp(*args)[0], rtol=1e-6)


@pytest.mark.parametrize("combine", [jax.lax.max, jax.lax.min], ids=["max", "min"])
def test_of_equal_extremes_in_a_window_the_first_has_the_cotangent(combine):
    worst = -np.inf if combine is jax.lax.max else np.inf
    for x in (np.ones(6, "float32"), np.array([1, 2, 2, 1, 1, 2], "float32")):
        args = (
            (lambda v: (jax.lax.reduce_window(v, np.float32(worst), combine, (3,), (1,), "SAME"),)),
            (x,),
            (np.arange(1.0, 7.0, dtype="float32"),),
        )
        np.testing.assert_array_equal(own_vjp(*args)[0], jax_vjp(*args)[0])


def test_many_equal_halves_share_what_their_number_is_out_of_range_for():
    (own,) = own_vjp(lambda v: (jax.lax.reduce_max(v, (0,)),), (np.ones(70_000, "float16"),), (np.float16(7000),))
    np.testing.assert_array_equal(own, np.full(70_000, 0.1, "float16"))
