"""The suite derived from the rule table: every record that is registered is held to the same oracles."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import (
    MismatchError,
    assert_same,
    assert_slopes,
    contains,
    differences,
    draw,
    draw_like,
    examples_of,
    flat,
    jax_vjp,
    own_vjp,
    project,
)

from tape.errors import RuleError
from tape.rules import defvjp, registered, registry

RECORDS = registered()
DIFFERENTIABLE = [r for r in RECORDS if r.domain]
PASSING_NOTHING = [r for r in RECORDS if not r.domain]
REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEXES = ("complex64", "complex128")

# Examples whose derivative JAX gets wrong, by primitive and name: differences are the oracle there, in both orders.
JAX_IS_WRONG = {
    ("scatter-min", "clipped"): "an update that index clipping moved onto another place gets an infinite cotangent",
    ("scatter-max", "clipped"): "the same, seen in the second order",
}


def each(records):
    return pytest.mark.parametrize("record", records, ids=[str(r.primitive) for r in records])


@contextlib.contextmanager
def planted(record, rule):
    """Put ``rule`` in the place of a record's own, and the record back afterwards."""
    defvjp(record.primitive, rule)
    registry._RULES[record.primitive] = dataclasses.replace(record, vjp=rule)  # a user's rule is never selective
    try:
        yield
    finally:
        defvjp(record.primitive, record.vjp)
        registry._RULES[record.primitive] = record


def scaled(rule, factor):
    """``rule`` with every cotangent multiplied by ``factor``."""

    def times(grad):
        if callable(grad):
            return lambda: times(grad())
        return None if grad is None else grad * factor

    def vjp(ct, out, *ins, **params):
        grads = rule(ct, out, *ins, **params)
        return tuple(map(times, grads if isinstance(grads, (tuple, list)) else (grads,)))

    return vjp


def accepts(fun, args):
    """Tell whether ``fun`` is defined for arguments of these shapes and dtypes."""
    try:
        jax.eval_shape(fun, *args)
    except Exception:  # noqa: BLE001 - whatever JAX refuses with
        return False
    return True


def trusted(record, example, thunk):
    """What JAX makes of ``thunk``, or None where it has no derivative (or one that fails: scalar bounds of a clamp) or a wrong one."""
    if (str(record.primitive), example.name) in JAX_IS_WRONG:
        return None
    try:
        return thunk()
    except (NotImplementedError, TypeError):
        return None


def or_refused(thunk):
    """Result of ``thunk``, or None where a rule of the table refuses (an argument without a closed form)."""
    try:
        return thunk()
    except RuleError as error:
        assert "not implemented" in str(error)  # noqa: PT017 - a refusal is allowed, not required
        return None


def names(record, example, dtype):
    return f"{record.primitive} {example.name} {dtype}".replace("  ", " ")


def double(fun, vjp):
    """``vjp`` as a function of its arguments and the cotangents that there are, in one list."""

    def first(count, cts, *values):
        rest = iter(values[count:])
        return tuple(vjp(fun, values[:count], [None if c is None else next(rest) for c in cts]))

    return first


def second_order(fun, vjp, args, cts, seeds):
    """Cotangents of the first order's arguments (and cotangents) for ``seeds``, by the same ``vjp``."""
    first = functools.partial(double(fun, vjp), len(args), cts)
    return vjp(first, (*args, *[c for c in cts if c is not None]), seeds)


