"""Records without a domain: nothing flows through their primitives, and what flows beside them arrives as it does in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import MismatchError, assert_same, flat, jax_vjp, own_vjp
from records import PASSING_NOTHING, each, planted

from tape import jaxapi
from tape.graph.kinds import differentiable

POINT = np.array([0.25, -1.75, 3.5, -0.5], np.float32)  # no kink, and no place where a function of the table jumps
KEY = jax.random.key(0)


def bits(x):
    """Integers that depend on ``x``."""
    return lax.bitcast_convert_type(x, jnp.int32)


def bind(name, *args, **params):
    return jaxapi.primitive(name).bind(*args, **params)


def key_of(x):
    """A key that depends on ``x``."""
    return jax.random.wrap_key_data(jnp.abs(bits(x[:2])).astype("uint32"), impl="threefry2x32")


def generated(x):
    return lax.rng_bit_generator(jnp.abs(bits(x)).astype("uint32"), (4,))[1]


def compared(fun):
    return lambda x: fun(x, x[::-1] * 1.5)


def on_bits(fun):
    return lambda x: fun(bits(x))


# For each primitive a function of POINT that uses it; several where the derivative might depend on the dtype.
USES = {
    **{name: [compared(getattr(lax, name))] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: [compared(lambda x, y, name=name: bind(name, x, y))] for name in ("eq_to", "lt_to", "le_to")},
    "is_finite": [lax.is_finite],
    "floor": [lax.floor],
    "ceil": [lax.ceil],
    "round": [lax.round, lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)],
    "sign": [lax.sign, lambda x: jnp.real(lax.sign(lax.complex(x, 2 * x)))],
    "and": [on_bits(lambda i: i & 12345), lambda x: (x > 0) & (x < 3)],
    "or": [on_bits(lambda i: i | 12345), lambda x: (x > 0) | (x < -1)],
    "xor": [on_bits(lambda i: i ^ 12345), lambda x: (x > 0) ^ (x < 3)],
    "not": [on_bits(lambda i: ~i), lambda x: ~(x > 0)],
    "reduce_and": [lambda x: lax.reduce_and(x > -5, (0,))],
    "reduce_or": [lambda x: lax.reduce_or(x > 0, (0,))],
    "reduce_xor": [lambda x: lax.reduce_xor(bits(x), (0,))],
    "shift_left": [on_bits(lambda i: lax.shift_left(i, 3))],
    "shift_right_arithmetic": [on_bits(lambda i: lax.shift_right_arithmetic(i, 3))],
    "shift_right_logical": [on_bits(lambda i: lax.shift_right_logical(i, 3))],
    "clz": [on_bits(lax.clz)],
    "population_count": [on_bits(lax.population_count)],
    "argmax": [lambda x: lax.argmax(x, 0, "int32")],
    "argmin": [lambda x: lax.argmin(x, 0, "int32")],
    "iota": [lambda x: lax.iota("float32", 4)],
    "axis_index": [lambda x: lax.axis_index("rows")],
    "empty2": [lambda x: bind("empty2", dtype=np.dtype("float32"), memory_space=jax.memory.Space.Device)],
    "create_token": [lambda x: lax.create_token(x)],
    "after_all": [lambda x: lax.after_all(lax.create_token(x))],
    "bitcast_convert_type": [bits, lambda x: lax.bitcast_convert_type(x, "float16")[:, 1]],
    "random_bits": [lambda x: jax.random.bits(key_of(x), (4,))],
    "random_seed": [lambda x: jax.random.bits(jax.random.key(bits(x)[0]), (4,))],
    "random_split": [lambda x: jax.random.bits(jax.random.split(key_of(x))[1], (4,))],
    "random_fold_in": [lambda x: jax.random.bits(jax.random.fold_in(KEY, bits(x)[0]), (4,))],
    "random_wrap": [lambda x: jax.random.bits(key_of(x), (4,))],
    "random_unwrap": [lambda x: jax.random.key_data(key_of(x))[jnp.array([0, 1, 0, 1])]],
    "random_clone": [lambda x: jax.random.bits(jax.random.clone(key_of(x)), (4,))],
    "threefry2x32": [lambda x: bind("threefry2x32", *jnp.abs(bits(x)).astype("uint32").reshape(4, 1))[0]],
    "rng_bit_generator": [generated],
    "stop_gradient": [lax.stop_gradient],
    "while": [lambda x: lax.while_loop(lambda i: i < 5, lambda i: i + jnp.abs(bits(x)[0]) + 1, 0)],
}

PIECEWISE_CONSTANT = {"floor", "ceil", "round", "sign", "stop_gradient", "bitcast_convert_type"}  # from floating numbers to such numbers


def beside(use):
    """A function through which a gradient flows past and around a use of a primitive."""

    def fun(x):
        used = use(jnp.sin(x))
        if not hasattr(jax.typeof(used), "dtype"):  # a token
            return x**2
        return x**2 + jnp.cos(x) * (used if differentiable(used) else used.astype("float32") % 7)

    return flat(fun)


def gradient(vjp, fun):
    """The gradient of a function at POINT, in a mapped axis so that its index can be asked for."""
    return jax.vmap(lambda x: vjp(fun, [x], [jnp.cosh(x)])[0], axis_name="rows")(POINT[None])


def lines_with(jaxpr, primitive):
    """The lines of a jaxpr, and of those inside it, that use a primitive."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitive:
            yield eqn
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from lines_with(getattr(inner, "jaxpr", inner), primitive)


def steps_on_numbers(record, use):
    """Tell whether a use of a primitive, which there has to be, makes numbers with a derivative out of such numbers."""
    traced = []
    jax.vmap(lambda x: traced.append(jax.make_jaxpr(use)(x)), axis_name="rows")(POINT[None])
    lines = list(lines_with(traced[0].jaxpr, record.primitive))
    assert lines, "the use does not use the primitive"
    return any(all(any(hasattr(v.aval, "dtype") and differentiable(v.aval) for v in side) for side in (e.invars, e.outvars)) for e in lines)


@each(PASSING_NOTHING)
def test_nothing_flows_where_jax_lets_nothing_flow(record):
    uses = USES[record.primitive.name]
    assert uses
    for use in uses:
        fun = beside(use)
        assert_same([gradient(own_vjp, fun)], [gradient(jax_vjp, fun)], record.primitive.name)


@each(PASSING_NOTHING)
def test_a_rule_that_passes_something_is_noticed(record):
    """Where a gradient could flow (the others are never asked for one), the comparison refuses a rule that lets one flow."""
    noticed = False
    for use in USES[record.primitive.name]:
        if steps_on_numbers(record, use):
            fun = beside(use)
            with planted(record, lambda ct, out, *ins, **_: tuple(jnp.ones_like(x) if differentiable(x) else None for x in ins)):
                wrong = gradient(own_vjp, fun)
            with pytest.raises(MismatchError):
                assert_same([wrong], [gradient(jax_vjp, fun)], record.primitive.name)
            noticed = True
    assert noticed is (record.primitive.name in PIECEWISE_CONSTANT)
