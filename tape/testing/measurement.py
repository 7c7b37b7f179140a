"""The programs that a check runs: reference and rule side by side in double precision, function values for differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.testing.differences import STEPS, Estimate, derivatives
from tape.testing.precise import RULE_PRIMITIVES, equations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["Measurement", "bracket", "compiled", "stack", "user_rules"]

BASIS = 64  # a gradient of so many elements can be had by forward mode, one element at a time
TERMS = 1 << 12  # outputs that are kept apart
SLOTS = 4  # directions measured at once


def stack(lists: Sequence[list[Any]]) -> list[Any]:
    """Stack lists of arrays element by element."""
    return [np.stack(arrays) for arrays in zip(*lists, strict=True)]


def compiled(fun: Callable[..., Any]) -> Any:
    """Compile a program that runs a few times on little data: quickly, rather than to be quick."""
    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(fun, compiler_options=quickly)


class Measurement:
    """The programs of one subject.

    Attributes:
        rule: the derivative under test in double precision.
        value: the function in double precision, without its rules.
        mode: whether the reference is computed in reverse or, where JAX has no reverse mode, in forward mode.
        eps: how exact values are.

    """

    def __init__(
        self, rule: Callable[..., Any], value: Callable[..., Any], outputs: int, reference: Callable[..., Any] | None = None
    ) -> None:
        self.rule = rule
        self._reference = reference
        self.value = value
        self.mode = "reverse"
        self.eps = float(np.finfo(float).eps)
        self._outputs = outputs
        self._first: Any = None
        self._values: Any = None

    def use_forward(self) -> None:
        """Compute the reference in forward mode from now on."""
        self.mode, self._first = "forward", None

    def reference(self, xs: Sequence[Any], cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """JAX's derivative of the bare function, unless another is given."""
        if self._reference is not None:
            return self._reference(xs, cts)  # type: ignore[no-any-return]
        if self.mode == "reverse":
            ys, back = jax.vjp(self.value, *xs)
            return ys, list(back(list(cts)))
        ys, push = jax.linearize(self.value, *xs)
        return ys, [self._by_forward(push, xs, cts, k) for k in range(len(xs))]

    def _by_forward(self, push: Any, xs: Sequence[Any], cts: Sequence[Any], k: int) -> Any:
        x = xs[k]
        zeros = [jnp.zeros_like(a) for a in xs]

        def along(e: Any) -> Any:
            found = push(*[e.reshape(x.shape) if i == k else z for i, z in enumerate(zeros)])
            return sum(jnp.sum(c * t) for c, t in zip(cts, found, strict=True))

        basis = jnp.eye(x.size, dtype=x.dtype)
        g = jax.lax.map(along, basis).reshape(x.shape)
        if jnp.iscomplexobj(x):
            g = g.real - 1j * jax.lax.map(along, 1j * basis).reshape(x.shape).real
        elif jnp.iscomplexobj(g):
            g = g.real
        return g

    def compare(self, points: Sequence[list[Any]], cts: Sequence[list[Any]]) -> dict[str, list[np.ndarray]]:
        """Return reference and rule, values and gradients, for each point with its cotangent."""
        if self._first is None:
            self._first = compiled(lambda batch: jax.lax.map(self._compared, batch))
        with jax.enable_x64(True):
            found = self._first((stack(points), stack(cts)))
        return {k: [np.asarray(a) for a in v] for k, v in found.items()}

    def _compared(self, item: Any) -> dict[str, Any]:
        xs, cts = item
        ys, r = self.reference(xs, cts)
        found = self.rule(*xs, *cts)
        return {"y": list(ys), "r": r, "rule_y": list(found[: self._outputs]), "g": list(found[self._outputs :])}

    def slopes(self, tasks: Sequence[tuple[list[Any], list[Any], list[Any]]]) -> list[Any]:
        """Estimate derivatives of ``<ct, f>`` for tasks (point, direction, cotangent): two-sided, the largest and the smallest one-sided."""
        if not tasks:
            return []
        if len(tasks) > SLOTS:
            return [*self.slopes(tasks[:SLOTS]), *self.slopes(tasks[SLOTS:])]
        padded = [*tasks, *[tasks[-1]] * (SLOTS - len(tasks))]
        if self._values is None:
            self._values = compiled(self._along)
        steps = np.concatenate([[0.0], STEPS, -STEPS])
        with jax.enable_x64(True):
            found = self._values(*[stack([t[i] for t in padded]) for i in range(3)], steps)
        terms, sizes = (np.asarray(a) for a in found)  # (task, step, term), (task,)
        return [bracket(terms[i], 4 * self.eps * float(sizes[i])) for i in range(len(tasks))]

    def _along(self, points: Any, directions: Any, cotangents: Any, steps: Any) -> Any:
        def one(item: Any) -> Any:
            xs, vs, cts = item

            def at(t: Any) -> Any:
                ys = self.value(*[x + t * v for x, v in zip(xs, vs, strict=True)])
                flat = jnp.concatenate([jnp.ravel((c * y).real) for c, y in zip(cts, ys, strict=True)])
                size = jnp.sum(jnp.abs(flat))
                return (flat if flat.size <= TERMS else jnp.sum(flat)[None]), size

            terms, sizes = jax.lax.map(at, steps)
            return terms, sizes[0]

        return jax.lax.map(one, (points, directions, cotangents))


def _estimates(flat: np.ndarray, noise: float) -> tuple[Estimate, Estimate, Estimate]:
    total = flat.sum(axis=1)
    n = len(STEPS)
    return derivatives(float(total[0]), total[1 : n + 1], total[n + 1 :], noise)


def bracket(flat: np.ndarray, noise: float) -> tuple[Estimate, Estimate, Estimate]:
    """Return the two-sided derivative of the sum, and the largest and the smallest that one-sided derivatives of its terms add up to."""
    both = _estimates(flat, noise)[0]
    high, low, error = 0.0, 0.0, 0.0
    moving = [j for j in range(flat.shape[1]) if np.any(flat[:, j] != flat[0, j])]
    if len(moving) > 512:
        _, right, left = _estimates(flat, noise)
        high, low = max(right.value, left.value), min(right.value, left.value)
        return both, Estimate(high, right.error + left.error), Estimate(low, right.error + left.error)
    for j in moving:
        _, right, left = _estimates(flat[:, j : j + 1], noise / len(moving))
        high += max(right.value, left.value)
        low += min(right.value, left.value)
        error += right.error + left.error
    return both, Estimate(high, error), Estimate(low, error)


def user_rules(closed: Any) -> list[Any]:
    """List the equations of a jaxpr that carry derivative rules of their own."""
    return [eqn for eqn in equations(closed.jaxpr) if eqn.primitive.name in RULE_PRIMITIVES]