def check_smooth(record, example, dtype):
    """Hold one example to differences and to JAX, in both orders; return whether a planted rule changes it (and is caught)."""
    what = names(record, example, dtype)
    fun = flat(example.fun)
    args = draw(record, example, dtype)
    assert contains(jax.make_jaxpr(fun)(*args), record.primitive), f"{what}: the example does not use the primitive"
    cts = draw_like(jax.eval_shape(fun, *args), what, "cotangents")
    directions = draw_like(args, what, "directions")
    seeds = draw_like(args, what, "seeds")

    @jax.jit
    def everything(args, cts, directions, seeds):
        own = own_vjp(fun, args, cts)
        with planted(record, scaled(record.vjp, 1.001)):
            wrong = own_vjp(fun, args, cts)
        second = or_refused(lambda: second_order(fun, own_vjp, args, cts, seeds))
        expected = trusted(record, example, lambda: jax_vjp(fun, args, cts))
        expected_second = trusted(record, example, lambda: second_order(fun, jax_vjp, args, cts, seeds))
        numeric_second = None
        if expected_second is None and second is not None:
            numeric_second = differences(lambda *a: own_vjp(fun, a, cts), args, seeds, directions)
        single = [[c if i == j else None for j, c in enumerate(cts)] for i in range(len(cts)) if cts[i] is not None and len(cts) > 1]
        return {
            "single": [(own_vjp(fun, args, one), trusted(record, example, lambda one=one: jax_vjp(fun, args, one))) for one in single],
            "own": own,
            "wrong": wrong,
            "second": second,
            "expected": expected,
            "expected_second": expected_second,
            "numeric": differences(fun, args, cts, directions),
            "numeric_second": numeric_second,
            "slopes": project(own, directions),
            "slopes_wrong": project(wrong, directions),
            "slopes_second": None if second is None else project(second[: len(args)], directions),
        }

    got = everything(args, cts, directions, seeds)
    assert_slopes(*got["slopes"], *got["numeric"], what)
    if got["expected"] is not None:
        assert_same(got["own"], got["expected"], what)
    for one, expected in got["single"]:
        if expected is not None:
            assert_same(one, expected, f"{what}, cotangent of one result only")
    if got["expected_second"] is not None:
        assert got["second"] is not None, f"{what}: JAX has a second derivative"
        assert_same(got["second"], got["expected_second"], f"{what}, second order", factor=100.0, scale=1e-3)
    elif got["second"] is not None:
        assert_slopes(*got["slopes_second"], *got["numeric_second"], f"{what}, second order")

    changed = False
    for i, (own, wrong) in enumerate(zip(got["own"], got["wrong"], strict=True)):
        if np.allclose(own, wrong, rtol=1e-5, atol=0):
            continue
        changed = True
        with pytest.raises(MismatchError):
            assert_slopes(*[v[i : i + 1] for v in (*got["slopes_wrong"], *got["numeric"])], what)
        if got["expected"] is not None:
            with pytest.raises(MismatchError):
                assert_same([wrong], [got["expected"][i]], what)
    return changed


@each([r for r in DIFFERENTIABLE if any(str(r.primitive) == name for name, _ in JAX_IS_WRONG)])
def test_jax_is_wrong_where_it_is_not_asked(record):
    for example in examples_of(record):
        if (str(record.primitive), example.name) in JAX_IS_WRONG:
            with jax.enable_x64(True):
                assert_jax_differs(record, example)


def assert_jax_differs(record, example):
    """Show that an entry of JAX_IS_WRONG is still needed."""
    fun = flat(example.fun)
    args = draw(record, example, "float64")
    what = names(record, example, "float64")
    cts = draw_like(jax.eval_shape(fun, *args), what, "cotangents")
    seeds = draw_like(args, what, "seeds")

    def both(vjp):
        return jax.jit(lambda a, c: (*vjp(fun, a, c), *second_order(fun, vjp, a, c, seeds)))(args, cts)

    with pytest.raises(MismatchError):
        assert_same(both(jax_vjp), both(own_vjp), what)


@each(RECORDS)
def test_record_is_complete(record):
    assert record.source, "every record says where its formula comes from"
    if record.domain:
        assert all(low < high for low, high in record.domain)
        assert examples_of(record)
        assert len({e.name for e in record.examples}) == len(record.examples), "examples need names of their own"
    else:
        assert record.vjp(None, None, object(), object()) == (None, None), "a record without a domain lets no gradient flow"


