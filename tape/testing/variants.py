"""Arguments of other sizes, with other masks and in other branches: a rule may be right for those that were given by accident.

Axes grow, alone where the function lets them, else all of one length together: what picks elements by number stays where it was. The
new elements lie between those that are there; sorted ones stay sorted, symmetric matrices symmetric, permutations permutations. Axes shrink
to one element, too, unless the function takes elements by number, and so does one of one array alone, which is broadcast then. What raises
there says nothing, for a function may be meant for one size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr
from tape.testing.evidence import Evidence
from tape.testing.executables import signature
from tape.testing.judgement import is_of_jax
from tape.testing.measurement import Measurement, user_rules
from tape.testing.precise import equations
from tape.testing.probes import NUDGE, Probes, wide_array
from tape.testing.subject import Subject

LONG = 17  # an axis of at least so many elements is longer than blocks and unrolled loops are
BATCH = 129  # of the first axis that grows, where that is not too many
MOST = 1 << 12  # elements of an array with long axes
LARGE = 1 << 14  # elements of an array that does not grow
AXES = 8  # that are tried alone
BY_NUMBER = ("dynamic", "gather", "scatter", "conv")  # in names of primitives that take other elements of an axis too short for them
TRIED = 400  # equations that are traced in doing so
GROWN = 2  # times as many equations: where sizes are unrolled, compiling takes long
CLEAR = 1e-3  # relative; what is less wrong elsewhere may be a matter of rounding, and is not looked into

Axis = tuple[int, int]  # the number of an array, and of an axis
_SEEN: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()  # what was found right, for functions that live on


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """Other arguments of a subject, in words, with its jaxprs there.

    ``grown`` has the axes that grew together, with how many elements were given.
    """

    text: str
    subject: Subject
    value: Any
    rule: Any
    grown: list[dict[Axis, int]]


def odd_ones(evidence: Evidence) -> Iterator[Variant]:
    """Yield variants where rule and reference differ at first sight, the smallest first."""
    if not _asked(evidence):
        return
    subject = evidence.subject
    key = (signature(evidence.rule.closed.jaxpr), tuple((x.shape, str(x.dtype)) for x in subject.arrays))
    seen = _seen(subject.owner)
    if key in seen:
        return
    odd = [variant for variant in (*_masked(evidence), *_branched(evidence)) if _differs(evidence, variant)]
    arrays = {i: np.asarray(x) if not jnp.issubdtype(x.dtype, jnp.inexact) else wide_array(x) for i, x in subject.arrays_by_place}
    groups = _groups(evidence, arrays) if max(x.size for x in arrays.values()) <= LARGE else []
    if not odd and groups:
        odd = _grown(evidence, arrays, groups)
    if not odd and groups:
        odd = [v for v in _shrunk(evidence, arrays, groups) if _differs(evidence, v)]
    if odd:
        yield from odd
    else:
        seen.add(key)


def _asked(evidence: Evidence) -> bool:
    """Tell whether there is a rule of the user's, and a reference to hold it against."""
    subject = evidence.subject
    if evidence.untraced or evidence.by_differences or evidence.large or evidence.iterates or evidence.measurement.believed is not None:
        return False
    if not evidence.explore or evidence.value.opaque or evidence.rule.opaque:
        return False
    return subject.own_vjp is not None or not all(map(is_of_jax, user_rules(evidence.value_jaxpr)))


def _seen(owner: Any) -> set[Any]:
    try:
        return _SEEN.setdefault(owner, set())
    except TypeError:  # no weak reference to it
        return set()


def _made(evidence: Evidence, text: str, leaves: list[Any], grown: list[dict[Axis, int]]) -> Variant | None:
    """Trace function and rule there; None where one of them raises."""
    subject = evidence.subject.renewed(leaves)
    traced = [x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in subject.leaves]
    n = len(traced)

    def pulled(*a: jax.Array) -> tuple[jax.Array, ...]:
        ys, gs = subject.pull(a[:n], a[n:])
        return (*ys, *gs)

    try:
        value, shapes = jaxapi.trace(subject.primal, *traced)
        rule, returned = jaxapi.trace(pulled, *traced, *shapes)
    except Exception:  # noqa: BLE001 - whatever it raises: it is not meant for these
        return None
    if [a.shape for a in returned[len(shapes) :]] != [x.shape for x in traced]:
        return None
    if sum(1 for _ in equations(rule.jaxpr)) > GROWN * sum(1 for _ in equations(evidence.rule.closed.jaxpr)):
        return None
    subject.first, subject.outputs = value, list(shapes)
    return Variant(text, subject, value, rule, grown)


