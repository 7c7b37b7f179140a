"""Other integers and masks: a rule may be right for those that were given by accident.

They become inputs of one program, so that trying one costs a run; where a function looks at their values, it is traced anew for each. What
the given ones have in common may be meant: an array of several is tried with numbers between theirs and zero, sorted ones stay sorted,
permutations permutations, and unique ones unique where elements are overwritten, or a promise says so. Elements are counted from the end,
and beyond it, only where the function says what that means; else its value is taken for undefined there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, Jaxpr
from tape.ops.jaxprs import held_by
from tape.testing.evidence import Evidence
from tape.testing.measurement import Measurement
from tape.testing.precise import Precise, equations, inner
from tape.testing.probes import Probes
from tape.testing.subject import Subject
from tape.testing.variants import BY_NUMBER, LAYOUT, Variant, apart, differs, made, measured

TRIED = 96  # choices that one program is run for
TRACED = 6  # that are traced, each by itself
SHOWN = 8  # integers that are written down
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "max", "min", "clamp")
_CLIP, _PROMISE = jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS

Choice = tuple[str, dict[int, np.ndarray]]


def other_integers(evidence: Evidence) -> Iterator[Variant]:
    """Yield the variants with other integers or masks that look wrong."""
    subject = evidence.subject
    given = subject.integers
    if not given:
        return
    probes = Probes(subject.leaves, subject.outputs, evidence.seed, explore=False, domains=[None] * len(subject.leaves))
    together = _together(evidence, list(given.values()))
    programs = (evidence.value_jaxpr, evidence.rule.closed) if together is None else tuple(part.closed for part in together[1])
    choices = [*_masks(given), *_integers(subject, given, *programs, fixed=together is not None)]
    for text, choice in choices[: TRACED if together is None else TRIED]:
        others = _with_inverses(given, choice)
        if together is not None:
            measurement, parts = together
            for part in parts:
                numbers = (others.get(i, x) for i, x in given.items())
                dtypes = [a.dtype for a in part.closed.in_avals]
                part.consts[len(part.closed.consts) :] = map(np.asarray, numbers, dtypes)
            if not apart(measurement, probes, []):
                continue
        variant = made(evidence, text, subject.with_arrays(others), [])
        if variant is not None and [y.shape for y in variant.subject.outputs] and differs(evidence, variant):
            yield dataclasses.replace(variant, noted=_emptied(given, others))
            if not _emptied(given, others):
                return


class _Numbered(Precise):
    """Evaluates a jaxpr whose first inputs are integers, which stand behind its constants."""

    def __call__(self, *inputs: jax.Array) -> list[Any]:
        n = len(self.closed.consts)
        return self._run(self.closed.jaxpr, self.consts[:n], [*self.consts[n:], *map(self._wide, inputs)])


class _Guarded(_Numbered):
    """Has no value where an element is asked for that is not there, unless the function says which one that is then."""

    def _apply(self, eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        results = super()._apply(eqn, inputs)
        outside = None if inner(eqn) is not None else _outside(eqn, inputs)
        if outside is None:
            return results
        return [jnp.where(outside, jnp.nan, y) if jnp.issubdtype(y.dtype, jnp.inexact) else y for y in results]


def _outside(eqn: Any, inputs: list[Any]) -> Any:
    """Return whether any index is beyond the end of its axis; None where it cannot be, or that is defined."""
    name, params = eqn.primitive.name, eqn.params
    shape = np.shape(inputs[0]) if inputs else ()
    if name == "dynamic_slice":
        alone = [(start, d) for start, d, n in zip(inputs[1:], shape, params["slice_sizes"], strict=True) if n == 1 < d]
        return jnp.any(jnp.stack([(start < 0) | (start >= d) for start, d in alone])) if alone else None
    if name == "gather" and params["mode"] == _PROMISE:
        axes = params["dimension_numbers"].start_index_map
        ends = np.array([shape[d] - params["slice_sizes"][d] for d in axes])
    elif name.startswith("scatter") and params["mode"] != _CLIP:
        axes = params["dimension_numbers"].scatter_dims_to_operand_dims
        ends = np.array([shape[d] - 1 for d in axes])
    else:
        return None
    return jnp.any((inputs[1] < 0) | (inputs[1] > ends))


def _together(evidence: Evidence, given: list[Any]) -> tuple[Measurement, list[_Numbered]] | None:
    """Trace function and rule with the integers as inputs; None where they are looked at."""
    subject, traced = evidence.subject, evidence.traced
    n, m = len(given), len(traced)

    def with_numbers(a: Sequence[Any]) -> Subject:
        leaves = list(subject.with_arrays({}))
        for i, x in zip(subject.integers, a[:n], strict=True):
            leaves[i] = x
        return subject.renewed(leaves)

    def value(*a: Any) -> list[Any]:
        return with_numbers(a).primal(*a[n:])

    def rule(*a: Any) -> tuple[Any, ...]:
        return tuple(itertools.chain(*with_numbers(a).pull(a[n : n + m], a[n + m :])))

    try:
        parts = [
            _Guarded(jaxapi.trace(value, *given, *traced)[0]),
            _Numbered(jaxapi.trace(rule, *given, *traced, *evidence.shapes)[0]),
        ]
    except Exception:  # noqa: BLE001 - whatever it raises: it looks at values
        return None
    for part in parts:
        part.further, part.most = evidence.value.further, evidence.value.most
        part.consts += given
    return measured(evidence, *parts, kind="integers"), parts


def _masks(given: dict[int, np.ndarray]) -> Iterator[Choice]:
    """Yield other masks of the same shapes: mixed ones, all true, all false."""
    masks = {i: m for i, m in given.items() if m.dtype == bool and m.size}
    alone = all(m.size == 1 for m in masks.values())
    mixed = {i: np.arange(m.size).reshape(m.shape) % 3 != 1 for i, m in masks.items()}
    options = [] if alone else [("mixed", mixed)]
    options += [(str(v).lower(), {i: np.full(m.shape, v) for i, m in masks.items()}) for v in (True, False)]
    for text, other in options:
        if any(not np.array_equal(other[i], m) for i, m in masks.items()):
            yield f"the mask {text}" if alone or text == "mixed" else f"the mask all {text}", other


def _emptied(given: dict[int, np.ndarray], others: dict[int, np.ndarray]) -> bool:
    """Tell whether a mask keeps nothing in some row (or drops nothing: nobody knows which is which), and the given one does in each."""
    masks = [(m, others[i]) for i, m in given.items() if m.dtype == bool and m.ndim > 1 and i in others]
    return any(of.any(-1).all() and not other.any(-1).all() for m, o in masks for of, other in ((m, o), (~m, ~o)))


def _integers(subject: Subject, given: dict[int, np.ndarray], value: ClosedJaxpr, rule: ClosedJaxpr, *, fixed: bool) -> Iterator[Choice]:
    """Yield other integers: numbers near by, the first and the last, those that the programs compare with, and repeated ones.

    The programs' constants are fixed where the given integers are none of them.
    """
    numbers = {i: x for i, x in given.items() if x.dtype.kind in "iu" and x.size}
    both = [*equations(value.jaxpr), *equations(rule.jaxpr)]
    asked = {*_compared(value.jaxpr)}
    compared = asked | {*_compared(rule.jaxpr)}
    beside = {n for c in compared for n in (c - 1, c + 1) if c >= 0}  # one below zero is a flag, those beside it are none
    named = compared | {n for n in beside if n >= 0 or 0 in asked}  # nor is what the rule alone guards against
    named |= {k for eqn in both if eqn.primitive.name == "cond" for k in range(min(len(eqn.params["branches"]), SHOWN))}
    names = {eqn.primitive.name for eqn in equations(value.jaxpr)}
    signed = "rem" in names or not any(word in name for word in BY_NUMBER for name in names)
    if "while" in names:  # counting down from below zero, a loop need not end
        signed, named = False, {c for c in named if c >= 0}
    ends = [*_matched(value.jaxpr)]
    unique = _overwrites(value.jaxpr, unasked=True, fixed=fixed) or _overwrites(rule.jaxpr, unasked=False, fixed=fixed)
    lengths = sorted({d for x in subject.leaves for d in x.shape})[:4]
    for i, x in numbers.items():
        end = min(n for n in (*ends, np.iinfo(x.dtype).max + 1) if n > x.max())
        below = x[x < 0]
        from_end = below.size > 0 and bool(np.all(below >= -max(lengths, default=0)))  # else they are flags
        few = [0, 1, 2, *(d - 1 for d in lengths), *(-1, -2) * (signed or from_end)]
        if _bounded(value):
            few += [d + 2 for d in lengths]
        if x.size == 1:
            v = int(x.reshape(()))
            near = [n for n in (v + 1, v - 1, *few, *((-v,) if signed else ())) if n >= 0 or signed or v < 0]
            for other in dict.fromkeys([*near, *sorted(named)]):
                if other != v and _fits(other, x.dtype, end):
                    yield f"the integer {other} instead of {v}", {i: np.full(x.shape, other)}
            continue
        if _pointers(x, lengths):
            continue
        if _is_permutation(x, lengths):  # one that is no inverse of itself, if it has three elements
            cycle = np.roll(np.arange(x.size, dtype=x.dtype), -1)
            yield _in_words(x, cycle), {i: cycle}
        between = [n for n in few if min(0, int(x.min())) <= n <= int(x.max())] + ([d + 2 for d in lengths] if _bounded(value) else [])
        for n in () if unique or _is_permutation(x, lengths) else dict.fromkeys([*sorted(named), *between, *(d - 1 for d in lengths)]):
            if _fits(n, x.dtype, end):
                y = x.copy()
                y.flat[x.size // 2] = n
                yield _in_words(x, y), {i: np.sort(y, None) if _is_sorted(x) else y}
    for order in _orders(max((x.size for x in numbers.values()), default=0), repeat=not unique):
        for which in (*([i] for i in numbers), list(numbers)) if len(numbers) > 1 else ([*numbers],):
            moved = {}
            for i in which:
                x = numbers[i]
                if x.size < 2 or _pointers(x, lengths) or (_is_permutation(x, lengths) and len(set(order)) < len(order)):
                    continue
                y = x.ravel()[np.asarray(order[: x.size]) % x.size].reshape(x.shape)
                moved[i] = np.sort(y, None) if _is_sorted(x) and not _is_permutation(x, lengths) else y
            if any(not np.array_equal(y, numbers[i]) for i, y in moved.items()):
                yield ", and ".join(_in_words(numbers[i], y) for i, y in moved.items()), moved
    for i, x in [] if unique else [*numbers.items()][1:]:
        first = next(iter(numbers.values()))
        if x.shape == first.shape and x.size > 1:
            yield "the same integers in two arguments", {i: first}


def _with_inverses(given: dict[int, np.ndarray], others: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return a choice in which permutations that were each other's inverses still are: a rule may rely on it."""
    kept = dict(others)
    for (i, p), (j, q) in itertools.combinations(given.items(), 2):
        if p.shape == q.shape and p.dtype.kind in "iu" and _is_permutation(p, [p.size]) and np.array_equal(q, np.argsort(p)):
            moved, other = (j, i) if i not in kept else (i, j)
            if moved in kept:
                kept[other] = np.argsort(kept[moved]).astype(given[other].dtype)
    return kept


