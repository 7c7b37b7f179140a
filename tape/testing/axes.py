"""Arguments with one axis more or less: a batch of what was given, or a single row of it.

Only where the function takes each entry of that first axis by itself: its results have the axis, too, and the entry that was given has the
value that it had. One formula for all numbers of axes may be meant for those that are given: what is wrong there is noted only, unless the
function goes element by element, or the rule does something more for other numbers of axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr
from tape.testing.evidence import Evidence
from tape.testing.precise import equations
from tape.testing.probes import wide_array
from tape.testing.subject import is_inexact
from tape.testing.variants import CLEAR, LAYOUT, Variant, differs, made

MOST = 1 << 12  # elements
_NAMES = ("axes", "axis", "dimension", "dimensions", "dimension_numbers")  # of parameters that name axes


def other_axes(evidence: Evidence) -> Iterator[Variant]:
    """Yield the variants with other numbers of axes that look wrong."""
    subject = evidence.subject
    arrays = {i: wide_array(x) if is_inexact(x) else np.asarray(x) for i, x in subject.arrays_by_place}
    names = dict(zip(subject.places, subject.names, strict=True))
    plain = _each_by_itself(evidence.value_jaxpr)
    n = next(m for m in itertools.count(2) if all(m not in x.shape for x in arrays.values()))
    for chosen in dict.fromkeys((tuple(arrays), subject.places[:1])):
        given = {i: arrays[i] for i in chosen}
        for more in (True, False):
            if sum(x.size for x in given.values()) > MOST or (not more and not all(x.ndim and x.size for x in given.values())):
                continue
            others = {i: _stacked(x, n) if more else x[0] for i, x in given.items()}
            text = " and ".join(f"{names[i]} of shape {x.shape}" for i, x in others.items() if i in names)
            variant = made(evidence, text, subject.with_arrays(others), [])
            if variant is None:
                continue
            fewer, longer = (subject, variant.subject) if more else (variant.subject, subject)
            if any(z.shape[1:] != y.shape or z.ndim == y.ndim for y, z in zip(fewer.outputs, longer.outputs, strict=True)):
                continue
            if plain and _numbers(variant.rule) == _numbers(evidence.rule.closed) and _each_by_itself(variant.rule):
                continue
            if differs(evidence, variant) and _by_itself(evidence, variant, more=more):
                noted = not plain and _steps(variant.rule) <= _steps(evidence.rule.closed)
                yield Variant(variant.text, variant.subject, variant.value, variant.rule, [], noted=noted)
                return


def _stacked(x: np.ndarray, n: int) -> np.ndarray:
    """Return an array with a further first axis, along which what is first is given."""
    if x.dtype.kind not in "fc":
        return np.stack([x] * n)
    shares = np.random.default_rng(n).uniform(0.9, 1.1, (n - 1, *x.shape))
    return np.concatenate([x[None], x * shares]) if n > 1 else x[None]


def _by_itself(evidence: Evidence, variant: Variant, *, more: bool) -> bool:
    """Tell whether the first entry has the value that it has among the others."""
    first = jaxapi.jaxpr_as_fun(evidence.value_jaxpr)(*evidence.traced)
    other = jaxapi.jaxpr_as_fun(variant.value)(
        *[x.astype(t) for x, t in zip(variant.subject.leaves, evidence.value_jaxpr.in_avals, strict=True)]
    )
    pairs = [(wide_array(y), wide_array(z)[0]) if more else (wide_array(y)[0], wide_array(z)) for y, z in zip(first, other, strict=True)]
    return all(np.all(np.abs(y - z) <= CLEAR * (np.abs(y) + np.abs(y).max(initial=0))) for y, z in pairs)


def _each_by_itself(closed: ClosedJaxpr) -> bool:
    """Tell whether a program goes element by element: it names no axes."""
    named = [eqn.params.get(name) for eqn in equations(closed.jaxpr) for name in _NAMES]
    return all(str(value) in {"None", "()", "[]"} for value in named)


def _numbers(closed: ClosedJaxpr) -> list[list[str]]:
    """Return what is done, with the numbers in it."""
    return [[e.primitive.name, *(str(v.val) for v in e.invars if isinstance(v, jaxapi.Literal))] for e in equations(closed.jaxpr)]


def _steps(closed: ClosedJaxpr) -> int:
    """Count what is done, but for how arrays are laid out."""
    return sum(eqn.primitive.name not in LAYOUT for eqn in equations(closed.jaxpr))
