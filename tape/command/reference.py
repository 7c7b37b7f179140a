"""What a gradient of a rule's example is held against: JAX's derivative in float64, itself held against 5-point differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.graph.kinds import differentiable
from tape.ops.running import quick_options
from tape.rules import Example
from tape.testing.samples import draw_like

STEP = 1e-3
NUMERIC = 1e-6  # error of the differences, relative to the summands of the slope
ROUNDING = 1e-10  # relative to the summands of the value: float64's epsilon over the step


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """The derivative of an example in double precision.

    Attributes:
        gradients: by JAX's reverse mode; None where JAX has none, or one that the differences contradict.
        directions: one per argument.
        slopes: the directional derivatives along them, by differences.
        rounding: how far these may be off.

    """

    gradients: list[Any] | None
    directions: list[Any]
    slopes: Any
    rounding: Any

    @classmethod
    def of(cls, example: Example, args: Sequence[Any], cts: Sequence[Any]) -> Reference:
        """Differentiate ``example`` at ``args`` for the cotangents ``cts`` (None where no gradient flows)."""
        directions = draw_like(args, example.name, "directions")

        def flat(*a: Any) -> list[Any]:
            return jax.tree.leaves(example.fun(*a))

        def pulled(*a: Any) -> Any:
            outs, vjp = jax.vjp(flat, *a)
            zeros = [np.zeros(o.shape, o.dtype if differentiable(o) else jax.dtypes.float0) for o in outs]
            return vjp([z if c is None else c for z, c in zip(zeros, cts, strict=True)])

        try:
            slopes_and_rounding = _quickly(lambda a, d: _differences(flat, a, cts, d, jax.vmap))(list(args), directions)
        except NotImplementedError:  # a primitive that JAX cannot batch
            slopes_and_rounding = _quickly(lambda a, d: _differences(flat, a, cts, d, _one_by_one))(list(args), directions)
        slopes, rounding = jax.device_get(slopes_and_rounding)
        try:
            gradients = list(jax.device_get(_quickly(pulled)(*args)))
        except (NotImplementedError, TypeError, ValueError, AssertionError):  # JAX has no derivative, or one that does not trace or lower
            return cls(None, directions, slopes, rounding)
        own = cls(gradients, directions, slopes, rounding)
        return own if own.along(gradients, 0.0)[1].all() else dataclasses.replace(own, gradients=None)

    def along(self, gradients: Sequence[Any], relative: float) -> tuple[Any, Any]:
        """Return by how much, and whether within ``relative``, the slopes that ``gradients`` predict are those of the differences."""
        products = [np.real(_wide(g) * d) for g, d in zip(gradients, self.directions, strict=True)]
        summands = np.array([np.abs(p).sum() for p in products])
        with np.errstate(invalid="ignore"):  # infinite gradients
            off = np.abs(np.array([p.sum() for p in products]) - self.slopes)
        right = np.isfinite(off) & (off <= (relative + NUMERIC) * summands + self.rounding)
        return np.nan_to_num(off) / np.maximum(summands, 1e-300), right

    def judge(self, gradients: Sequence[Any], relative: float) -> tuple[float, str]:
        """Return the relative error of ``gradients``, and what is wrong with them in words (empty if nothing is)."""
        if self.gradients is None:
            errors, right = self.along(gradients, relative)
            wrong = [i for i in range(len(right)) if not right[i]]
            return _largest(errors[right]), f"argument {wrong[0]} disagrees with differences" if wrong else ""
        worst = 0.0
        for i, (got, true) in enumerate(zip(map(_wide, gradients), map(_wide, self.gradients), strict=True)):
            finite = np.isfinite(true)
            if not np.array_equal(got[~finite], true[~finite], equal_nan=True):
                return np.inf, f"argument {i} has other infinities or NaN than JAX's gradient"
            error = _largest(np.abs(got - true)[finite]) / max(_largest(np.abs(true[finite])), 1e-300) if finite.any() else 0.0
            if not error <= relative:
                return error, f"argument {i} is off by {error:.1e} of its largest entry"
            worst = max(worst, error)
        return worst, ""


def _quickly(fun: Any) -> Any:
    """Return a function that is compiled for the CPU, which takes longer than it runs, once."""
    return jax.jit(fun, compiler_options=quick_options("cpu"))


def _wide(x: Any) -> Any:
    return np.asarray(x).astype("complex128" if np.iscomplexobj(x) else "float64")


def _largest(x: Any) -> float:
    return float(np.max(x, initial=0.0))


def _one_by_one(fun: Any) -> Any:
    """Return what ``jax.vmap`` would, for a function of numbers."""
    return lambda xs: jax.tree.map(lambda *rows: jnp.stack(rows), *[fun(x) for x in xs])


def _differences(flat: Any, args: Sequence[Any], cts: Sequence[Any], directions: Sequence[Any], mapped: Any) -> Any:
    """Central 5-point differences of the sum of outputs times cotangents, along one direction per argument, and their rounding."""

    def weighed(i: int, step: Any) -> Any:
        moved = [x + step * directions[i] if i == j else x for j, x in enumerate(args)]
        products = [jnp.real(c * o) for o, c in zip(flat(*moved), cts, strict=True) if c is not None]
        return sum(map(jnp.sum, products)), sum(jnp.sum(jnp.abs(p)) for p in products)

    slopes, roundings = [], []
    for i in range(len(args)):
        values, sizes = mapped(lambda step, i=i: weighed(i, step))(STEP * jnp.array([-2.0, -1.0, 1.0, 2.0]))
        slopes.append(jnp.dot(values, jnp.array([1.0, -8.0, 8.0, -1.0])) / (12 * STEP))
        roundings.append(ROUNDING * jnp.max(sizes))
    return jnp.stack(slopes), jnp.stack(roundings)
