"""The records under test, their examples with arguments drawn from the domains, and wrong rules to plant in their place."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.pullback import differentiable
from tape.rules import Example, defvjp, registered, registry

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


# JAX's gradient is traced, and fails when it is compiled: a slice that starts at a negative place.
JAX_CANNOT_LOWER = {("reduce_window_max", "negative padding"), ("reduce_window_min", "negative padding")}


def each(records):
    return pytest.mark.parametrize("record", records, ids=[str(r.primitive) for r in records])


def names(record, example, dtype):
    return f"{record.primitive} {example.name} {dtype}".replace("  ", " ")


def examples_of(record):
    """Examples of a record; an elementwise one without any is the function of its name in ``lax`` on matrices."""
    if record.examples:
        return record.examples
    return (Example(getattr(jax.lax, record.primitive.name), ((2, 3),) * len(record.domain)),)


def intervals_of(record, example):
    """One interval per argument; a record with fewer repeats its last one."""
    return [record.domain[min(i, len(record.domain) - 1)] for i in range(len(example.shapes))]


def generator(*key):
    """Random numbers that depend on ``key`` only."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def draw(record, example, dtype, shapes=None):
    """Arguments of ``dtype`` from the record's domain; the imaginary parts of complex ones lie in (0.1, 0.7)."""
    rng = generator(str(record.primitive), example.name, len(example.shapes))
    args = []
    for shape, (low, high) in zip(shapes or example.shapes, intervals_of(record, example), strict=True):
        values = rng.uniform(low, high, shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.uniform(0.1, 0.7, shape)
        args.append(np.asarray(values, dtype))
    return args


def draw_like(avals, *key):
    """Numbers of absolute value between 1/2 and 1 in the shapes and dtypes of ``avals``; None where no gradient flows."""
    rng = generator(*key)

    def one(shape):
        return rng.choice((-1.0, 1.0), shape) * rng.uniform(0.5, 1.0, shape)

    return [
        np.asarray(one(a.shape) + (1j * one(a.shape) if jnp.issubdtype(a.dtype, jnp.complexfloating) else 0), a.dtype)
        if differentiable(a)
        else None
        for a in avals
    ]


def accepts(fun, args):
    """Tell whether ``fun`` is defined for arguments of these shapes and dtypes."""
    try:
        jax.eval_shape(fun, *args)
    except Exception:  # noqa: BLE001 - whatever JAX refuses with
        return False
    return True


def trusted(record, example, thunk):
    """What JAX makes of ``thunk``, or None where it has no derivative or a wrong one."""
    if (str(record.primitive), example.name) in JAX_IS_WRONG or (str(record.primitive), example.name) in JAX_CANNOT_LOWER:
        return None
    try:
        return thunk()
    except NotImplementedError:
        return None
    except TypeError as error:
        if record.primitive.name == "clamp" and "select cases must have the same shapes" in str(error):
            return None  # JAX has no gradient for scalar bounds
        raise


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