def _orders(size: int, *, repeat: bool) -> Iterator[list[int]]:
    """Yield which element of the given ones is taken in each place."""
    places = list(range(size))
    if repeat:
        yield [k // 2 * 2 for k in places]
        yield [0] * size
        yield [k // 3 * 3 for k in places]
        yield [min(k, size - 2) for k in places]
    yield places[::-1]
    yield [*places[1:], *places[:1]]


def _in_words(x: np.ndarray, y: np.ndarray) -> str:
    """Say in words what is special about integers."""
    repeated = np.unique(y).size < y.size and np.unique(x).size == x.size
    what = "repeated integers" if repeated else "the integers"
    return f"{what} {y.tolist()}" if y.size <= SHOWN else f"{'repeated' if repeated else 'other'} integers"


def _fits(n: int, dtype: np.dtype, end: int) -> bool:
    return bool(np.iinfo(dtype).min <= n < end)


def _is_sorted(x: np.ndarray) -> bool:
    return x.ndim == 1 and bool(np.all(x[1:] >= x[:-1]))


def _is_permutation(x: np.ndarray, lengths: list[int]) -> bool:
    return x.ndim == 1 and x.size > 1 and x.size in lengths and np.array_equal(np.sort(x), np.arange(x.size))


def _pointers(x: np.ndarray, lengths: list[int]) -> bool:
    """Tell whether they are where rows of a sparse matrix begin and end."""
    return _is_sorted(x) and x[0] == 0 and int(x[-1]) in lengths


def _bounded(closed: ClosedJaxpr) -> bool:
    """Tell whether a function says what elements beyond the end of an axis are."""
    for eqn in equations(closed.jaxpr):
        name, params = eqn.primitive.name, eqn.params
        if name in {"rem", "clamp"} or params.get("mode") == _CLIP or (name == "gather" and params["mode"] != _PROMISE):
            return True
        if name == "dynamic_slice" and any(1 < n < d for n, d in zip(params["slice_sizes"], eqn.invars[0].aval.shape, strict=True)):
            return True
    return False


def _matched(jaxpr: Jaxpr) -> Iterator[int]:
    """Yield the lengths of the ranges in which a program looks for an integer, as ``one_hot`` does: what is beyond them is no index."""
    ends: dict[Any, int] = {}
    for eqn in equations(jaxpr):
        of = [ends[v] for v in eqn.invars if not isinstance(v, jaxapi.Literal) and v in ends]
        if eqn.primitive.name == "iota":
            ends[eqn.outvars[0]] = eqn.params["shape"][eqn.params["dimension"]]
        elif of and eqn.primitive.name in (*LAYOUT, "convert_element_type"):
            ends[eqn.outvars[0]] = of[0]
        elif eqn.primitive.name == "eq" and len(of) == 1:
            yield of[0]


def _overwrites(jaxpr: Jaxpr, *, unasked: bool, fixed: bool) -> bool:
    """Tell whether a program needs places that are given to it unique: it promises that they are, or overwrites (unasked) what is there."""
    own = set[Any](jaxpr.constvars if fixed else ())  # those of ``x.at[1:].add(y)`` are unique, whatever is given
    for eqn in equations(jaxpr):
        given = [v for v in eqn.invars if not isinstance(v, jaxapi.Literal) and v not in own]
        if (eqn.params.get("unique_indices") or (unasked and eqn.primitive.name == "scatter")) and eqn.invars[1] in given:
            return True
        (own.difference_update if given else own.update)(eqn.outvars)
        called = inner(eqn)
        for v, x in zip(() if called is None else called.jaxpr.invars, eqn.invars, strict=False):
            (own.discard if x in given else own.add)(v)
    return False


def _compared(jaxpr: Jaxpr) -> Iterator[int]:
    """Yield the integers that a program compares with, but for the zero by which an index is counted from the end."""
    made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        for held in held_by(eqn):
            yield from _compared(held)
        if eqn.primitive.name not in COMPARED or not all(np.issubdtype(getattr(v.aval, "dtype", bool), np.integer) for v in eqn.invars):
            continue
        literals = [int(v.val) for v in eqn.invars if isinstance(v, jaxapi.Literal) and not np.ndim(v.val)]
        users = [user for user in jaxpr.eqns if eqn.outvars[0] in [v for v in user.invars if not isinstance(v, jaxapi.Literal)]]
        added = [
            made_by[v].primitive.name == "add"
            for user in users
            for v in user.invars
            if not isinstance(v, jaxapi.Literal) and v in made_by and made_by[v] is not eqn
        ]
        if eqn.primitive.name != "lt" or not any(added):
            yield from literals
