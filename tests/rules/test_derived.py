"""The suite derived from the rule table: both orders of every record are held to differences and to JAX, and wrong rules are noticed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import MismatchError, assert_same, assert_slopes, contains, differences, flat, jax_vjp, own_vjp, project, second_order
from records import (
    DIFFERENTIABLE,
    JAX_IS_WRONG,
    RECORDS,
    accepts,
    draw,
    draw_like,
    each,
    examples_of,
    names,
    planted,
    scaled,
    trusted,
)

from tape.errors import RuleError
from tests.daily import share


def or_refused(thunk):
    """Result of ``thunk``, or None where a rule of the table refuses (an argument without a closed form)."""
    try:
        return thunk()
    except RuleError as error:
        assert "not implemented" in str(error)  # noqa: PT017 - a refusal is allowed, not required
        return None


def derivatives(record, example, drawn):
    """The first order of one example three ways, each cotangent of several results alone, too."""
    args, cts, directions, _ = drawn
    fun = flat(example.fun)
    own = own_vjp(fun, args, cts)
    results = [i for i, c in enumerate(cts) if c is not None]
    singles = [[c if i == j else None for j, c in enumerate(cts)] for i in results] if len(cts) > 1 else []
    return {
        "own": own,
        "expected": trusted(record, example, lambda: jax_vjp(fun, args, cts)),
        "singles": [(own_vjp(fun, args, one), trusted(record, example, lambda one=one: jax_vjp(fun, args, one))) for one in singles],
        "numeric": differences(fun, args, cts, directions),
        "slopes": project(own, directions),
    }


def more_derivatives(record, example, drawn):
    """The same, the first order by a planted wrong rule, and the second order, by JAX or by differences."""
    args, cts, directions, seeds = drawn
    fun = flat(example.fun)
    with planted(record, scaled(record.vjp, 1.001)):
        wrong = own_vjp(fun, args, cts)
    second = or_refused(lambda: second_order(fun, own_vjp, args, cts, seeds))
    expected_second = trusted(record, example, lambda: second_order(fun, jax_vjp, args, cts, seeds))
    numeric_second = None
    if expected_second is None and second is not None:
        numeric_second = differences(lambda *a: own_vjp(fun, a, cts), args, seeds, directions)
    return {
        **derivatives(record, example, drawn),
        "wrong": wrong,
        "slopes_wrong": project(wrong, directions),
        "second": second,
        "expected_second": expected_second,
        "numeric_second": numeric_second,
        "slopes_second": None if second is None else project(second[: len(args)], directions),
    }


def prepared(record, example, dtype):
    """What one example is computed of: arguments, cotangents, directions and seeds."""
    what = names(record, example, dtype)
    fun = flat(example.fun)
    args = draw(record, example, dtype)
    assert contains(jax.make_jaxpr(fun)(*args), record.primitive), f"{what}: the example does not use the primitive"
    cts = draw_like(jax.eval_shape(fun, *args), what, "cotangents")
    return args, cts, draw_like(args, what, "directions"), draw_like(args, what, "seeds")


def check_smooth(got, what):
    """Hold what was computed of one example to differences and to JAX; return whether it noticed the wrong rule."""
    assert_slopes(*got["slopes"], *got["numeric"], what)
    if got["expected"] is not None:
        assert_same(got["own"], got["expected"], what)
    for one, expected in got["singles"]:
        if expected is not None:
            assert_same(one, expected, f"{what}, cotangent of one result only")
    if got.get("expected_second") is not None:
        assert got["second"] is not None, f"{what}: JAX has a second derivative"
        assert_same(got["second"], got["expected_second"], f"{what}, second order", factor=100.0, scale=1e-3)
    elif got.get("second") is not None:
        assert_slopes(*got["slopes_second"], *got["numeric_second"], f"{what}, second order")
    return "wrong" in got and notices_wrong(got, what)


def check_all(record, examples, dtype, more):
    """Hold all examples to the first order, and ``more`` of them to the second, where a wrong rule has to be noticed: in one program."""
    with jax.enable_x64(True):
        drawn = [prepared(record, e, dtype) for e in examples]
        ways = [more_derivatives if e in more else derivatives for e in examples]
        computed = jax.jit(lambda drawn: [way(record, *case) for way, *case in zip(ways, examples, drawn, strict=True)])(drawn)
        changed = [check_smooth(got, names(record, e, dtype)) for e, got in zip(examples, computed, strict=True)]
    assert any(changed) or not more, "no example would notice a wrong rule"


def notices_wrong(got, what):
    """Demand that the comparisons refuse every cotangent that the wrong rule changed; return whether there is one."""
    changed = [i for i, pair in enumerate(zip(got["own"], got["wrong"], strict=True)) if not np.allclose(*pair, rtol=1e-5, atol=0)]
    for i in changed:
        with pytest.raises(MismatchError):
            assert_slopes(*[v[i : i + 1] for v in (*got["slopes_wrong"], *got["numeric"])], what)
        if got["expected"] is not None:
            with pytest.raises(MismatchError):
                assert_same([got["wrong"][i]], [got["expected"][i]], what)
    return bool(changed)


@each(RECORDS)
def test_record_is_complete(record):
    assert record.source, "every record says where its formula comes from"
    if record.domain:
        assert all(low < high for low, high in record.domain)
        assert examples_of(record)
        assert len({e.name for e in record.examples}) == len(record.examples), "examples need names of their own"
    else:
        assert record.vjp(None, None, object(), object()) == (None, None), "a record without a domain lets no gradient flow"


@each(DIFFERENTIABLE)
def test_derivatives_and_power_in_float64(record):
    check_all(record, examples_of(record), "float64", share(examples_of(record)))


COMPLEX = [r for r in DIFFERENTIABLE if r.complex]


@each(COMPLEX)
def test_derivatives_and_power_in_complex128(record):
    with jax.enable_x64(True):
        accepted = [e for e in examples_of(record) if accepts(e.fun, draw(record, e, "complex128"))]
    held = share(accepted)
    check_all(record, held, "complex128", held if record in share(COMPLEX) else [])


def in_single(record, example, drawn):
    """The first order of one example in float32: by the rule, by JAX, under ``vmap``, and what that is to agree with."""
    args, others, cts = drawn
    fun = flat(example.fun)
    batches = [jnp.stack(pair) for pair in zip(args, others, strict=True)]
    return (
        own_vjp(fun, args, cts),
        trusted(record, example, lambda: jax_vjp(fun, args, cts)),
        jax.vmap(lambda *batched: own_vjp(fun, batched, cts))(*batches),
        own_vjp(fun, others, cts),
    )


@each(share(DIFFERENTIABLE, 2))
def test_float32_plain_jit_and_vmap(record):
    """Hold the examples to JAX, in one program, and the first of them without ``jit`` to that."""
    examples = share(examples_of(record))
    drawn = []
    for example in examples:
        args = draw(record, example, "float32")
        cts = draw_like(jax.eval_shape(flat(example.fun), *args), names(record, example, "float32"), "cotangents")
        others = [np.asarray(0.75 * x + 0.25 * np.flip(x), "float32") for x in args]  # inside the same intervals
        drawn.append((args, others, cts))
    computed = jax.jit(lambda drawn: [in_single(record, *case) for case in zip(examples, drawn, strict=True)])(drawn)
    for example, (jitted, expected, mapped, of_others) in zip(examples, computed, strict=True):
        what = names(record, example, "float32")
        if expected is not None:
            assert_same(jitted, expected, what)
        assert_same(mapped, tuple(map(np.stack, zip(jitted, of_others, strict=True))), f"{what}, under vmap")
    args, _, cts = drawn[0]
    plain = own_vjp(flat(examples[0].fun), jax.tree.map(jnp.asarray, args), jax.tree.map(jnp.asarray, cts))
    assert_same(plain, computed[0][0], f"{names(record, examples[0], 'float32')}, plain against jit")


def test_jax_is_wrong_where_it_is_not_asked():
    for record in [r for r in DIFFERENTIABLE if any(str(r.primitive) == name for name, _ in JAX_IS_WRONG)]:
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


@each(DIFFERENTIABLE)
def test_what_jax_is_told_to_promote_is_not_about_rules(record):
    """A rule may mix dtypes and ranks where the user may not: strict promotion is the user's own."""
    for dtype in ("float32", "complex64") if record.complex else ("float32",):
        for example in examples_of(record):
            fun = flat(example.fun)
            args = draw(record, example, dtype)
            with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
                try:
                    results = jax.eval_shape(fun, *args)
                except (TypeError, ValueError):  # the example itself mixes them, or takes no complex numbers
                    continue
                cts = draw_like(results, names(record, example, dtype), "cotangents")
                jax.eval_shape(functools.partial(own_vjp, fun), args, cts)
