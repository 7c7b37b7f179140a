"""Arguments of other sizes: a rule may be right for those that were given by accident.

Axes grow, alone where the function lets them, else all of one length together: what picks elements by number stays where it was. The
new elements lie between those that are there; sorted ones stay sorted, symmetric matrices symmetric, permutations permutations. Axes shrink
to one element, too, unless the function takes elements by number, and so does one of one array alone, which is broadcast then.

Sizes are known when a program is traced: of many lengths the programs are traced, and those run in which something else is done.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr
from tape.testing.evidence import Evidence
from tape.testing.precise import equations, literal
from tape.testing.probes import wide_array
from tape.testing.subject import Subject, is_inexact
from tape.testing.variants import BY_NUMBER, Axis, Variant, differs, made

LONG = 17  # an axis of at least so many elements is longer than blocks and unrolled loops are
BATCH = 129  # of all axes that grow, or of the first one, where that is not too many
MOST = 1 << 12  # elements of an array with long axes
WIDE = 1 << 15  # where all of them are of so many
HELD = 1 << 20  # elements of what is computed then
LARGE = 1 << 14  # elements of an array that does not grow
AXES = 8  # that are tried alone
DOUBLED = 3  # that grow by no single element, as groups of channels and windows do not
TRIED = 400  # equations that are traced in doing so
LENGTHS = (2, 3, 4, 8, 16, 5, 10, 256, 32, 7, 1024, 6, 9, 12, 128, 64, 15, 1000)  # what may be another case; all of them for one axis
FURTHER = 200  # equations that are traced for them
RUN = 3  # of these that are run
MAJOR = 0.6  # share of lengths that may be out of line with the others


def other_sizes(evidence: Evidence) -> Iterator[Variant]:
    """Yield the variants of other sizes that look wrong, the smallest first."""
    arrays = {i: wide_array(x) if is_inexact(x) else np.asarray(x) for i, x in evidence.subject.arrays_by_place}
    groups, pairs = _groups(evidence, arrays) if max(x.size for x in arrays.values()) <= LARGE else ([], [])
    doubled = [v for group in pairs for v in _resized(evidence, arrays, [group], [2 * _length_of(arrays, group)])]
    odd = [v for v in doubled if differs(evidence, v, used=True)]
    if groups and not odd:
        odd = _grown(evidence, arrays, groups) or [v for v in _shrunk(evidence, arrays, groups) if differs(evidence, v)]
    yield from odd or (_special(evidence, arrays, groups) if groups else ())


def _length_of(arrays: dict[int, np.ndarray], group: list[Axis]) -> int:
    """Return how many elements axes that grow together have."""
    i, axis = group[0]
    return int(arrays[i].shape[axis])


def _grown(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]]) -> list[Variant]:
    """Return the variants with longer axes that are odd: of one group of axes if that is enough, and no longer than need be."""
    given = [_length_of(arrays, group) for group in groups]
    long, together = _together(evidence, arrays, groups, given)
    if not any(differs(evidence, variant) for variant in together):
        return []
    odd = []
    for group, n, most in zip(groups, given, long, strict=True):
        for m in dict.fromkeys((n + 1, most)):
            single = [v for v in _resized(evidence, arrays, [group], [m]) if differs(evidence, v, used=True)]
            if single:
                odd.append(_shortest(evidence, arrays, group, n + 1, single[0], m))
                break
    return odd or [v for v in together if differs(evidence, v, used=True)]


def _together(
    evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]], given: list[int]
) -> tuple[list[int], list[Variant]]:
    """Return lengths of all groups of axes, and the variant with those, if there is one: as long as the program allows."""
    forth = range(len(given))
    tries = (
        (BATCH, LONG, forth),
        (LONG, LONG, forth),
        (LONG, LONG, forth[::-1]),
        (0, 0, forth),
    )  # a window is shorter than what it slides over
    for first, others, places in tries:
        lengths = _lengths(given, first, others, places)
        together = _resized(evidence, arrays, groups, lengths)
        if _gives(together):
            break
    if len(groups) > 1 and together and evidence.measurement.mode == "reverse":
        plain = sum(1 for _ in equations(together[0].rule.jaxpr)) == sum(1 for _ in equations(evidence.rule.closed.jaxpr))
        longer = _lengths(given, BATCH, BATCH, forth)
        wide = _resized(evidence, arrays, groups, longer, WIDE) if plain else []  # what is unrolled takes long to trace
        if _gives(wide) and _held(wide[0].rule) <= HELD:
            return longer, wide
    return lengths, together


def _lengths(given: list[int], first: int, others: int, places: range) -> list[int]:
    """Return a length for each group: of at least so many elements of the one in the first place, and of the others."""
    return [_length(n, i, others if i else first) if others else n + 1 for i, n in zip(places, given, strict=True)]


def _gives(variants: list[Variant]) -> bool:
    """Tell whether the result has elements."""
    return any(all(math.prod(y.shape) for y in v.subject.outputs) for v in variants)


def _shortest(evidence: Evidence, arrays: dict[int, np.ndarray], group: list[Axis], right: int, odd: Variant, wrong: int) -> Variant:
    """Return the odd variant of the least length above one that is right."""
    while wrong - right > 1:
        middle = (right + wrong) // 2
        single = [v for v in _resized(evidence, arrays, [group], [middle]) if differs(evidence, v, used=True)]
        right, wrong, odd = (right, middle, single[0]) if single else (middle, wrong, odd)
    return odd


def _shrunk(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]]) -> Iterator[Variant]:
    """Yield the arguments with axes of one element: all that can grow, then one of one array that is broadcast then.

    Where function and rule are the same programs there, nothing is to be found.
    """
    if _byliteral(evidence.value_jaxpr) or any(x.dtype.kind in "iu" for x in arrays.values()):
        return
    variants = _resized(evidence, arrays, groups, [1] * len(groups))
    shared = [a for group in groups if len({i for i, _ in group}) > 1 and arrays[group[0][0]].shape[group[0][1]] > 1 for a in group]
    for axis, end in itertools.product(sorted({axis for _, axis in shared})[:2], (max, min)):
        one = end(i for i, other in shared if other == axis)  # of the arrays that have it
        broadcast = _resized(evidence, arrays, [[(one, axis)]], [1])
        if not broadcast:
            break  # a rule that sums for one array and axis does so for all
        variants += [v for v in broadcast if [y.shape for y in v.subject.outputs] == [y.shape for y in evidence.subject.outputs]]
    for v in variants:
        if not _byliteral(v.value) and not (_alike(v.rule, evidence.rule.closed) and _alike(v.value, evidence.value_jaxpr)):
            yield v


def _special(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]]) -> Iterator[Variant]:
    """Yield the lengths for which the rule looks wrong, of those for which something else is done than for the others."""
    fixed = _byliteral(evidence.value_jaxpr) or any(x.dtype.kind in "iu" for x in arrays.values())  # by number: not of fewer elements
    each = 1 + min(len(LENGTHS), FURTHER // sum(1 for _ in equations(evidence.rule.closed.jaxpr)))
    each //= len(groups)
    given = _traced(evidence, evidence.subject.with_arrays({})) if each else None
    if given is None:
        return
    run = 0
    for group in groups:
        n = _length_of(arrays, group)
        others = sorted({d for x in arrays.values() for d in x.shape} - {n})[-2:]
        chosen = dict.fromkeys([*others, *(d + by for d in others for by in (1, -1)), *LENGTHS])  # a rule may compare lengths
        lengths = sorted(m for m in list(chosen)[:each] if m > n or (1 < m < n and not fixed))
        said = {n: _profile(given)}
        for m in lengths:
            leaves, _, size = _longer(evidence.subject, arrays, [group], [m])
            closed = _traced(evidence, leaves) if size <= MOST else None
            if closed is None:
                continue
            said[m] = _profile(closed)
            if len(said[m][0]) > 2 * len(said[n][0]):
                break
        for m in _odd_lengths(said, n):
            run += 1
            for v in _resized(evidence, arrays, [group], [m]) if run <= RUN else ():
                if (m > n or not _byliteral(v.value)) and differs(evidence, v, used=m > n):
                    yield v
                    return


def _traced(evidence: Evidence, leaves: list[Any]) -> ClosedJaxpr | None:
    """Trace the rule for a cotangent of ones."""
    subject = evidence.subject.renewed(leaves)

    def pulled(*xs: jax.Array) -> list[Any]:
        ys, back = subject.vjp(xs)
        return back([jnp.ones_like(y) for y in ys])

    try:
        return jaxapi.trace(pulled, *subject.leaves)[0]
    except Exception:  # noqa: BLE001 - whatever it raises: it is not meant for these
        return None


def _profile(closed: ClosedJaxpr) -> tuple[list[str], list[float]]:
    """Return what a program does, and all the numbers in it."""
    words, numbers = [], list[float]()

    def number(value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for part in value:
                number(part)
        elif isinstance(value, (bool, int, float, np.number)):
            numbers.append(float(np.real(value)))

    for eqn in equations(closed.jaxpr):
        words += [eqn.primitive.name, *("" for v in eqn.invars if isinstance(v, jaxapi.Literal))]
        for v in eqn.invars:
            number(literal(v))
        for value in eqn.params.values():
            number(value)
        words.append(str(len(numbers)))
    return words, numbers


def _odd_lengths(said: dict[int, tuple[list[str], list[float]]], n: int) -> list[int]:
    """Return the lengths whose program differs from that of ``n``, one of each kind: its numbers are out of line with the others'."""
    kinds: dict[Any, int] = {}
    alike = []
    for m, (words, _) in said.items():
        if words != said[n][0]:
            kinds.setdefault(tuple(words), m)
        elif m != n:
            alike.append(m)
    if alike:
        rows = np.array([said[m][1] for m in alike])
        with np.errstate(invalid="ignore"):
            slopes = (rows - np.array(said[n][1])) / (np.array(alike)[:, None] - n)
            usual = np.median(slopes, axis=0)
            off = ~((np.abs(slopes - usual) <= 1e-6 * (np.abs(usual) + 1e-6)) | np.isnan(slopes) | (slopes == 0))
        off &= np.mean(off, axis=0) < MAJOR
        for m, row in zip(alike, off, strict=True):
            if row.any():
                kinds.setdefault(row.tobytes(), m)
    return list(kinds.values())


