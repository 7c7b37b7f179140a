"""What the derived suite cannot ask of contraction: operands and results of different dtypes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import jax_vjp, own_vjp

from tests.platforms import runs

MATRICES = (((1,), (0,)), ((), ()))


@pytest.mark.parametrize(
    ("left", "right", "options"),
    [
        ("bfloat16", "bfloat16", {"preferred_element_type": "float32"}),
        ("float16", "float16", {"preferred_element_type": "float32", "precision": ("highest", "default")}),
        ("bfloat16", "float32", {}),
        ("float32", "complex64", {}),
        ("bfloat16", "bfloat16", {"precision": lax.DotAlgorithmPreset.BF16_BF16_F32}),
    ],
)
def test_cotangents_have_the_dtypes_of_the_operands(left, right, options):
    x, y = jnp.arange(6.0).reshape(2, 3).astype(left), jnp.arange(6.0).reshape(3, 2).astype(right)

    def fun(a, b):
        return (lax.dot_general(a, b, MATRICES, **options),)

    (out,) = fun(x, y)
    ct = jnp.ones_like(out) * (1 + 1j if jnp.iscomplexobj(out) else 1)
    own, expected = own_vjp(fun, (x, y), (ct,)), jax_vjp(fun, (x, y), (ct,))
    for mine, other, operand in zip(own, expected, (x, y), strict=True):
        assert mine.dtype == operand.dtype
        np.testing.assert_array_equal(mine, other)  # small integers: exact in every dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_results_of_another_dtype_under_strict_promotion(dtype):
    """The rules mix the dtypes of operands and results, which strict promotion forbids users."""
    x, w = jnp.arange(10.0).reshape(1, 2, 5).astype(dtype), jnp.arange(12.0).reshape(2, 2, 3).astype(dtype)

    def conv(a, b):
        return (lax.conv_general_dilated(a, b, (1,), "SAME", preferred_element_type="float32"),)

    def dot(a, b):
        return (lax.dot_general(a, b, MATRICES, preferred_element_type="complex64"),)

    for fun, args in ((conv, (x, w)), (dot, (x[0], w.reshape(2, 6)[:, :5].T))):
        if not is_taken(fun, *args):
            continue
        with jax.numpy_dtype_promotion("strict"):
            (out,) = fun(*args)
            own = own_vjp(fun, args, (jnp.ones_like(out),))
        expected = own_vjp(fun, args, (jnp.ones_like(out),))
        for mine, other, operand in zip(own, expected, args, strict=True):
            assert mine.dtype == operand.dtype
            np.testing.assert_array_equal(mine, other)


DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("left", DTYPES)
def test_operands_and_results_of_any_dtypes_under_strict_promotion(left):
    """Of products and powers, which take operands of two dtypes; whatever JAX takes, the tape does."""

    def product(a, b, result):
        return lax.dot_general(a, b, MATRICES, preferred_element_type=result)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for right in DTYPES:
            x, y = ((jnp.arange(4.0).reshape(2, 2) + 1).astype(dtype) for dtype in (left, right))
            results = DTYPES[4:] if jnp.iscomplexobj(x) or jnp.iscomplexobj(y) else DTYPES[2:]
            ways = [functools.partial(product, result=result) for result in (None, *results)]
            taken = [fun for fun in (*ways, lax.pow, lax.mul) if is_taken(fun, x, y)]
            assert taken
            for fun in taken:
                out = fun(x, y)
                own, expected = (vjp(lambda a, b, fun=fun: (fun(a, b),), (x, y), (jnp.ones_like(out),)) for vjp in (own_vjp, jax_vjp))
                for mine, other in zip(own, expected, strict=True):
                    assert mine.dtype == other.dtype
                    # JAX rounds its halves once more: bfloat16 has 8 bits, and sums of two products may differ by five halves of a unit.
                    np.testing.assert_allclose(mine, other, rtol=2e-2 if mine.dtype.itemsize < 4 else 1e-5)


def is_taken(fun, *args):
    """Whether JAX takes such operands, and has code for them (on GPUs it has no complex product of real matrices)."""
    try:
        jax.eval_shape(fun, *args)
    except (TypeError, ValueError):
        return False
    return runs(fun, *args)


@pytest.mark.parametrize("precision", [None, lax.Precision.HIGHEST, lax.Precision.HIGH])
@pytest.mark.parametrize(
    ("fun", "shapes"),
    [
        (lambda x, y, **options: lax.dot_general(x, y, MATRICES, **options), ((2, 3), (3, 4))),
        (lambda x, k, **options: lax.conv_general_dilated(x, k, (1,), "SAME", **options), ((1, 2, 5), (3, 2, 2))),
    ],
    ids=["dot_general", "conv"],
)
def test_derivatives_are_computed_with_the_precision_of_the_value(fun, shapes, precision):
    """CPUs compute with the same one in any case."""
    x, y = map(jnp.ones, shapes)
    value = jax.make_jaxpr(functools.partial(fun, precision=precision))(x, y)
    (product,) = value.jaxpr.eqns
    swept = jax.make_jaxpr(lambda x, y, ct: own_vjp(lambda *a: (fun(*a, precision=precision),), (x, y), (ct,)))(x, y, fun(x, y))
    found = [e.params["precision"] for e in swept.jaxpr.eqns if e.primitive is product.primitive]
    assert found == [product.params["precision"]] * 3  # the value, and the cotangents of both operands


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((1, 2, 0), (3, 2, 2)), {"padding": ((2, 2),)}),
        (((0, 2, 5), (3, 2, 2)), {"padding": ((2, 2),)}),
        (((1, 2, 0), (3, 2, 2)), {"padding": ((2, 2),), "lhs_dilation": (3,)}),
        (((1, 2, 1), (3, 2, 3)), {"padding": "VALID", "window_strides": (3,)}),
    ],
)
def test_convolutions_of_nothing_have_gradients_of_zeros(shapes, options):
    x, k = map(jnp.ones, shapes)

    def conv(x, k):
        return (lax.conv_general_dilated(x, k, **{"window_strides": (1,), **options}),)

    grads = own_vjp(conv, (x, k), [jnp.ones(o.shape) for o in jax.eval_shape(conv, x, k)])
    assert [g.shape for g in grads] == list(shapes)
    assert not any(g.any() for g in grads)


def test_cotangents_that_are_wider_than_the_operands_of_a_convolution_are_rounded_at_the_end():
    x, k = (jnp.cos(jnp.arange(n)).reshape(shape).astype("bfloat16") for n, shape in ((80, (1, 2, 40)), (12, (2, 2, 3))))
    ct = jnp.sin(jnp.arange(80.0)).reshape(1, 2, 40)

    def conv(x, k):
        return (lax.conv_general_dilated(x, k, (1,), "SAME", preferred_element_type="float32"),)

    own = own_vjp(conv, (x, k), (ct,))
    exact = own_vjp(conv, (x.astype("float32"), k.astype("float32")), (ct,))
    for mine, other in zip(own, exact, strict=True):
        np.testing.assert_array_equal(mine, other.astype("bfloat16"))
