"""Points where branches meet: ties, zeros, whole numbers, constants. A rule that is right everywhere else may be wrong there.

They lie between the bounds of the arguments, but nobody gave them: what is not finite there, or no derivative, convicts nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

Arrays = list[np.ndarray]
Interval = tuple[float, float]

PLAIN = (1.0, 0.5, 2.0, np.pi, np.pi / 2, 3.0, 0.25, 4.0, 10.0, np.e, np.pi / 4, 1.5, 2 * np.pi, 8.0, 5.0, 0.1, 16.0, 100.0, 1e-3)
NAMED = 16  # constants of a program
OTHERS = 3  # of such that are beyond the bounds, of each argument and sign
POINTS = 12  # of special values

ZERO = "a point with a zero"
SPECIAL = "a point of special values"
EDGE = "a point at the edge of a condition of the rule"
BEHIND = "a point beyond a condition of the rule"
EQUAL = "a point where arguments are equal"
TINY = 1e-9  # what rules that guard against a division by zero take for zero
MINUTE = f"a point of size {TINY:g}"


def scale_of(x: np.ndarray) -> np.ndarray:
    """Return how large a step an element can take for granted: its own size, or its neighbours' where it is zero."""
    size = np.abs(x)
    finite = size[np.isfinite(size)]
    typical = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    floor = 0.1 * typical if typical > 0 else 1.0
    return np.where(np.isfinite(size) & (size > 1e-3 * typical), size, floor)


