"""Points where a condition of the rule changes: what its program compares, solved for one argument after another.

A rule may treat ``x == 2 * y`` or ``x + y > 3`` apart. Points that are drawn do not meet the first, and seldom the second; the program
names both.

Where the condition is beyond the bounds of the arguments, nobody says that the rule is meant to be used, but for the rule itself: it names
what is behind. Both sides are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import Jaxpr, JaxprEqn
from tape.testing.executables import Program
from tape.testing.marks import BEHIND, EDGE, Arrays, Interval, beyond, scale_of
from tape.testing.precise import Precise, inner

COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
ASKED = 6  # conditions
CROSSED = 4  # beyond the bounds
STEPS = 3  # of Newton's method
FURTHER = 12  # of them, where what is solved for is beyond the bounds
BESIDE = 1e-4  # relative; how far from a condition its two sides are looked at
NEAR_ZERO = 1e-2  # relative to an element's size: what rules guard against a division by zero with
ACROSS = 0.02  # relative to an element's size: how far behind the condition
SIZE = 1e-6  # relative; of the step by which a slope is measured
LARGE = 1 << 12  # elements of an argument that is solved for

_JAX = (jnp, jax.lax, jax.nn, jnp.linalg, jnp.fft, jax.scipy.special, jax.random)
Points = dict[str, Arrays]
Differences = Callable[[Arrays], dict[int, np.ndarray]]  # of what is compared, by the number of the condition


class Crossing(NamedTuple):
    """Where a condition of the rule changes beyond the bounds of an argument: a point on this side of it, and one behind it.

    ``written`` says that it stands in function or rule itself, not in what they call of JAX; ``signs``, that it tells signs apart;
    ``each``, that it is one of each element.
    """

    argument: int
    before: Arrays
    behind: Arrays
    written: bool
    signs: bool
    each: bool


def conditional(rule: Precise, given: Arrays, cts: Arrays, bounds: Sequence[Interval]) -> tuple[Points, list[Crossing]]:
    """Return points at the edge of a condition of the rule, between the bounds or not, points beyond it that are, and the crossings."""
    own, special = ([*itertools.islice(_computed(rule.closed.jaxpr, special=of), ASKED)] for of in (False, True))
    written = {*map(id, _written(rule.closed.jaxpr))}
    if not own + special or any(np.iscomplexobj(x) or x.size > LARGE for x in given):
        return {}, []
    compared = _Compared(rule.closed)
    compared.most = rule.most
    compared.conditions = [*map(id, own + special)]
    program = Program("conditions", lambda xs, cts: compared.differences([*xs, *cts]), [compared])

    def differences(xs: Arrays) -> dict[int, np.ndarray]:
        return {i: np.asarray(d) for i, d in program(xs, cts).items()}

    points: Points = {}
    crossings: list[Crossing] = []
    plain = [_plain(x, b) for x, b in zip(given, bounds, strict=True)]
    for i, k in itertools.product(sorted(differences(plain)), range(len(given))):
        for why, x in _solved(differences, i, plain, k, bounds[k]) if i < len(own) else ():
            points[f"{why} ({len(points) + 1})"] = x
        if len(crossings) < CROSSED:
            crossings += _crossed(differences, i, plain, k, bounds[k], written=compared.conditions[i] in written)
    return points, crossings


class _Compared(Precise):
    """Returns how far apart the numbers are that some equations of a program compare."""

    conditions: list[int]

    def differences(self, inputs: Sequence[Any]) -> dict[int, Any]:
        self._seen: dict[int, Any] = {}
        self(*inputs)
        return self._seen

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        if id(eqn) in self.conditions:
            self._seen[self.conditions.index(id(eqn))] = jnp.asarray(inputs[0]) - jnp.asarray(inputs[1])
        return super()._apply(eqn, inputs)


def _computed(jaxpr: Jaxpr, *, special: bool) -> Iterator[JaxprEqn]:
    """Yield the equations that compare floating point numbers, either an input with a constant (``special`` values) or others."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in COMPARED and all(jnp.issubdtype(getattr(v.aval, "dtype", np.bool_), jnp.floating) for v in eqn.invars):
            named = [v for v in eqn.invars if isinstance(v, jaxapi.Literal)]
            others = {v for v in eqn.invars if not isinstance(v, jaxapi.Literal)}
            if (not named and not special) or (named and np.all(np.isfinite(named[0].val)) and special == bool(others & {*jaxpr.invars})):
                yield eqn
        called = inner(eqn)
        if called is not None:
            yield from _computed(called.jaxpr, special=special)


