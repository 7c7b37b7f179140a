"""Where a derivative is looked at: points near and far, cotangents of every size and sign, directions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.jaxapi import ClosedJaxpr, ShapedArray
from tape.testing.conditions import Crossing, conditional
from tape.testing.marks import BEHIND, beyond, beyond_those, marked, scale_of, special
from tape.testing.precise import Precise, constants
from tape.testing.subject import is_inexact

NUDGE = 1e-12  # relative; what changes at that distance is rounding and conditioning

FAR = 4  # the number of the first point that is not of the given size: further out; then near zero
BENT = 1e-2  # relative to an element's size; what is added to a point to take its symmetry away
LONE = 4  # cotangents with one element that is not zero, beside those of the first and the last one
CLOSE = 0.1  # relative; how far round a lone number its domain is taken for granted
UNEVEN = 1e-4  # how much smaller the last element of a cotangent is than the first
TURNED = 3  # arguments whose sign is turned by itself
LARGE = 1e3
OVERFLOWING = "a point of size 1000"
MINUTEST = 1.02  # times the square of the dtype's rounding: a number that is no larger stands for zero, as in jnp.interp
MANY = 1 << 16  # outputs: of more, only the plainest cotangents are tried

finfo: Any = jnp.finfo
Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One point with one cotangent: their numbers, and why they were chosen."""

    point: int
    cotangent: int
    why: str


