"""Reasons: why something is compiled, by comparison with the nearest that was compiled before."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import numpy as np

from tape.accounts.records import Change, Line, Site
from tape.bounded import Bounded
from tape.configuration import Configuration, configuration
from tape.graph.trie import Step
from tape.jaxapi import Literal
from tape.ops.jaxprs import held_by
from tape.ops.kernel import Kernel
from tape.terminal import placed

_PERIOD = 512  # ops in a turn of a loop, at most
_COMPARED = 256  # primitives of an op that are compared one by one
_SOME = 4  # structures after which they begin to be compared
_PLAIN = (int, float, complex, str, bytes, tuple, type(None), np.dtype, np.generic)  # values of parameters that are shown


_Params = tuple[tuple[object, str, int], ...]  # name or position, value in words, and what tells it from others


class _Met(NamedTuple):
    """What is known of the entries of any structure: what they are called, where they were recorded first, and what each reads."""

    names: tuple[str, ...]
    lines: tuple[Line | None, ...]
    avals: tuple[Any, ...]

    @classmethod
    def of(cls, entries: Sequence[Step]) -> _Met:
        """Return it of some entries."""
        return cls(tuple([e.kernel.name for e in entries]), tuple([e.where for e in entries]), tuple([e.kernel.in_avals for e in entries]))


class _Structure(NamedTuple):
    """What is known of a program that was compiled."""

    met: _Met
    leaves: tuple[Any, ...]
    kernels: tuple[Kernel, ...]
    params: tuple[_Params, ...]  # not the ops, which hold functions of the user's
    inputs: tuple[tuple[int, ...], ...]
    settings: Configuration


class _Alone(NamedTuple):
    """What is known of a kernel; not the kernel, which may hold arrays and functions of the user's."""

    avals: tuple[Any, ...]
    params: _Params
    results: tuple[Any, ...]
    jaxpr: Any


_COMPILED: Bounded[Hashable, _Structure] = Bounded("reasons", 512)  # by the names of the entries, and by line: the last one of these
_ALONE: Bounded[Hashable, _Alone] = Bounded("reasons of ops", 512)  # by name, line and place in it


def why(entries: Sequence[Step], leaves: Sequence[Any], line: Line | None) -> tuple[str, Change]:
    """Say what is new about a structure, for leaves of these shapes and dtypes, that is about to be compiled, and remember it.

    Returns what it is counted under, and the change from the nearest one.
    """
    met, kernels, inputs = _Met.of(entries), tuple([e.kernel for e in entries]), tuple([e.inputs for e in entries])
    new = _Structure(met, tuple(leaves), kernels, tuple([_params(e.kernel, e.op) for e in entries]), inputs, configuration())
    known, here = _COMPILED.get(met.names), _COMPILED.get(line)
    _COMPILED[met.names] = new
    if line is not None:
        _COMPILED[line] = new
    if known is None or len(known.leaves) != len(leaves):
        return "new structure", Change("new") if here is None else _other_ops(here.met, met)
    if known.settings is not new.settings:
        return "other settings of JAX", Change("settings", "JAX's settings are other ones")
    changed = [(old, now) for old, now in zip(known.leaves, leaves, strict=True) if old != now]
    if changed:
        told = f"{_short(changed[0][0])}, then {_short(changed[0][1])}"
        return f"new shape or dtype: {told}", _first_of_avals(known.met, met) or Change("dtype", "the type of a value", told)
    if known.inputs != inputs:
        return "new structure", Change("ops", "the same ops on other values")
    for entry, old, params in zip(entries, known.kernels, known.params, strict=True):
        if entry.kernel is not old:
            return f"another function or parameter in {old.name}{_at(entry.where)}", _of_kernels(_alone(old, params), entry)
    return "other results are held", Change("results", "the Variables that are held when it runs are other ones")


def why_alone(entries: Sequence[Step]) -> Change:
    """The same for kernels that ran never before: each is compared with the one that was new in its place of its line in the run before."""
    places: Counter[Hashable] = Counter()
    keys = []
    for entry in entries:
        about = entry.kernel.name, entry.where
        keys.append((*about, places[about]))
        places[about] += 1
    known = [_ALONE.get(key) for key in keys]
    for key, entry in zip(keys, entries, strict=True):
        _ALONE[key] = _alone(entry.kernel, _params(entry.kernel, entry.op))
    changes = (Change("new") if old is None else _of_kernels(old, entry) for old, entry in zip(known, entries, strict=True))
    return next((change for change in changes if change.kind != "new"), Change("new"))


