"""Derivatives of analytic functions by a step along the imaginary axis: exact to rounding, for nothing is subtracted.

The imaginary part of f(x + ihv) / h is the derivative along v up to h squared, which is far below rounding for h = 1e-30.

References:
    W. Squire and G. Trapp, Using complex variables to estimate derivatives of real functions, SIAM Review 40 (1998) 110-112.

"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import Jaxpr, JaxprEqn
from tape.testing.differences import Estimate
from tape.testing.executables import Program
from tape.testing.marks import scale_of
from tape.testing.precise import Precise, inner

STEPS = (1e-30, 1e-25)  # relative; where the derivative is infinite they differ
NUDGES = (1e-6, 1.7e-6, 2.9e-6)  # relative
_FORMULAS = "neg add sub mul div add_any sin cos tan sinh cosh tanh exp exp2 log log1p expm1 sqrt rsqrt integer_pow pow square logistic"
_MOVES = "reshape transpose broadcast_in_dim slice squeeze expand_dims concatenate rev pad copy copy_p stop_gradient convert_element_type"
_SUMS = "reduce_sum cumsum dot_general"
ANALYTIC = frozenset(f"{_FORMULAS} {_MOVES} {_SUMS}".split())


def is_analytic(jaxpr: Jaxpr) -> bool:
    """Tell whether a jaxpr maps real arrays to real arrays by analytic formulas only."""
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in (*jaxpr.invars, *jaxpr.outvars)):  # type: ignore[attr-defined]
        return False
    return all(_knows(eqn) for eqn in jaxpr.eqns)


def _knows(eqn: JaxprEqn) -> bool:
    called = inner(eqn)
    if called is not None:
        return is_analytic(called.jaxpr)
    if eqn.primitive.name == "pow" and not isinstance(eqn.invars[1], jaxapi.Literal):
        return False  # of a negative number it is real for whole exponents only
    return eqn.primitive.name in ANALYTIC and all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars)  # type: ignore[attr-defined]


class Complexified(Precise):
    """Evaluates a jaxpr that is analytic on complex arrays."""

    def slope(self, xs: Sequence[Any], vs: Sequence[Any], cts: Sequence[Any], step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the derivative of ``<ct, f>`` along a direction, and the sum of the absolute values of its terms."""
        ys = self(*[x + 1j * step * v for x, v in zip(xs, vs, strict=True)])
        terms = [jnp.ravel(c * jnp.imag(y)) / step for c, y in zip(cts, ys, strict=True)]
        flat = jnp.concatenate(terms)
        return jnp.sum(flat), jnp.sum(jnp.abs(flat))

    def estimate(self, xs: Sequence[Any], vs: Sequence[Any], cts: Sequence[Any], eps: float) -> Estimate:
        """Estimate the same, and its error: rounding inside the function, and branch points, show where slopes nearby are not on a line."""
        program = Program("complex step", self.slope, [self])
        (slope, size), (again, _) = ([float(a) for a in program(xs, vs, cts, step)] for step in STEPS)
        off = [abs(again - slope)]
        rng = np.random.default_rng(0)
        for h in NUDGES:
            w = [h * scale_of(x) * rng.uniform(0.3, 1, x.shape) for x in xs]
            nudged = [[x + sign * d for x, d in zip(xs, w, strict=True)] for sign in (1, -1)]
            right, left = (float(program(x, vs, cts, STEPS[0])[0]) for x in nudged)
            off.append(abs(right + left - 2 * slope))
        return Estimate(slope, 1e3 * eps * size + 10 * max(off) if np.all(np.isfinite([slope, *off])) else np.inf)

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        if inner(eqn) is not None or not any(jnp.iscomplexobj(x) for x in inputs):
            return super()._apply(eqn, inputs)
        params = {key: np.dtype("complex128") if _names_float(value) else value for key, value in eqn.params.items()}
        return jaxapi.bind(eqn.primitive, params, [jnp.asarray(x, "complex128") for x in inputs])


def _names_float(value: Any) -> bool:
    return isinstance(value, (np.dtype, type)) and np.dtype(value).kind == "f"
