"""The records under test, and wrong rules to plant in their place."""

from __future__ import annotations

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.rules import defvjp, registered, table
from tape.testing.samples import draw, draw_like, examples_of, generator, intervals_of  # noqa: F401 - for the suites
from tests.platforms import is_lowered

RECORDS = registered()
# Records whose primitive the derived suite cannot use as it uses all others; each has tests of its own, in test_apart.py.
APART = {
    "random_gamma": "the sampler refuses some proposals, so that a sample jumps where its derivative does not",
    "rng_uniform": "every call draws other numbers",
    "composite": "JAX cannot map it",
    "cholesky_update": "JAX cannot map it",
    "linear_call": "JAX cannot map it",
    "ragged_dot_general": "JAX cannot map all of its forms, and has no second order",
}


def _is_here(record):
    """Tell whether JAX has a record's primitive on the device that there is (it has Hessenberg forms on CPUs only)."""
    example = examples_of(record)[0]
    return is_lowered(example.fun, *draw(record, example, "float32"))


DIFFERENTIABLE = [r for r in RECORDS if r.domain and r.primitive.name not in APART and _is_here(r)]
PASSING_NOTHING = [r for r in RECORDS if not r.domain]
REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEXES = ("complex64", "complex128")


def _clipping_confuses_jax():
    """Tell whether this release differentiates an update wrongly whose place was clipped; 0.12 no longer does."""
    slope = jax.grad(lambda u: (jnp.ones(2).at[jnp.array([9])].max(u, mode="clip") ** 3).sum())
    second = jax.jvp(slope, (jnp.full(1, 2.0),), (jnp.ones(1),))[1]
    return not np.allclose(second, 6 * 2.0)


# Examples whose derivative JAX gets wrong, by primitive and name: differences are the oracle there, in both orders.
JAX_IS_WRONG = {
    ("scatter-min", "clipped"): "an update that index clipping moved onto another place gets an infinite cotangent",
    ("scatter-max", "clipped"): "the same, seen in the second order",
}
if not _clipping_confuses_jax():
    JAX_IS_WRONG.clear()


# JAX's gradient is traced, and fails when it is compiled: a slice that starts at a negative place.
JAX_CANNOT_LOWER = {("reduce_window_max", "negative padding"), ("reduce_window_min", "negative padding")}


# JAX refuses these by other errors than NotImplementedError.
JAX_HAS_NONE = {"custom_vmap_call", "reduce", "reduce_window"}


def each(records):
    return pytest.mark.parametrize("record", records, ids=[str(r.primitive) for r in records])


def names(record, example, dtype):
    return f"{record.primitive} {example.name} {dtype}".replace("  ", " ")


def accepts(fun, args):
    """Tell whether ``fun`` is defined for arguments of these shapes and dtypes."""
    try:
        results = jax.eval_shape(fun, *args)
    except Exception:  # noqa: BLE001 - whatever JAX refuses with
        return False
    return all(n >= 0 for x in jax.tree.leaves(results) for n in x.shape)  # of an empty matrix there are -1 reflections


def trusted(record, example, thunk):
    """What JAX makes of ``thunk``, or None where it has no derivative or a wrong one."""
    if (str(record.primitive), example.name) in JAX_IS_WRONG or (str(record.primitive), example.name) in JAX_CANNOT_LOWER:
        return None
    try:
        return thunk()
    except NotImplementedError:
        return None
    except (ValueError, AssertionError):
        if record.primitive.name in JAX_HAS_NONE:
            return None
        raise
    except TypeError as error:
        if record.primitive.name == "clamp" and "select cases must have the same shapes" in str(error):
            return None  # JAX has no gradient for scalar bounds
        if record.primitive.name in {"cummax", "cummin"} and "gt does not accept dtype complex" in str(error):
            return None  # nor has JAX 0.12 here
        raise


@contextlib.contextmanager
def planted(record, rule):
    """Put ``rule`` in place of a record's own, and the record back afterwards."""
    given = table._given.get(record.primitive)
    defvjp(record.primitive, rule)
    table._given[record.primitive] = dataclasses.replace(record, vjp=rule)  # a user's rule is never selective
    try:
        yield
    finally:
        defvjp(record.primitive, record.vjp)
        if given is None:
            table._given.pop(record.primitive, None)  # a rule of the user's own changes what interop.lower does
        else:
            table._given[record.primitive] = given


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
