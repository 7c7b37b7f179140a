"""The second half of the derived suite: dtypes, half precision, size zero, kinks, and scalars beside arrays."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from oracles import assert_same, flat, jax_vjp, own_vjp
from records import COMPLEXES, DIFFERENTIABLE, REALS, accepts, draw, draw_like, each, examples_of, names, trusted

from tests.daily import share


@each([r for r in DIFFERENTIABLE if r.elementwise])
def test_values_in_half_precision(record):
    example = examples_of(record)[0]
    fun = flat(example.fun)
    halves = {}
    for dtype in ("float16", "bfloat16"):
        args = draw(record, example, dtype)
        if accepts(fun, args):
            halves[dtype] = args, draw_like(jax.eval_shape(fun, *args), "cotangents")

    def single(tree):
        return jax.tree.map(lambda x: x if jnp.iscomplexobj(x) else x.astype("float32"), tree)

    @jax.jit
    def everything(halves):
        own = {dtype: own_vjp(fun, *both) for dtype, both in halves.items()}
        return own, {dtype: tuple(g.astype(dtype) for g in own_vjp(fun, *single(both))) for dtype, both in halves.items()}

    own, exact = everything(halves)
    for dtype in halves:
        assert_same(own[dtype], exact[dtype], names(record, example, dtype))


@each(DIFFERENTIABLE)
def test_dtypes_and_shapes_are_kept(record):
    seen = set()
    with jax.enable_x64(True):
        for example, dtype in itertools.product(share(examples_of(record)), REALS + COMPLEXES * record.complex):
            fun = flat(example.fun)
            args = [jax.ShapeDtypeStruct(shape, dtype) for shape in example.shapes]
            if not accepts(fun, args):
                continue
            seen.add(dtype)
            cts = draw_like(jax.eval_shape(fun, *args), "cotangents")
            grads = jax.eval_shape(lambda *a, fun=fun, cts=cts: own_vjp(fun, a, cts), *args)
            assert [(g.shape, g.dtype) for g in grads] == [(a.shape, a.dtype) for a in args], names(record, example, dtype)
    assert {"float32", "float64"} <= seen
    assert not record.complex or set(COMPLEXES) <= seen


def check_empty(record, example, size):
    """Hold one example to its shapes, and to JAX where a cotangent has entries, with every dimension of ``size`` made 0."""
    what = f"{names(record, example, 'float32')}, {size} replaced by 0"
    fun = flat(example.fun)
    args = draw(record, example, "float32", [tuple(0 if d == size else d for d in shape) for shape in example.shapes])
    if not accepts(fun, args):
        return
    cts = draw_like(jax.eval_shape(fun, *args), what)
    own_of, jax_of = (functools.partial(vjp, fun) for vjp in (own_vjp, jax_vjp))
    if not accepts(own_of, (args, cts)):  # indices into nothing: an update of one element is read back from none
        assert not accepts(jax_of, (args, cts)), f"{what}: JAX differentiates this"
        return
    grads = jax.eval_shape(own_of, args, cts)
    assert [(g.shape, g.dtype) for g in grads] == [(a.shape, a.dtype) for a in args], what
    if any(a.size for a in args):
        own = jax.jit(own_of)(args, cts)
        expected = trusted(record, example, lambda: runs(jax.jit(jax_of), args, cts))
        if expected is not None:
            assert_same(own, expected, what)


def runs(fun, *args):
    """Result of a compiled function, or None where XLA does not accept it (JAX convolves with empty windows)."""
    try:
        return fun(*args)
    except ValueError:
        return None


@each(DIFFERENTIABLE)
def test_size_zero(record):
    for example in share(examples_of(record)):
        for size in sorted({d for shape in example.shapes for d in shape}):
            check_empty(record, example, size)


BEYOND = {("pow", 0.0, 0.0)}  # where JAX has NaN: test_beyond_jax.py


def kinked_arguments(record, example):
    """Arguments made of kinks: for an elementwise record all combinations at once, else each kink everywhere, and all in turn."""
    count = len(example.shapes)
    if record.elementwise and len(set(example.shapes)) == 1:
        points = [p for p in itertools.product(record.kinks, repeat=count) if (record.primitive.name, *p) not in BEYOND]
        return [[np.array(column, "float32") for column in zip(*points, strict=True)]]
    same = [[np.full(shape, kink, "float32") for shape in example.shapes] for kink in record.kinks]
    return [*same, [np.resize(np.array(record.kinks, "float32"), shape) for shape in example.shapes]]


@each([r for r in DIFFERENTIABLE if r.kinks])
def test_kinks_follow_jax(record):
    example = examples_of(record)[0]
    fun = flat(example.fun)
    for args in kinked_arguments(record, example):
        cts = [None if c is None else np.ones_like(c) for c in draw_like(jax.eval_shape(fun, *args))]
        own, expected = jax.jit(lambda a, c: (own_vjp(fun, a, c), jax_vjp(fun, a, c)))(args, cts)
        assert_same(own, expected, names(record, example, args))


@each([r for r in DIFFERENTIABLE if r.elementwise and len(examples_of(r)[0].shapes) > 1])
def test_scalar_beside_array(record):
    example = examples_of(record)[0]
    fun = flat(example.fun)
    for i in range(len(example.shapes)):
        what = f"{names(record, example, 'float32')}, argument {i} of rank 0"
        args = draw(record, example, "float32", [() if j == i else shape for j, shape in enumerate(example.shapes)])
        if not accepts(fun, args):
            continue
        cts = draw_like(jax.eval_shape(fun, *args), what)
        own, expected = jax.jit(lambda a, c: (own_vjp(fun, a, c), trusted(record, example, lambda: jax_vjp(fun, a, c))))(args, cts)
        if expected is not None:
            assert_same(own, expected, what)