def _differs(evidence: Evidence, variant: Variant, *, used: bool = False) -> bool:
    """Tell whether rule and reference differ by more than conditioning explains; if ``used``, where the function reads what is new."""
    subject = variant.subject
    value, rule = (evidence.precise(closed) for closed in (variant.value, variant.rule))
    measurement = Measurement(value, len(subject.outputs), rule, kind="first", parts=[value])
    if evidence.measurement.mode == "forward":
        measurement.use_forward()
    probes = Probes(subject.leaves, subject.outputs, evidence.seed, explore=False, domains=[None] * len(subject.leaves))
    x, ct = probes.points[0], probes.cotangents[0]
    try:
        rows = measurement.compare([x, [a * (1 + NUDGE) for a in x]], [ct, ct])
    except Exception:  # noqa: BLE001 - as above
        return False
    if not all(np.all(np.isfinite(y)) for y in rows["y"]):
        return False
    if used and not all(_reads(subject, [r[0] for r in rows["r"]], group) for group in variant.grown):
        return False
    return any(_apart(r[0], r[1], g[0]) for r, g in zip(rows["r"], rows["g"], strict=True))


def _reads(subject: Subject, gradients: list[np.ndarray], group: dict[Axis, int]) -> bool:
    """Tell whether the function depends on what is new: one that picks elements by number is meant for one size."""
    differentiated = [(subject.places.index(i), axis, n) for (i, axis), n in group.items() if i in subject.places]
    return not differentiated or any(np.any(np.moveaxis(gradients[k], axis, 0)[n:]) for k, axis, n in differentiated)


def _apart(r: np.ndarray, twin: np.ndarray, g: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        size = np.sqrt(np.mean(np.abs(np.where(np.isfinite(r), r, 0)) ** 2)) if r.size else 0.0
        slack = CLEAR * (np.abs(r) + 1e-2 * size) + 20 * np.nan_to_num(np.abs(r - twin))
        return bool(np.any(np.isfinite(r) & ~(np.abs(g - r) <= slack)))


# masks ----------------------------------------------------------------------------------------------------------------


def _masked(evidence: Evidence) -> Iterator[Variant]:
    """Other masks of the same shapes: mixed ones, all true, all false."""
    subject = evidence.subject
    masks = {i: np.asarray(x) for i, x in subject.arrays_by_place if x.dtype == bool and x.size}
    if not masks:
        return
    mixed = {i: np.arange(m.size).reshape(m.shape) % 3 != 1 for i, m in masks.items()}
    alone = all(m.size == 1 for m in masks.values())
    options = (
        *([] if alone else [("mixed", mixed)]),
        *((str(v).lower(), {i: np.full(m.shape, v) for i, m in masks.items()}) for v in (True, False)),
    )
    for text, other in options:
        if any(not np.array_equal(other[i], m) for i, m in masks.items()):
            variant = _made(
                evidence, f"the mask {text}" if alone or text == "mixed" else f"the mask all {text}", subject.with_arrays(other), []
            )
            if variant is not None:
                yield variant


# branches -------------------------------------------------------------------------------------------------------------


def _branched(evidence: Evidence) -> Iterator[Variant]:
    """Other numbers for the integers by which a branch may be chosen."""
    branches = [len(eqn.params["branches"]) for eqn in equations(evidence.value_jaxpr.jaxpr) if eqn.primitive.name == "cond"]
    numbers = {i: int(x) for i, x in evidence.subject.arrays_by_place if x.dtype.kind in "iu" and x.shape == ()} if branches else {}
    for i, other in itertools.product(numbers, range(min(max(branches, default=0), AXES))):
        if other != numbers[i]:
            leaves = evidence.subject.with_arrays({i: np.asarray(other)})
            variant = _made(evidence, f"the integer {other} instead of {numbers[i]}", leaves, [])
            if variant is not None:
                yield variant


# sizes ----------------------------------------------------------------------------------------------------------------


def _grown(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]]) -> list[Variant]:
    """Return the variants with longer axes that are odd: of one group of axes if that is enough, and no longer than need be."""
    given = [arrays[group[0][0]].shape[group[0][1]] for group in groups]
    for least in (BATCH, LONG, 0):
        long = [_length(n, place, least) if least else n + 1 for place, n in enumerate(given)]
        together = _resized(evidence, arrays, groups, long)
        if together:
            break
    if not any(_differs(evidence, variant) for variant in together):
        return []
    odd = []
    for group, n, most in zip(groups, given, long, strict=True):
        for m in dict.fromkeys((n + 1, most)):
            single = [v for v in _resized(evidence, arrays, [group], [m]) if _differs(evidence, v, used=True)]
            if single:
                odd.append(_shortest(evidence, arrays, group, n + 1, single[0], m))
                break
    return odd or [v for v in together if _differs(evidence, v, used=True)]