def _byliteral(closed: ClosedJaxpr) -> bool:
    return any(word in eqn.primitive.name for eqn in equations(closed.jaxpr) for word in BY_NUMBER)


def _alike(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Tell whether two programs are the same but for lengths, and look at none."""
    said = [[(e.primitive.name, [literal(v) for v in e.invars]) for e in equations(closed.jaxpr)] for closed in (one, other)]
    return said[0] == said[1] and all(name != "iota" for name, _ in said[0])


def _held(closed: ClosedJaxpr) -> int:
    """Return how many elements the largest array of a program has."""
    return max((math.prod(getattr(v.aval, "shape", ())) for eqn in equations(closed.jaxpr) for v in eqn.outvars), default=0)


def _resized(
    evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]], lengths: list[int], most: int = MOST
) -> list[Variant]:
    """Return the arguments with axes of other lengths, by groups of axes, if the function takes that, and they are not too large."""
    leaves, text, size = _longer(evidence.subject, arrays, groups, lengths)
    grown = [{a: arrays[a[0]].shape[a[1]] for a in group} for group in groups]
    variant = made(evidence, text, leaves, grown) if size <= most or max(lengths) <= LONG else None
    return [] if variant is None else [variant]


def _groups(evidence: Evidence, arrays: dict[int, np.ndarray]) -> tuple[list[list[Axis]], list[list[Axis]]]:
    """Return which axes can grow: alone, where the function takes that, else all of one length together; then those that can double."""
    subject = evidence.subject
    ends = {int(n) for x in arrays.values() if x.dtype.kind in "iu" and x.size for n in (x.max(), x.sum())}  # as pointers have them
    counted = {(i, axis) for i, x in arrays.items() for axis in range(max(x.ndim - 1, 1)) if x.ndim and x.shape[axis] in ends - {1}}  # rows
    rigid = counted | {(i, axis) for i, x in arrays.items() for axis in range(x.ndim) if not _can_grow(x, axis)}
    square = {i for i, x in arrays.items() if _symmetric(x)}
    axes = [(i, axis) for i, x in arrays.items() for axis in range(x.ndim) if x.shape[axis]]

    def takes(group: list[Axis], times: int = 1) -> bool:
        if rigid & set(group):
            return False
        n = _length_of(arrays, group)
        leaves, *_ = _longer(subject, arrays, [group], [times * n + (times == 1)])
        other = subject.renewed(leaves)
        try:
            jax.eval_shape(other.primal, *other.leaves)
        except Exception:  # noqa: BLE001 - whatever it raises: it is not meant for these
            return False
        return True

    groups: list[list[Axis]] = []
    rest = []
    refused: set[tuple[tuple[int, ...], int]] = set()  # what one array cannot, another of its shape is not asked for: raising takes long
    alone = [a for a in axes if arrays[a[0]].shape[a[1]] > 1 and a[0] not in square]
    tries = min(AXES, TRIED // (1 + sum(1 for _ in equations(evidence.value_jaxpr.jaxpr))))
    for a in axes:
        what = arrays[a[0]].shape, a[1]
        if a in alone[:tries] and what not in refused and takes([a]):
            groups.append([a])
        else:
            refused.add(what)
            rest.append(a)
    lengths = sorted({arrays[i].shape[axis] for i, axis in rest})
    for n in lengths:
        together = [a for a in rest if arrays[a[0]].shape[a[1]] == n]
        by_place = [[a for a in together if a[1] == axis] for axis in sorted({axis for _, axis in together})]
        if n == 1 or (len(by_place) > 1 and tries > 1):
            apart = [group for group in by_place if (n == 1 or len(group) > 1) and takes(group)]
            groups += apart
            together = [a for a in together if not any(a in group for group in apart)]
        if n > 1 and together and takes(together):
            groups.append(together)
    grouped = {a for group in groups for a in group}
    left = [[a] for a in axes if a not in grouped and arrays[a[0]].shape[a[1]] > 1]
    return groups, [group for group in left[:DOUBLED] if takes(group, 2)]


def _can_grow(x: np.ndarray, axis: int) -> bool:
    """Tell whether an array has more elements of its kind: not integers that are all different, but for permutations; nor keys."""
    if x.dtype.kind not in "iufcb" or x.dtype == np.uint32:
        return False
    distinct = x.dtype.kind in "iu" and x.shape[axis] > 1 and np.unique(x).size == x.size
    return not distinct or (x.ndim == 1 and np.array_equal(np.sort(x), np.arange(x.size)))


def _longer(subject: Subject, arrays: dict[int, np.ndarray], groups: list[list[Axis]], lengths: list[int]) -> tuple[list[Any], str, int]:
    """Return the leaves with the axes of each group of another length, what was done, in words, and the size of the largest."""
    targets: dict[int, dict[int, int]] = {}
    for group, m in zip(groups, lengths, strict=True):
        for i, axis in group:
            targets.setdefault(i, {})[axis] = m
    size = max(math.prod(of.get(axis, n) for axis, n in enumerate(arrays[i].shape)) for i, of in targets.items())
    grown = {}
    for i, of in targets.items():
        x = arrays[i]
        kept = _symmetric(x)
        for axis, m in sorted(of.items()):
            x = _extended(x, axis, m, i) if m > x.shape[axis] else np.take(x, range(m), axis)
        n = arrays[i].shape[0] if x.ndim else 0
        if kept and len(of) == x.ndim == 2 and x.shape[0] > n:
            x[n:, :n] = x[:n, n:] = 0
            x[n:, n:] = np.diag(np.resize(np.diagonal(arrays[i]), x.shape[0] - n))
        grown[i] = x
    names = dict(zip(subject.places, subject.names, strict=True))
    shapes = [f"{names[i]} of shape {x.shape}" for i, x in sorted(grown.items()) if i in names]
    return subject.with_arrays(grown), " and ".join(shapes) or "other sizes", size


def _length(n: int, place: int, least: int) -> int:
    """Return a length that is longer, odd where ``n`` is even, no multiple of four, and another one for each group."""
    m = max(n + 1, least + (n + least + 1) % 2) + 4 * place
    return m if m % 4 else m + 2


def _extended(x: np.ndarray, axis: int, m: int, seed: int) -> np.ndarray:
    """Return an array with more elements along an axis, which lie between those that are there."""
    n = x.shape[axis]
    if x.dtype.kind in "iu" and x.ndim == 1 and np.array_equal(np.sort(x), np.arange(n)) and n > 1:
        return np.concatenate([x, np.arange(n, m).astype(x.dtype)])
    rows = np.moveaxis(x, axis, 0)
    steps = np.diff(rows, axis=0) if x.dtype.kind == "f" else None
    if x.dtype.kind in "iu" and n > 1 and np.all(rows[1:] >= rows[:-1]):
        more = rows[np.full(m - n, n - 1)]
    elif steps is not None and x.ndim == 1 and n > 2 and (np.all(steps > 0) or np.all(steps < 0)):
        return np.asarray(np.interp(np.linspace(0, n - 1, m), np.arange(n), x))
    elif x.dtype.kind in "iub":
        more = rows[np.arange(n, m) % n]
    else:
        rng = np.random.default_rng((seed, axis, n))
        first, second = rows[np.arange(n, m) % n], rows[(np.arange(n, m) + 1) % n]
        share = rng.uniform(0.1, 0.9, first.shape)
        more = first * share + second * (1 - share) if n > 1 else first * (1 + 0.1 * rng.uniform(-1, 1, first.shape))
    return np.moveaxis(np.concatenate([rows, more.astype(rows.dtype)]), 0, axis)


def _symmetric(x: np.ndarray) -> bool:
    square = x.dtype.kind in "fc" and x.ndim == 2 and x.shape[0] == x.shape[1] > 1
    return square and bool(np.allclose(x, x.T.conj(), rtol=1e-6, atol=0))