def beyond(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Tell which elements are outside of the domain: of a complex one its absolute value counts."""
    size = np.abs(x) * (1 - 1e-6) if np.iscomplexobj(x) else x
    return np.asarray((size < bounds[0]) | (size > bounds[1]))


def marked(given: Arrays, bounds: list[Interval]) -> dict[str, Arrays]:
    """Return such points, by what is special there; what would be beyond the bounds stays as given."""
    points: dict[str, Arrays] = {"a point with ties": [_tied(x, None) for x in given]}
    for axis in range(min(2, max(x.ndim for x in given))):
        points[f"a point with ties along axis {axis}"] = [_tied(x, axis) if 1 < x.ndim > axis else x for x in given]
    points[EQUAL] = [_equal(given, k) for k in range(len(given))]
    points[f"{EQUAL} everywhere"] = [_first_like(given, k) for k in range(len(given))]
    points["a point where arguments are opposite"] = [-_equal(given, k) if k else given[0] for k in range(len(given))]
    points["a point where arrays have length one"] = [x / max(float(np.linalg.norm(x)), TINY) for x in given]
    if any(x.ndim == 2 and x.shape[0] == x.shape[1] > 1 for x in given):
        eyes = [np.eye(len(x)) if x.ndim == 2 and x.shape[0] == x.shape[1] else None for x in given]
        points["a point with a diagonal matrix"] = [x if eye is None else x * eye for x, eye in zip(given, eyes, strict=True)]
        points["a point with the identity matrix"] = [x if eye is None else eye for x, eye in zip(given, eyes, strict=True)]
    points[ZERO] = [_with_zero(x) for x in given]
    points["a point of whole numbers"] = [np.round(x) for x in given]
    points["a point that is zero"] = [0 * x for x in given]
    for which, sign in (("positive", 1.0), ("negative", -1.0)):
        points[f"a point of {which} numbers"] = [_one_sided(x, sign, pair) for x, pair in zip(given, bounds, strict=True)]
    for which, sign in (("ascending", 1), ("descending", -1)):
        points[f"a point in {which} order"] = [_ordered(x, sign) for x in given]
    for which, of in (("smaller", (np.minimum, np.maximum)), ("larger", (np.maximum, np.minimum))):
        points[f"a point where the first argument is {which}"] = _ranked(given, *of)
    points[MINUTE] = [TINY * x for x in given]
    kept: dict[str, Arrays] = {}
    for why, point in points.items():
        inside = [np.where(beyond(y, b), x, y) for x, y, b in zip(given, point, bounds, strict=True)]
        if not any(all(map(np.array_equal, inside, other)) for other in (given, *kept.values())):
            kept[why] = inside
    return kept


def special(given: Arrays, bounds: list[Interval], constants: Iterable[float]) -> dict[str, Arrays]:
    """Return points of special values between the bounds: what a program names itself, and what is near that, then plain numbers.

    Each element of an array has another one; as many points are returned as it takes.
    """
    named = [c for c in dict.fromkeys(map(abs, constants)) if c and np.isfinite(c)][:NAMED]
    beside = [(a + b) / 2 for a, b in itertools.pairwise(sorted(named))]
    with np.errstate(over="ignore"):
        roots = [float(of(c)) for of in (np.sqrt, np.square, np.reciprocal) for c in np.asarray(named, float)]
    values = [sign * c for c in (*named, *PLAIN, *beside, *(c * by for c in named for by in (0.99, 1.01)), *roots) for sign in (1, -1)]
    points: dict[str, Arrays] = {}
    fitting = [
        [] if np.iscomplexobj(x) else [c for c in dict.fromkeys(values) if not beyond(np.asarray(c), b)]
        for x, b in zip(given, bounds, strict=True)
    ]
    count = max((-(-len(of) // x.size) for x, of in zip(given, fitting, strict=True) if x.size), default=0)
    for i in range(min(count, POINTS)):
        point = []
        for x, of in zip(given, fitting, strict=True):
            y = x.ravel().copy()
            chosen = of[i * x.size : (i + 1) * x.size]
            y[: len(chosen)] = chosen
            point.append(y.reshape(x.shape))
        points[f"{SPECIAL} ({i + 1})"] = point
    points["a point of ones"] = [np.where(beyond(np.ones_like(x), b), x, 1) for x, b in zip(given, bounds, strict=True)]
    return {why: point for why, point in points.items() if not all(map(np.array_equal, point, given))}


def beyond_those(given: Arrays, bounds: list[Interval], constants: Iterable[float]) -> dict[str, Arrays]:
    """Return points of special values that are not between the bounds, of one argument and one sign at a time."""
    named = [sign * c for c in dict.fromkeys(map(abs, constants)) if np.isfinite(c) for sign in (1, -1)][: 2 * NAMED]
    points = {f"{EQUAL}, beyond those given": [_first_like(given, k) for k in range(len(given))]}
    for k, (x, b) in enumerate(zip(given, bounds, strict=True)):
        values = [c for c in dict.fromkeys((*named, -1.0, 0.0, 1.0, 2.0)) if beyond(np.asarray(c), b)]
        for chosen in ([c for c in values if c > 0], [c for c in values if c <= 0]) if not np.iscomplexobj(x) else ():
            for i in range(0, min(len(chosen), OTHERS * x.size), max(x.size, 1)):
                y = x.ravel().copy()
                y[: len(chosen[i:])] = chosen[i : i + x.size]
                points[f"{SPECIAL} ({len(points)}), beyond those given"] = [*given[:k], y.reshape(x.shape), *given[k + 1 :]]
    return {why: point for why, point in points.items() if any(np.any(beyond(y, b)) for y, b in zip(point, bounds, strict=True))}


def _tied(x: np.ndarray, axis: int | None) -> np.ndarray:
    """Make neighbours in size equal, two by two, the largest two among them; the order of elements stays, but for ties."""
    flat = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0)
    if np.iscomplexobj(x) or flat.shape[0] < 2:
        return x
    order = np.argsort(flat, axis=0, kind="stable")[::-1]
    ranked = np.take_along_axis(flat, order, 0)
    leader = np.arange(flat.shape[0]) // 2 * 2
    leader[-1] = leader[-2]  # the smallest has its twin, too
    tied = np.empty_like(flat)
    np.put_along_axis(tied, order, ranked[leader], 0)
    return tied.reshape(x.shape) if axis is None else np.moveaxis(tied, 0, axis)


def _first_like(given: Arrays, k: int) -> np.ndarray:
    """Return the first argument of the shape of argument ``k``."""
    x = given[k]
    return next(y for y in given if y.shape == x.shape and np.iscomplexobj(y) == np.iscomplexobj(x))


def _equal(given: Arrays, k: int) -> np.ndarray:
    """Return argument ``k``, each second element of which is that of the first argument of its shape."""
    x = given[k]
    return np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, _first_like(given, k), x)


def _ordered(x: np.ndarray, sign: int) -> np.ndarray:
    """Sort along the last axis what is in no order: of what is, the order may be meant."""
    if np.iscomplexobj(x) or not x.ndim or x.shape[-1] < 2:
        return x
    steps = np.diff(x, axis=-1)
    return x if np.all(steps >= 0) or np.all(steps <= 0) else sign * np.sort(sign * x, axis=-1)


def _ranked(given: Arrays, least: np.ufunc, most: np.ufunc) -> Arrays:
    """Exchange elements of the first two arguments, if they have one shape, so that one is nowhere the larger; as given where one is."""
    x, y = (*given, *given)[:2] if len(given) > 1 else (np.zeros(0), np.zeros(1))
    if x.shape != y.shape or np.iscomplexobj(x) or np.iscomplexobj(y) or np.all(x >= y) or np.all(x <= y):
        return given
    return [least(x, y), most(x, y), *given[2:]]


def _with_zero(x: np.ndarray) -> np.ndarray:
    """Have the smallest element be zero."""
    return np.where(np.arange(x.size).reshape(x.shape) == (np.argmin(np.abs(x)) if x.size else 0), 0, x)


def _one_sided(x: np.ndarray, sign: float, bounds: Interval) -> np.ndarray:
    """Have all elements be of one sign, and small enough to lie between the bounds."""
    most, room = np.max(np.abs(x), initial=0), max(sign * bounds[sign > 0], 0.0)
    return x if np.iscomplexobj(x) or most == 0 else sign * np.abs(x) * min(1.0, room / most)
