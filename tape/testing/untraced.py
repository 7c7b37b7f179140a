"""Measurements of functions that JAX cannot trace, because they look at values: one call at a time, the reference by differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.testing.differences import STEPS
from tape.testing.executables import Program
from tape.testing.marks import scale_of
from tape.testing.measurement import bracket
from tape.testing.precise import wide
from tape.testing.probes import wide_array

ELEMENTS = 24  # elements of an argument whose derivative is measured; the others are taken at the rule's word
# Central differences of eighth order: weights of f(x + kh) - f(x - kh) for k = 1 to 4 (Fornberg, Math. Comp. 51 (1988) 699-706).
WEIGHTS = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
STEP = 3e-3

Arrays = list[np.ndarray]


class Untraced:
    """What :class:`tape.testing.measurement.Measurement` offers, for functions that are called on concrete arrays only.

    Attributes:
        believed, alone: no derivative of JAX's is asked; differences are the reference.
        eps: how exact values are; known after the first call.

    """

    believed, alone = None, False

    def __init__(self, rule: Callable[..., tuple[Any, Any]], value: Callable[..., Any], seed: int) -> None:
        self.eps = float(np.finfo(float).eps)
        self._rule = rule
        self._function = value
        self._seed = seed
        self._jacobians: dict[Any, list[dict[int, Any]]] = {}

    def value(self, xs: Arrays) -> Arrays:
        """Call the function in double precision."""
        with jax.enable_x64(True):
            ys = list(self._function(*[jnp.asarray(x, wide(x.dtype)) for x in xs]))
        self.eps = max(self.eps, *[float(np.finfo(np.dtype(y.dtype)).eps) for y in ys])
        return [wide_array(y) for y in ys]

    def _values(self, points: Sequence[Arrays]) -> list[Arrays]:
        """Call the function for several points: all at once where it is a program."""
        return self._function.each(points) if isinstance(self._function, Program) else [self.value(xs) for xs in points]

    def compare(self, points: Sequence[Arrays], cts: Sequence[Arrays]) -> dict[str, list[np.ndarray]]:
        """Return reference and rule, values and gradients, for each point with its cotangent; a twin follows its point."""
        rows = []
        for i, (xs, ct) in enumerate(zip(points, cts, strict=True)):
            twin = i > 0 and all(np.allclose(a, b, rtol=1e-9, atol=0) for a, b in zip(xs, points[i - 1], strict=True))
            base = points[i - 1] if twin else xs
            with jax.enable_x64(True):
                ys, gs = self._rule([jnp.asarray(x) for x in xs], [jnp.asarray(c) for c in ct])
            g = [wide_array(a) for a in gs]
            step = STEP * (0.6 if twin else 1.0) * (1 if self.eps < 1e-12 else 10)
            rows.append({"y": self.value(xs), "rule_y": [wide_array(y) for y in ys], "g": g, "r": self._reference(base, ct, g, step)})
        return {key: [np.stack(column) for column in zip(*[row[key] for row in rows], strict=True)] for key in rows[0]}

    def _reference(self, xs: Arrays, ct: Arrays, g: Arrays, step: float) -> Arrays:
        """Return the gradient by differences where it is measured, the rule's elsewhere."""
        key = (step, *[x.tobytes() for x in xs])
        jacobians = self._jacobians.get(key)
        if jacobians is None:
            jacobians = self._jacobians[key] = [self._columns(xs, k, step) for k in range(len(xs))]
        r = [np.array(a) for a in g]
        for k, columns in enumerate(jacobians):
            for i, parts in columns.items():
                along = [sum(np.sum(c * d) for c, d in zip(ct, part, strict=True)) for part in parts]
                r[k].flat[i] = along[0].real - 1j * along[1].real if len(parts) == 2 else along[0].real
        return r

    def _columns(self, xs: Arrays, k: int, step: float) -> dict[int, Any]:
        x = xs[k]
        chosen = np.random.default_rng(self._seed).permutation(x.size)[:ELEMENTS] if x.size > ELEMENTS else np.arange(x.size)
        sizes = scale_of(x)
        columns = {}
        for i in chosen:
            parts = []
            for unit in (1, 1j) if np.iscomplexobj(x) else (1,):
                h = step * sizes.flat[i]
                ys = self._values([_moved(xs, k, int(i), sign * j * h * unit) for j in range(1, len(WEIGHTS) + 1) for sign in (1, -1)])
                terms = [
                    [weight * (a - b) / h for a, b in zip(right, left, strict=True)]
                    for weight, right, left in zip(WEIGHTS, ys[::2], ys[1::2], strict=True)
                ]
                parts.append([sum(column) for column in zip(*terms, strict=True)])
            columns[int(i)] = parts
        return columns

    def slopes(self, tasks: Sequence[tuple[Arrays, Arrays, Arrays]]) -> list[Any]:
        """Estimate derivatives of ``<ct, f>`` for tasks (point, direction, cotangent)."""
        estimates = []
        for xs, vs, ct in tasks:
            steps = itertools.chain([0.0], STEPS, -STEPS)
            found_ys = self._values([[x + t * v for x, v in zip(xs, vs, strict=True)] for t in steps])
            terms = np.stack([np.concatenate([np.ravel((c * y).real) for c, y in zip(ct, ys, strict=True)]) for ys in found_ys])
            estimates.append(bracket(terms, 4 * self.eps * float(np.abs(terms[0]).sum())))
        return estimates


def _moved(xs: Arrays, k: int, i: int, by: complex) -> Arrays:
    moved = np.array(xs[k])
    moved.flat[i] += by
    return [moved if j == k else x for j, x in enumerate(xs)]