def ran_alone(site: Site, entries: Sequence[Step], *, new: bool) -> None:
    """Note that entries ran one by one, of a structure that may be new; of ever more of these, some are compared."""
    site.alone += 1
    site.alone_entries += len(entries)
    if not new:
        return
    site.new += 1
    if site.new >= _SOME and not site.new & (site.new - 1):  # a power of two: to compare all would take time
        old: _Met | None = site.met
        site.met = now = _Met.of(entries)
        if old is not None and old.names != now.names:
            site.differs = _other_ops(old, now)
        elif old is not None:
            site.differs = _first_of_avals(old, now) or Change("ops", "the same ops, with other parameters or on other values")


def _alone(kernel: Kernel, params: _Params) -> _Alone:
    jaxpr = kernel.jaxpr.jaxpr
    return _Alone(kernel.in_avals, params, kernel.out_avals, jaxpr if len(jaxpr.eqns) <= _COMPARED and _is_plain(jaxpr) else None)


def _params(kernel: Kernel, op: Any) -> _Params:
    """Return what is fixed in an op, by position and by name."""
    given = kernel.params
    if not (isinstance(given, tuple) and all(isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) for x in given)):
        given = () if given is None else (("parameters", given),)
    fixed = [*enumerate(getattr(getattr(op, "fun", None), "positional", None) or ()), *given]
    return tuple([(name, *_shown(value)) for name, value in fixed])


def _shown(value: Any) -> tuple[str, int]:
    """Return the value of a parameter in words, and what tells it from others."""
    try:
        number = hash(value)
    except TypeError:
        number = id(value)
    inner = getattr(value, "value", value)
    plain = isinstance(inner, _PLAIN) or hasattr(inner, "items")  # a list or a tuple, as a template of arguments has it
    return (_clipped(inner) if plain else type(inner).__name__), number


def _is_plain(jaxpr: Any) -> bool:
    """Tell whether a jaxpr holds neither arrays (in newer releases an open one has its constants, too) nor functions."""
    if getattr(jaxpr, "consts", None):
        return False
    for eqn in jaxpr.eqns:
        for leaf in jax.tree.leaves(list(eqn.params.values())):
            if (
                isinstance(leaf, jax.Array | np.ndarray)
                or (callable(leaf) and not isinstance(leaf, type))
                or bool(getattr(leaf, "consts", None))
            ):
                return False
        if not all(map(_is_plain, held_by(eqn))):
            return False
    return True


def _first_of_avals(old: _Met, new: _Met) -> Change | None:
    """Return the first op of the same ones whose operands differ."""
    of_avals = (_of_avals(*both) for both in zip(old.avals, new.avals, new.names, new.lines, strict=True))
    return next((change for change in of_avals if change is not None), None)


def _of_avals(old: Sequence[Any], new: Sequence[Any], name: str, line: Line | None, does: str = "reads") -> Change | None:
    for before, now in zip(old, new, strict=False):
        if before.shape != now.shape:
            return Change("shape", f"the shape of what {name}{_at(line)} {does}", f"{_short(before)}, then {_short(now)}")
        if before != now:
            weak = " (one of them a Python number's)" if before.dtype == now.dtype else ""
            return Change("dtype", f"the dtype of what {name}{_at(line)} {does}", f"{_short(before)}, then {_short(now)}{weak}")
    return None


def _of_kernels(old: _Alone, entry: Step) -> Change:
    """Say what tells a kernel from another one of its name."""
    kernel, at = entry.kernel, f"{entry.kernel.name}{_at(entry.where)}"
    if len(old.avals) != len(kernel.in_avals):
        return Change("shape", f"how many arrays {at} reads", f"{len(old.avals)}, then {len(kernel.in_avals)}")
    change = _of_avals(old.avals, kernel.in_avals, kernel.name, entry.where)
    if change is not None:
        return change
    new = _alone(kernel, _params(kernel, entry.op))
    for before, now in zip_longest(old.params, new.params):
        if before != now and before is not None and now is not None and before[0] == now[0]:
            name = f"the parameter {_named(entry.op, now[0])}"
            return Change("static", f"{name} of {at}", f"{before[1]}, then {now[1]}")
    change = _of_avals(old.results, new.results, kernel.name, entry.where, "gives")
    if change is not None:
        return change
    told = None if old.jaxpr is None or new.jaxpr is None else _of_jaxprs(old.jaxpr, new.jaxpr)
    if told is not None:
        return Change("static", told[0].format(at), told[1])
    if kernel.name.startswith("vjp_"):  # of other results, or by other inputs
        return Change("new")
    return Change("function", f"the function of {at}, which is made anew")