def _plain(x: np.ndarray, bounds: Interval) -> np.ndarray:
    """Return powers of two near by: what is solved for can be represented then, more often than not."""
    with np.errstate(divide="ignore"):
        y = np.where(x == 0, 0, np.sign(x) * np.exp2(np.round(np.log2(np.abs(x)))))
    return np.where(beyond(y, bounds), x, y)


def _written(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations that are in a program itself, or in its rules, and not in functions of JAX."""
    for eqn in jaxpr.eqns:
        yield eqn
        called = inner(eqn)
        name = str(eqn.params.get("name", ""))
        if called is not None and not name.startswith("_") and not any(hasattr(module, name) for module in _JAX):
            yield from _written(called.jaxpr)


def _crossed(differences: Differences, i: int, start: Arrays, k: int, bounds: Interval, *, written: bool) -> Iterator[Crossing]:
    """Yield both sides of a condition of argument ``k``, where that lies beyond its bounds, and is no guard against zero."""
    x, size = start[k], scale_of(start[k])

    def at(y: np.ndarray) -> np.ndarray:
        d = differences([*start[:k], y, *start[k + 1 :]])[i]
        return d.reshape(x.shape if d.size == x.size else (1,) * x.ndim) if d.size in (1, x.size) else np.zeros(0)

    d = first = at(x)
    others = [y if j == k else y + BESIDE * scale_of(y) for j, y in enumerate(start)]
    if not d.size or not np.array_equal(differences(others)[i], differences(start)[i]):
        return  # the order of two arguments may be a promise
    y = x
    with np.errstate(all="ignore"):
        for _ in range(FURTHER):
            by = d / (at(y + SIZE * size) - d) * SIZE * size
            y = np.where(np.isfinite(by), y - by, y)
            d = at(y)
        step = np.sign(y - x) * BESIDE * np.where(np.abs(y) > NEAR_ZERO * size, np.abs(y), size)
        before, behind = y - step, y + step
        across = (np.sign(at(before)) == np.sign(first)) & (np.sign(at(behind)) == -np.sign(first)) & (first != 0)
    named = (np.abs(y) > NEAR_ZERO * size) | (np.abs(y) < BESIDE**2 * size)
    chosen = np.broadcast_to(across, x.shape) & np.isfinite(y)
    outside = named & beyond(before, bounds)
    chosen = chosen & outside if d.size == x.size else chosen & np.any(outside)
    if np.any(chosen) and (d.size == x.size or np.all(chosen)):
        sides = [[*start[:k], np.where(chosen, z, x), *start[k + 1 :]] for z in (before, behind)]
        signs = bool(np.any((np.abs(y) <= NEAR_ZERO * size)[chosen]))
        yield Crossing(k, sides[0], sides[1], written=written, signs=signs, each=d.size == x.size)


def _solved(differences: Differences, i: int, start: Arrays, k: int, bounds: Interval) -> Iterator[tuple[str, Arrays]]:
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
    for why, z in ((EDGE, y), (BEHIND, behind)):
        inside = held & np.isfinite(z) & ((z is y) | ~beyond(z, bounds))
        if np.any(inside & (z != x)) and (d.size == x.size or np.all(inside)):
            yield why, [*start[:k], np.where(inside, z, x), *start[k + 1 :]]