def _shortest(evidence: Evidence, arrays: dict[int, np.ndarray], group: list[Axis], right: int, odd: Variant, wrong: int) -> Variant:
    """Return the odd variant of the least length above one that is right."""
    while wrong - right > 1:
        middle = (right + wrong) // 2
        single = [v for v in _resized(evidence, arrays, [group], [middle]) if _differs(evidence, v, used=True)]
        right, wrong, odd = (right, middle, single[0]) if single else (middle, wrong, odd)
    return odd


def _shrunk(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]]) -> Iterator[Variant]:
    """Yield the arguments with axes of one element: all that can grow, then one of one array that is broadcast then.

    Where function and rule are the same programs there, nothing is to be found.
    """
    if _by_number(evidence.value_jaxpr) or any(x.dtype.kind in "iu" for x in arrays.values()):
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
        if not _by_number(v.value) and not (_alike(v.rule, evidence.rule.closed) and _alike(v.value, evidence.value_jaxpr)):
            yield v


def _by_number(closed: ClosedJaxpr) -> bool:
    return any(word in eqn.primitive.name for eqn in equations(closed.jaxpr) for word in BY_NUMBER)


def _alike(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Tell whether two programs are the same but for lengths, and look at none."""
    said = [[(e.primitive.name, [_number(v) for v in e.invars]) for e in equations(closed.jaxpr)] for closed in (one, other)]
    return said[0] == said[1] and all(name != "iota" for name, _ in said[0])


def _number(atom: Any) -> float | None:
    return float(np.real(atom.val)) if isinstance(atom, jaxapi.Literal) and not np.ndim(atom.val) else None


def _resized(evidence: Evidence, arrays: dict[int, np.ndarray], groups: list[list[Axis]], lengths: list[int]) -> list[Variant]:
    """Return the arguments with axes of other lengths, by groups of axes, if the function takes that, and they are not too large."""
    leaves, text, size = _longer(evidence.subject, arrays, groups, lengths)
    grown = [{a: arrays[a[0]].shape[a[1]] for a in group} for group in groups]
    variant = _made(evidence, text, leaves, grown) if size <= MOST or max(lengths) <= LONG else None
    return [] if variant is None else [variant]


def _groups(evidence: Evidence, arrays: dict[int, np.ndarray]) -> list[list[Axis]]:
    """Return which axes can grow: alone, where the function takes that, else all of one length together."""
    subject = evidence.subject
    ends = {int(n) for x in arrays.values() if x.dtype.kind in "iu" and x.size for n in (x.max(), x.sum())}  # as pointers have them
    rigid = {(i, axis) for i, x in arrays.items() for axis in range(x.ndim) if not _can_grow(x, axis) or x.shape[axis] in ends - {1}}
    square = {i for i, x in arrays.items() if _symmetric(x)}
    axes = [(i, axis) for i, x in arrays.items() for axis in range(x.ndim) if x.shape[axis]]

    def takes(group: list[Axis]) -> bool:
        if rigid & set(group):
            return False
        leaves, *_ = _longer(subject, arrays, [group], [arrays[group[0][0]].shape[group[0][1]] + 1])
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
        if n > 1:
            if takes(together):
                groups.append(together)
            continue
        by_place = [[a for a in together if a[1] == axis] for axis in sorted({axis for _, axis in together})]
        groups += [group for group in by_place if takes(group)]
    return groups


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
    least = LONG if place else least
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
