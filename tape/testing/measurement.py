"""The programs that a check runs: reference and rule side by side in double precision, function values for differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.jaxapi import ClosedJaxpr
from tape.testing.analytic import Complexified
from tape.testing.differences import STEPS, Estimate, curvature, derivatives
from tape.testing.executables import Program
from tape.testing.precise import RULE_PRIMITIVES, Precise, equations

BASIS = 64  # a gradient of so many elements can be had by forward mode, one element at a time
TERMS = 1 << 12  # outputs that are kept apart
SHARP = 1e-6  # relative; of an estimate with a larger error a second opinion is sought
_STEPS = np.concatenate([[0.0], STEPS, -STEPS])


class Measurement:
    """The programs of one subject.

    Args:
        kind: what ``value`` and ``reference`` make of ``parts``.
        parts: the jaxprs that they evaluate.

    Attributes:
        rule: the derivative under test in double precision; None where it is the reference.
        believed: a derivative with all its rules, values and gradients, that is the reference, be it the one under test itself. None: the
            reference is JAX's derivative of the bare function.
        value: the function in double precision, without its rules.
        mode: whether the reference is computed in reverse or, where JAX has no reverse mode, in forward mode.
        eps: how exact values are.
        exact: the function on complex arrays, where it is analytic.

    """

    def __init__(
        self,
        value: Callable[..., Any],
        outputs: int,
        rule: Precise | None = None,
        reference: Callable[..., Any] | None = None,
        *,
        kind: str,
        parts: Sequence[Precise],
    ) -> None:
        self.rule = rule
        self.believed: Precise | None = None
        self._reference = reference
        self.exact: Complexified | None = None
        self._kind = kind
        self._parts = parts
        self.value = value
        self.mode = "reverse"
        self.eps = float(np.finfo(float).eps)
        self._outputs = outputs
        self._first: Program | None = None
        self._slopes = Program((kind, "slopes"), self._along, parts)

    @property
    def alone(self) -> bool:
        """Whether there is one derivative only, nothing but values to compare it with."""
        return self.believed is self.rule

    def use_forward(self) -> None:
        """Compute the reference in forward mode from now on."""
        self.mode, self._first = "forward", None

    def reference(self, xs: Sequence[Any], cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """JAX's derivative of the bare function, unless another is given."""
        if self.believed is not None:
            return self._split(self.believed(*xs, *cts))
        if self._reference is not None:
            return self._reference(xs, cts)  # type: ignore[no-any-return]
        if self.mode == "reverse":
            ys, back = jax.vjp(self.value, *xs)
            return ys, list(back(list(cts)))
        ys, push = jax.linearize(self.value, *xs)
        return ys, [self._by_forward(push, xs, cts, k) for k in range(len(xs))]

    def _by_forward(self, push: Callable[..., Any], xs: Sequence[Any], cts: Sequence[Any], k: int) -> jax.Array:
        x = xs[k]
        zeros = [jnp.zeros_like(a) for a in xs]

        def along(e: jax.Array) -> Any:
            tangents = push(*[e.reshape(x.shape) if i == k else z for i, z in enumerate(zeros)])
            return sum(jnp.sum(c * t) for c, t in zip(cts, tangents, strict=True))

        basis = jnp.eye(x.size, dtype=x.dtype)
        g = jax.lax.map(along, basis).reshape(x.shape)
        if jnp.iscomplexobj(x):
            g = g.real - 1j * jax.lax.map(along, 1j * basis).reshape(x.shape).real
        elif jnp.iscomplexobj(g):
            g = g.real
        return g  # type: ignore[no-any-return]

    def compare(self, points: Sequence[list[Any]], cts: Sequence[list[Any]]) -> dict[str, list[np.ndarray]]:
        """Return reference and rule, values and gradients, for each point with its cotangent.

        The points are gone through one by one: a loop inside the program would take longer to compile than it saves.
        """
        if self._first is None:
            derivatives = [a for a in (self.rule, self.believed) if a is not None]
            kind = (self._kind, self.mode, self.rule is None, self.believed is None, self.believed is self.rule, self._outputs)
            self._first = Program(kind, self._compared, [*self._parts, *derivatives])
        rows = [self._first(x, ct) for x, ct in zip(points, cts, strict=True)]
        rows = [{"rule_y": row["y"], "r": row.get("g"), "g": row.get("r"), **row} for row in rows]
        return {key: [np.stack(column) for column in zip(*[row[key] for row in rows], strict=True)] for key in rows[0]}

    def _compared(self, xs: Sequence[jax.Array], cts: Sequence[jax.Array]) -> dict[str, Any]:
        if self.rule is None:
            ys, r = self.reference(xs, cts)
            return {"y": list(ys), "r": r}
        own, g = self._split(self.rule(*xs, *cts))
        if self.believed is self.rule:
            return {"y": self.value(*xs), "rule_y": own, "g": g}
        ys, r = self.reference(xs, cts)
        return {"y": list(ys), "r": r, "rule_y": own, "g": g}

    def _split(self, flat: list[Any]) -> tuple[list[Any], list[Any]]:
        return flat[: self._outputs], flat[self._outputs :]

    def curvature(self, xs: list[Any], vs: list[Any], cts: list[Any]) -> Estimate:
        """Estimate the second derivative of ``<ct, f>`` along a direction."""
        terms, size = (np.asarray(a) for a in self._slopes(xs, vs, cts, _STEPS))
        n, total = len(STEPS), terms.sum(axis=1)
        return curvature(total[0], total[1 : n + 1], total[n + 1 :], 4 * self.eps * float(size))

    def slopes(self, tasks: Sequence[tuple[list[Any], list[Any], list[Any]]]) -> list[Any]:
        """Estimate derivatives of ``<ct, f>`` for tasks (point, direction, cotangent), as :func:`bracket` does."""
        estimated = []
        for task in tasks:
            terms, size = (np.asarray(a) for a in self._slopes(*task, _STEPS))  # (step, term), ()
            estimates = bracket(terms, 4 * self.eps * float(size))
            both = estimates[0]
            if self.exact is not None and not both.error <= SHARP * abs(both.value):
                exact = self.exact.estimate(*task, self.eps)
                if exact.error < min(1e-2 * both.error, 1e-4 * abs(exact.value)):
                    estimates = exact, exact, exact, estimates[-1]
            estimated.append(estimates)
        return estimated

    def prepare(self, point: list[Any], cotangent: list[Any]) -> None:
        """Have the program of :meth:`slopes` compiled in the background for arguments of these shapes."""
        self._slopes.prepare(point, point, cotangent, _STEPS)

    def _along(
        self, xs: Sequence[jax.Array], vs: Sequence[jax.Array], cts: Sequence[jax.Array], steps: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def at(t: jax.Array) -> tuple[jax.Array, jax.Array]:
            ys = self.value(*[x + t * v for x, v in zip(xs, vs, strict=True)])
            flat = jnp.concatenate([jnp.ravel((c * y).real) for c, y in zip(cts, ys, strict=True)])
            size = jnp.sum(jnp.abs(flat))
            return (flat if flat.size <= TERMS else jnp.sum(flat)[None]), size

        terms, sizes = jax.lax.map(at, steps)
        return terms, sizes[0]


def bracket(terms: np.ndarray, noise: float) -> tuple[Estimate, Estimate, Estimate, float]:
    """Return the two-sided derivative of the sum, and the largest and the smallest that one-sided derivatives of its terms add up to.

    Args:
        terms: what is added up, along the second axis, at step zero and at all steps to the right and to the left.
        noise: how far off the sum may be by rounding.

    Returns:
        Three estimates, and the size of the terms that move.

    """
    n = len(STEPS)
    total = terms.sum(axis=1)
    both, _, _ = derivatives(total[0], total[1 : n + 1], total[n + 1 :], noise)
    moving = terms[:, np.any(terms != terms[0], axis=0)]
    if not moving.shape[1]:
        return both, Estimate(0.0, 0.0), Estimate(0.0, 0.0), 0.0
    _, right, left = derivatives(moving[0], moving[1 : n + 1], moving[n + 1 :], noise / moving.shape[1])
    error = float(np.sum(right.error + left.error))
    high, low = np.maximum(right.value, left.value), np.minimum(right.value, left.value)
    return both, Estimate(float(np.sum(high)), error), Estimate(float(np.sum(low)), error), float(np.abs(moving[0]).sum())


def user_rules(closed: ClosedJaxpr) -> list[Any]:
    """List the equations of a jaxpr that carry derivative rules of their own."""
    return [eqn for eqn in equations(closed.jaxpr) if eqn.primitive.name in RULE_PRIMITIVES]
