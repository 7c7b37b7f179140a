"""Points where a condition of the rule changes: what its program compares, solved for one argument after another.

A rule may treat ``x == 2 * y`` or ``x + y > 3`` apart. Points that are drawn do not meet the first, and seldom the second; the program
names both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import Jaxpr, JaxprEqn
from tape.testing.executables import Program
from tape.testing.marks import EDGE, Arrays, Interval, beyond, scale_of
from tape.testing.precise import Precise, inner

COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
ASKED = 6  # conditions
STEPS = 3  # of Newton's method
ACROSS = 0.02  # relative to an element's size: how far behind the condition
SIZE = 1e-6  # relative; of the step by which a slope is measured
LARGE = 1 << 12  # elements of an argument that is solved for

Points = dict[str, Arrays]


def conditional(rule: Precise, given: Arrays, cts: Arrays, bounds: Sequence[Interval]) -> Points:
    """Return points at the edge of a condition of the rule, between the bounds or not, and points beyond it that are."""
    conditions = list(itertools.islice(_computed(rule.closed.jaxpr), ASKED))
    if not conditions or any(np.iscomplexobj(x) or x.size > LARGE for x in given):
        return {}
    compared = _Compared(rule.closed)
    compared.most = rule.most
    compared.conditions = frozenset(map(id, conditions))
    program = Program("conditions", lambda xs, cts: compared.differences([*xs, *cts]), [compared])

    def differences(xs: Arrays) -> Arrays:
        return [np.asarray(d) for d in program(xs, cts)]

    points: Points = {}
    plain = [_plain(x, b) for x, b in zip(given, bounds, strict=True)]
    for i, k in itertools.product(range(len(differences(plain))), range(len(given))):
        for why, x in _solved(differences, i, plain, k, bounds[k]):
            points[f"{why} ({len(points) + 1})"] = x
    return points


class _Compared(Precise):
    """Returns how far apart the numbers are that some equations of a program compare."""

    conditions: frozenset[int]

    def differences(self, inputs: Sequence[Any]) -> list[Any]:
        self._seen: list[Any] = []
        self(*inputs)
        return self._seen

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        if id(eqn) in self.conditions:
            self._seen.append(jnp.asarray(inputs[0]) - jnp.asarray(inputs[1]))
        return super()._apply(eqn, inputs)


def _computed(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations that compare floating point numbers, but for an input with a constant: those are special values."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in COMPARED and all(jnp.issubdtype(getattr(v.aval, "dtype", np.bool_), jnp.floating) for v in eqn.invars):
            named = [v for v in eqn.invars if isinstance(v, jaxapi.Literal)]
            others = {v for v in eqn.invars if not isinstance(v, jaxapi.Literal)}
            if not named or (np.all(np.isfinite(named[0].val)) and not others & {*jaxpr.invars}):
                yield eqn
        called = inner(eqn)
        if called is not None:
            yield from _computed(called.jaxpr)


def _plain(x: np.ndarray, bounds: Interval) -> np.ndarray:
    """Return powers of two near by: what is solved for can be represented then, more often than not."""
    with np.errstate(divide="ignore"):
        y = np.where(x == 0, 0, np.sign(x) * np.exp2(np.round(np.log2(np.abs(x)))))
    return np.where(beyond(y, bounds), x, y)


def _solved(differences: Callable[[Arrays], Arrays], i: int, start: Arrays, k: int, bounds: Interval) -> Iterator[tuple[str, Arrays]]:
    """Solve for argument ``k``, element by element, or for all of them along one direction."""
    x = start[k]
    step = SIZE * scale_of(x)

    def at(y: np.ndarray) -> np.ndarray:
        return differences([*start[:k], y, *start[k + 1 :]])[i]

    d = first = at(x)
    if d.size not in (1, x.size):
        return
    y = x
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            slope = (at(y + step) - d) / SIZE
            by = (d / slope).reshape(x.shape if d.size == x.size else (1,) * x.ndim) * scale_of(x)
            y = np.where(np.isfinite(by), y - by, y)
            d = at(y)
        arrived = (np.abs(d) <= 1e-9 * np.abs(first)) | (d == 0)
        behind = y + np.where(y < x, -1, 1) * ACROSS * scale_of(x)
    held = arrived.reshape(x.shape) if d.size == x.size else np.broadcast_to(arrived.reshape((1,) * x.ndim), x.shape)
    for why, z in ((EDGE, y), ("a point beyond a condition of the rule", behind)):
        inside = held & np.isfinite(z) & ((z is y) | ~beyond(z, bounds))
        if np.any(inside & (z != x)) and (d.size == x.size or np.all(inside)):
            yield why, [*start[:k], np.where(inside, z, x), *start[k + 1 :]]