@each(PASSING_NOTHING)
def test_nothing_flows_where_jax_lets_nothing_flow(record):
    fun = getattr(jax.lax, record.primitive.name, None)
    args = next((a for n in (1, 2) if fun and accepts(fun, a := [np.linspace(0.1, 1.2, 3, dtype="float32")] * n)), None)
    if args is None or not jnp.issubdtype(getattr(jax.eval_shape(fun, *args), "dtype", bool), jnp.inexact):
        return
    outs, vjp = jax.vjp(fun, *args)
    assert all(not np.any(grad) for grad in vjp(jnp.ones_like(outs)))


@each(DIFFERENTIABLE)
def test_derivatives_and_power_in_float64(record):
    with jax.enable_x64(True):
        changed = [check_smooth(record, example, "float64") for example in examples_of(record)]
    assert any(changed), "no example would notice a wrong rule"


@each([r for r in DIFFERENTIABLE if r.complex])
def test_derivatives_and_power_in_complex128(record):
    with jax.enable_x64(True):
        chosen = [e for e in examples_of(record) if accepts(e.fun, draw(record, e, "complex128"))]
        changed = [check_smooth(record, example, "complex128") for example in chosen]
    assert any(changed), "no example would notice a wrong rule"


def check_single(record, example):
    """Hold one example to JAX in float32; return what is needed to run it once more without ``jit``."""
    what = names(record, example, "float32")
    fun = flat(example.fun)
    args = draw(record, example, "float32")
    cts = draw_like(jax.eval_shape(fun, *args), what, "cotangents")
    others = [np.asarray(0.75 * x + 0.25 * np.flip(x), "float32") for x in args]  # inside the same intervals

    @jax.jit
    def everything(args, others, cts):
        batches = [jnp.stack(pair) for pair in zip(args, others, strict=True)]
        return (
            own_vjp(fun, args, cts),
            trusted(record, example, lambda: jax_vjp(fun, args, cts)),
            jax.vmap(lambda *batched: own_vjp(fun, batched, cts))(*batches),
            tuple(map(jnp.stack, zip(own_vjp(fun, args, cts), own_vjp(fun, others, cts), strict=True))),
        )

    jitted, expected, mapped, stacked = everything(args, others, cts)
    if expected is not None:
        assert_same(jitted, expected, what)
    assert_same(mapped, stacked, f"{what}, under vmap")
    return fun, args, cts, jitted, what


@each(DIFFERENTIABLE)
def test_float32_plain_jit_and_vmap(record):
    (fun, args, cts, jitted, what), *_ = [check_single(record, example) for example in examples_of(record)]
    plain = own_vjp(fun, jax.tree.map(jnp.asarray, args), jax.tree.map(jnp.asarray, cts))
    assert_same(plain, jitted, f"{what}, plain against jit")


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
        for example, dtype in itertools.product(examples_of(record), REALS + COMPLEXES * record.complex):
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
    grads = jax.eval_shape(lambda a, c: own_vjp(fun, a, c), args, cts)
    assert [(g.shape, g.dtype) for g in grads] == [(a.shape, a.dtype) for a in args], what
    if any(a.size for a in args):
        own, expected = jax.jit(lambda a, c: (own_vjp(fun, a, c), trusted(record, example, lambda: jax_vjp(fun, a, c))))(args, cts)
        if expected is not None:
            assert_same(own, expected, what)


@each(DIFFERENTIABLE)
def test_size_zero(record):
    for example in examples_of(record):
        for size in sorted({d for shape in example.shapes for d in shape}):
            check_empty(record, example, size)


def kinked_arguments(record, example):
    """Arguments made of kinks: for an elementwise record all combinations at once, else each kink everywhere, and all in turn."""
    count = len(example.shapes)
    if record.elementwise and len(set(example.shapes)) == 1:
        return [[np.array(column, "float32") for column in zip(*itertools.product(record.kinks, repeat=count), strict=True)]]
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


@each([r for r in DIFFERENTIABLE if r.elementwise and len(r.domain) > 1])
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