class Probes:
    """Points, cotangents and their pairs, all of them representable in the dtypes of the function.

    Args:
        domains: bounds of each array; None for what its elements span.
        searches: whether the function looks for numbers in arrays that are sorted: those that are stay so.

    Attributes:
        points: lists of arrays (double precision); the first is the one that was given.
        count: how many points.
        pairs: which cotangent is looked at where.
        inside: for each point, whether it is in the domain: elsewhere nobody says that there is a function.
        large: the point at which exponentials overflow; None where it is not looked at.
        bent: the point at which matrices that were given symmetric are not; None where none was.
        isolated: the points of special values that are not in the domain: a rule is wrong there only if it is right all around.
        crossings: conditions beyond the bounds that nobody gave, each with the pairs on both sides of it.
        marked: the points where branches meet (:mod:`tape.testing.marks`), which say nothing against a rule unless values do.

    """

    def __init__(
        self,
        leaves: Sequence[Any],
        outputs: Sequence[Any],
        seed: int,
        *,
        explore: bool,
        domains: Sequence[tuple[float, float] | None],
        searches: bool = False,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._searches = searches
        self._dtypes = [np.dtype(x.dtype) for x in leaves]
        self._given = [wide_array(x) for x in leaves]
        given = self._moving = [np.where(np.isfinite(x), x, 0) for x in self._given]
        self._bounds = [_bounds(x, domain) for x, domain in zip(self._given, domains, strict=True)]
        near = [
            self._folded(x, x * 0.1 * self._like(x) + np.where(x == 0, 0.1, 0.0) * scale_of(x) * self._like(x) + _turned(x), bounds)
            for x, bounds in zip(given, self._bounds, strict=True)
        ]
        self.points: list[Arrays] = [self._given, self._representable(near)]
        if explore:
            other = [-x * (1 + 0.1 * self._like(x)) + np.where(x == 0, 0.2, 0.0) * scale_of(x) * self._like(x) for x in given]
            self.points.append(self._representable([self._drawn(y, bounds) for y, bounds in zip(other, self._bounds, strict=True)]))
            for size in (2.5, 12.0, 1e-3):
                moved = [size * (x * (1 + 0.1 * self._like(x)) + np.where(x == 0, 0.4, 0.0) * self._like(x)) for x in given]
                drawn = [y if d is None else self._drawn(y, b) for y, b, d in zip(moved, self._bounds, domains, strict=True)]
                self.points.append(self._representable(drawn))
        lone = self._turned_alone(given) if explore else {}
        marks = marked(given, self._bounds) if explore else {}
        self.marked = list(range(len(self.points), len(self.points) + len(marks)))
        self.points += [self._representable(point) for point in marks.values()]
        turned = list(range(len(self.points), len(self.points) + len(lone)))
        self.points += [self._representable(point) for point in lone.values()]
        self.large = len(self.points) if explore else None
        self.points += [self._representable([_enlarged(x) for x in given])] if explore else []
        symmetric = [_symmetric(x) for x in given]
        self.points[1:] = [self._kept(point) for point in self.points[1:]]
        self.bent: int | None = None
        if explore and any(symmetric):
            self.bent = len(self.points)
            self.points.append(self._representable([_bent(x, seed) if of else x for x, of in zip(given, symmetric, strict=True)]))
        self.isolated: list[int] = []
        self.crossings: list[tuple[Crossing, int, int]] = []
        self._told = [domain is not None for domain in domains]
        self.inside = [i < 2 or i == self.bent or self._within(x) for i, x in enumerate(self.points)]
        self.count = len(self.points)
        self.cotangents: list[Arrays] = []
        self.pairs: list[Pair] = []
        c0 = self._add([self._dense(y) for y in outputs])
        c1 = self._add([self._dense(y) for y in outputs])
        self._pair(0, c0, "the given point")
        self._pair(1, c1, "a point nearby")
        if explore:
            self._pair(2, c1, "the point with other signs")
            self._pair(3, c0, "a point further out")
            self._pair(4, c1, "a point much further out")
            self._pair(5, c0, "a point near zero")
            for point, why in zip((*self.marked, *turned), (*marks, *lone), strict=True):
                self._pair(point, c1, why)
        if self.large is not None:
            self._pair(self.large, c1, OVERFLOWING)
        if self.bent is not None:
            self._pair(self.bent, c1, "a point nearby without the given symmetry")
        large = min(12, int(min(np.log10(float(finfo(y.dtype).max)) for y in outputs)) // 2)  # representable, and so are its products
        self._pair(0, self._add([-(10.0**large) * c for c in self.cotangents[c0]]), f"a cotangent of size 1e{large}")
        if explore:
            self._pair(0, self._add([-(10.0**-large) * c for c in self.cotangents[c1]]), f"a cotangent of size 1e-{large}")
            self._pair(1, self._add([1e3 * c for c in self.cotangents[c0]]), "a cotangent of size 1e3")
            self._pair(0, self._add([0 * c for c in self.cotangents[c0]]), "the cotangent zero")
            self._pair(0, self._add(self._lone(0, -1.0)), "a cotangent for the first output alone")
            self._pair(0, self._add(self._lone(sum(c.size for c in self.cotangents[c0]) - 1, 1.0)), "a cotangent for the last output alone")
            for k in range(min(len(outputs), 4) if len(outputs) > 1 else 0):
                alone = [c if i == k else np.zeros_like(c) for i, c in enumerate(self.cotangents[c0])]
                self._pair(0, self._add(alone), f"a cotangent for output {k} alone")
            inner = range(1, sum(c.size for c in self.cotangents[c0]) - 1)
            for i in inner if len(inner) <= LONE else np.random.default_rng(seed).choice(inner, LONE, replace=False):
                self._pair(0, self._add(self._lone(i, 1.0)), f"a cotangent for element {i} of the outputs alone")
            self._pair(0, self._add([np.ones_like(c) for c in self.cotangents[c0]]), "the cotangent of ones")
            uneven = [c * np.geomspace(1, UNEVEN, c.size).reshape(c.shape) for c in self.cotangents[c1]]
            self._pair(0, self._add(uneven), "a cotangent of elements of all sizes")
            for why, cotangent in self._sparse(self.cotangents[c0], np.random.default_rng(seed + 3)):
                self._pair(0, self._add(cotangent), why)

    def mark(self, rule: Precise, value: ClosedJaxpr) -> None:
        """Look where elements have special values, too, be it those that programs name, and where what the rule compares is equal."""
        size = min(1.0, max(float(np.abs(x).max(initial=0)) for x in self._moving))
        least = MINUTEST * size * max(min(float(finfo(d).eps), float(finfo(np.float32).eps)) for d in self._dtypes) ** 2
        named = [c for c in (*constants(rule.closed.jaxpr), *constants(value.jaxpr)) if abs(c) > least]
        given = self._moving
        edges, crossings = conditional(rule, given, self.cotangents[1], self._bounds)
        points = special(given, self._bounds, named) | edges
        for why, point in (points | beyond_those(given, self._bounds, named)).items():
            i = len(self.points)
            self.points.append(self._kept(self._representable(point)))
            self.inside.append(self._within(self.points[i]))
            (self.marked if self.inside[i] else self.isolated).append(i)
            self._pair(i, 1, why)
        for crossing in crossings:
            if not self._told[crossing.argument]:
                self._cross(crossing)

    def _cross(self, crossing: Crossing) -> None:
        """Look at both sides of a condition beyond the bounds."""
        for point, why in ((crossing.before, "a point before a condition of the rule"), (crossing.behind, BEHIND)):
            self.points.append(self._kept(self._representable(point)))
            self.inside.append(False)
            self._pair(len(self.points) - 1, 1, why)
        self.crossings.append((crossing, len(self.pairs) - 2, len(self.pairs) - 1))

    plain = ("the given point", "a point nearby", "the point with other signs")

    def _pair(self, point: int, cotangent: int, why: str) -> None:
        self.pairs.append(Pair(point, cotangent, why))

    def _add(self, cts: Arrays) -> int:
        self.cotangents.append(cts)
        return len(self.cotangents) - 1

    def _like(self, x: np.ndarray) -> np.ndarray:
        """Numbers between -1 and 1, none of them near zero."""
        return np.asarray(self._rng.uniform(0.3, 1.0, x.shape) * self._rng.choice([-1.0, 1.0], x.shape))

    def _lone(self, i: int, value: float) -> Arrays:
        """Return a cotangent with one element that is not zero, counted through all outputs."""
        flat = np.zeros(sum(c.size for c in self.cotangents[0]))
        flat[i : i + 1] = value
        ends = np.cumsum([c.size for c in self.cotangents[0]])[:-1]
        return [part.reshape(c.shape).astype(c.dtype) for part, c in zip(np.split(flat, ends), self.cotangents[0], strict=True)]

    def _sparse(self, dense: Arrays, rng: np.random.Generator) -> Iterator[tuple[str, Arrays]]:
        """Yield cotangents by whose zeros, signs or repetitions a rule may choose a branch."""
        for why, sign in (("a positive cotangent", 1.0), ("a negative cotangent", -1.0)):
            yield why, [sign * np.abs(c).astype(c.dtype) for c in dense]
        sizes = [c.size for c in dense]
        n = sum(sizes)
        for k in sorted({2, 3, n // 2, n - 1} if n <= MANY else {2}):
            if 1 < k < n:
                chosen = np.isin(np.arange(n), rng.choice(n, k, replace=False))
                masks = np.split(chosen, np.cumsum(sizes)[:-1])
                yield (
                    f"a cotangent for {k} elements of the outputs alone",
                    [c * m.reshape(c.shape) for c, m in zip(dense, masks, strict=True)],
                )
        for axis in range(max(c.ndim for c in dense) if n <= MANY else 0):
            if any(axis < c.ndim and 1 < c.shape[axis] < c.size for c in dense):
                first = [np.take(c, [0], axis) if axis < c.ndim and c.size else c for c in dense]
                yield f"a cotangent that is the same along axis {axis}", [f + 0 * c for f, c in zip(first, dense, strict=True)]
                last = [np.arange(np.shape(c)[axis]) == np.shape(c)[axis] - 1 if axis < c.ndim else np.zeros(1) for c in dense]
                shaped = [m.reshape([-1 if d == axis else 1 for d in range(c.ndim)]) for m, c in zip(last, dense, strict=True)]
                yield f"a cotangent for the last slice along axis {axis} alone", [c * m for c, m in zip(dense, shaped, strict=True)]

    def _dense(self, y: ShapedArray) -> np.ndarray:
        values = self._like(np.zeros(y.shape))
        if jnp.issubdtype(y.dtype, jnp.complexfloating):
            values = values + 1j * self._like(values)
        return self._rounded(values, np.dtype(y.dtype))

    def _folded(self, x: np.ndarray, by: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
        """Move ``x``, the other way where that would leave the domain."""
        return np.asarray(x + np.where(beyond(x + by, bounds) & ~beyond(x - by, bounds), -by, by))

    def _turned_alone(self, given: Arrays) -> dict[str, Arrays]:
        """Return points at which one argument alone has the other sign, of the first few that have but one."""
        one = [k for k, x in enumerate(given) if x.size and not np.iscomplexobj(x) and (np.all(x > 0) or np.all(x < 0))]
        points: dict[str, Arrays] = {}
        for k in one[:TURNED] if len(given) > 1 else ():
            y = self._drawn(-given[k] * (1 + 0.1 * self._like(given[k])), self._bounds[k])
            points[f"a point where argument {k} alone has another sign"] = [*given[:k], y, *given[k + 1 :]]
        return points

    def _drawn(self, y: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
        """Draw what is beyond the domain back into it, where that has room on the same side of zero."""
        low, high = bounds
        share = np.random.default_rng(y.size).uniform(0.5, 0.95, y.shape)
        if np.iscomplexobj(y):
            return y * np.where(beyond(y, bounds), share * high / np.maximum(np.abs(y), 1e-300), 1) if np.isfinite(high) else y
        for bound, other in ((high, max(low, 0.0)), (low, min(high, 0.0))):
            if bound != other and np.isfinite(bound):
                y = np.where((y > bound) if bound > other else (y < bound), share * bound + (1 - share) * other, y)
        return y

    def _within(self, xs: Arrays) -> bool:
        return not any(np.any(beyond(x, bounds)) for x, bounds in zip(xs, self._bounds, strict=True))

    def _kept(self, xs: Arrays) -> Arrays:
        """Return matrices that are symmetric, and what is searched sorted, where those that were given are, for a rule may rely on it."""
        return [
            self._rounded((y + np.swapaxes(y, -1, -2).conj()) / 2, d) if _symmetric(x) else _like_sorted(x, y) if self._searches else y
            for x, y, d in zip(self.points[0], xs, self._dtypes, strict=True)
        ]

    def _rounded(self, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return wide_array(np.asarray(x).astype(dtype)) if is_inexact(x) else x

    def _representable(self, xs: Arrays) -> Arrays:
        """Return a point in the function's dtypes, and what is infinite or NaN as it was given: it says what is masked."""
        return [np.where(np.isfinite(x), self._rounded(y, d), x) for x, y, d in zip(self._given, xs, self._dtypes, strict=True)]

    def direction(self, point: int, only: int | None = None) -> Arrays:
        """Return a dense direction, scaled by the point; ``only``: for one argument alone."""
        directions = []
        for k, x in enumerate(self.points[point]):
            size = np.where(np.isfinite(x), np.where(x == 0, scale_of(x), np.abs(x)), 0)  # beside large elements, too
            v = self._like(np.zeros(x.shape)) * size
            if np.iscomplexobj(x):
                v = v * np.exp(1j * self._rng.uniform(0, 6, x.shape))
            if _symmetric(x):  # as its neighbours are: some functions read one triangle alone
                v = (v + np.swapaxes(v, -1, -2).conj()) / 2
            directions.append(v.astype(x.dtype) if only is None or only == k else np.zeros_like(x))
        return directions

    def native(self, arrays: Arrays, like: Sequence[Any]) -> list[Any]:
        """Return arrays in the function's own dtypes."""
        return [jnp.asarray(np.asarray(a).astype(y.dtype)) for a, y in zip(arrays, like, strict=True)]  # NumPy compiles nothing


def _bounds(x: np.ndarray, domain: tuple[float, float] | None) -> tuple[float, float]:
    """Return the least and the largest number that an element of the array can be: the ones that it has, unless the caller says more."""
    if domain is not None:
        return domain
    size = np.abs(x) if np.iscomplexobj(x) else x
    size = size[np.isfinite(size)]
    if not size.size:
        return -np.inf, np.inf
    low, high = float(np.min(size)), float(np.max(size))
    room = 0.0 if low < high else CLOSE * float(np.max(scale_of(size)))
    return (0.0 if np.iscomplexobj(x) else low) - room, high + room


def _turned(x: np.ndarray) -> np.ndarray | float:
    """Return what takes complex numbers that are all real, or all imaginary, off their axis."""
    if not np.iscomplexobj(x) or (np.any(x.real) and np.any(x.imag)):
        return 0.0
    return 0.1 * scale_of(x) * (1 if np.any(x.imag) else 1j)


def _enlarged(x: np.ndarray) -> np.ndarray:
    """Return numbers whose exponential is too large in double precision, as that of those beyond 88 is in single precision."""
    size = LARGE * np.random.default_rng(x.size).uniform(0.8, 1.2, x.shape)
    return np.asarray(np.where(x == 0, 1, x / np.where(x == 0, 1, np.abs(x))) * size)


def _bent(x: np.ndarray, seed: int) -> np.ndarray:
    """Return a matrix near by that is not symmetric."""
    rng = np.random.default_rng(seed)
    by = rng.uniform(-1, 1, x.shape) + (1j * rng.uniform(-1, 1, x.shape) if np.iscomplexobj(x) else 0)
    return np.asarray(x + BENT * scale_of(x) * by)


def _symmetric(x: np.ndarray) -> bool:
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2] > 1
    return square and bool(np.allclose(x, np.swapaxes(x, -1, -2).conj(), rtol=1e-6, atol=0))


def _like_sorted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ``y`` in the order in which ``x`` is, if that is one."""
    if x.ndim != 1 or np.iscomplexobj(x) or x.size < 2:
        return y
    way = np.sign(x[1] - x[0])
    return np.sort(way * y) * way if way and np.all(way * np.diff(x) > 0) else y


def wide_array(x: object) -> np.ndarray:
    """Return a NumPy array in double precision."""
    array = np.asarray(jax.device_get(x)) if isinstance(x, jax.Array) else np.asarray(x)
    return array.astype(np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64)