def _named(op: Any, name: object) -> object:
    """Return the name of a parameter that is given by its position."""
    try:
        return name if isinstance(name, str) else list(inspect.signature(op.fun.fun).parameters)[name]  # type: ignore[call-overload]
    except (TypeError, ValueError, AttributeError, IndexError):
        return name


def _of_jaxprs(old: Any, new: Any) -> tuple[str, str] | None:
    """Return the first number, or parameter of a primitive, in which two jaxprs differ that are alike otherwise."""
    if len(old.eqns) != len(new.eqns):
        return None
    for a, b in zip(old.eqns, new.eqns, strict=True):
        if a.primitive is not b.primitive or len(a.invars) != len(b.invars):
            return None
        for x, y in zip(a.invars, b.invars, strict=True):
            if isinstance(x, Literal) and isinstance(y, Literal) and not _equal(x.val, y.val):
                return f"a number that is part of {{}}, in its {a.primitive.name}", f"{_clipped(_number(x))}, then {_clipped(_number(y))}"
        inner = list(zip(held_by(a), held_by(b), strict=False))
        for x, y in inner:
            told = _of_jaxprs(x, y)
            if told is not None:
                return told
        for name, value in b.params.items():
            if not inner and not _equal(a.params.get(name), value):
                return f"a parameter of {{}}, {name} of its {a.primitive.name}", f"{_clipped(a.params.get(name))}, then {_clipped(value)}"
    return None


def _number(literal: Any) -> object:
    """Return the number that a literal is, which some versions of JAX keep as an array with a type."""
    return np.asarray(literal.val)[()] if np.ndim(literal.val) == 0 else literal.val


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays
        return a is b


def _other_ops(old: _Met, new: _Met) -> Change:
    """Say what tells the ops of one structure from those of another one that was compiled for the same line."""
    loops = _loops(old.names, new.names)
    if loops:
        before, now, first = loops[0]
        body = ", ".join(new.names[first[0] : first[1]])
        at = _at(new.lines[first[0]])
        return Change("loop", f"the number of turns of a loop of {_clipped(body)}{at}", f"{before}, then {now}")
    for i, (a, b) in enumerate(zip_longest(old.names, new.names)):
        if a != b:
            line = new.lines[i] if i < len(new.lines) else None
            told = f"{a or 'its end'}, then {b or 'its end'}{_at(line)}"
            return Change("ops", f"op {i + 1} of {len(new.names)}", told)
    return Change("ops", "the same ops on other values")


def _loops(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, tuple[int, int]]]:
    """Return the loops by whose turns alone two lists of ops differ: turns before and now, and where the first turn is in ``new``.

    The lists agree up to where the shorter loop ends; there the other list says again what it said last.
    """
    changed: list[tuple[int, int, tuple[int, int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            i, j = i + 1, j + 1
            continue
        more = _turns_more(new, j), _turns_more(old, i)
        ahead, period = max(more)
        if not ahead:
            return []
        longer = more[0] >= more[1]
        listed, at = (new, j) if longer else (old, i)
        first = at
        while first - period >= 0 and listed[first - period : first] == listed[at - period : at]:
            first -= period
        turns = (at - first) // period
        start = j - (at - first)
        changed.append((turns, turns + ahead, (start, start + period)) if longer else (turns + ahead, turns, (start, start + period)))
        i, j = (i, j + ahead * period) if longer else (i + ahead * period, j)
    return changed


def _turns_more(names: Sequence[str], at: int) -> tuple[int, int]:
    """Return how many times what ends at ``at`` is said again there, and its length: of the shortest that is."""
    for period in range(1, min(_PERIOD, at, len(names) - at) + 1):
        body = names[at - period : at]
        if names[at : at + period] == body:
            turns = 1
            while names[at + turns * period : at + (turns + 1) * period] == body:
                turns += 1
            return turns, period
    return 0, 0


def _at(line: Line | None) -> str:
    return "" if line is None else f" (first at {placed(line)})"  # of whoever recorded the same ops first


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _clipped(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
