"""Arrays that a jaxpr changes in place (``jax.new_ref``), as values that are handed on: what reads one depends on what was written to it.

A sweep follows values from one entry to the next, and a write gives no value to any.  Where such an array lives in a jaxpr from its making
on, the jaxpr is written anew without it, loops and branches that change it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.jaxapi import ClosedJaxpr, JaxprEqn
from tape.ops.jaxprs import evaluated
from tape.rules import parameters

_CALLED: dict[Any, str] = {**jaxapi.CALL_JAXPR_PARAMS, jaxapi.primitive("remat"): "jaxpr"}
_SCAN, _WHILE, _COND = (jaxapi.primitive(name) for name in ("scan", "while", "cond"))


class _Cell:
    """What an array that is changed in place holds at the moment."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def changes_in_place(closed: ClosedJaxpr) -> bool:
    """Tell whether a jaxpr makes an array that is changed in place, in itself or in what it plainly calls."""
    return bool(closed.jaxpr.effects) and _makes_one(closed.jaxpr)


def _makes_one(jaxpr: jaxapi.Jaxpr) -> bool:
    for eqn in jaxpr.eqns:
        if any(_is_reference(v) for v in eqn.outvars):
            return True
        key = jaxapi.CALL_JAXPR_PARAMS.get(eqn.primitive)
        if key is not None and _makes_one(jaxapi.closed(eqn.params[key]).jaxpr):
            return True
    return False


def _is_reference(atom: Any) -> bool:
    return hasattr(atom.aval, "inner_aval")


def without(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Write a jaxpr anew so that no array in it is changed in place."""
    avals = [v.aval for v in closed.jaxpr.invars]
    if any(map(_is_reference, closed.jaxpr.invars)):
        _refuse("an array from outside")
    return jaxapi.trace(lambda *inputs: _run(closed, inputs), *avals)[0]


def _refuse(what: str) -> NoReturn:
    msg = (
        f"gradient through an array that is changed in place (jax.new_ref): {what} with one is not followed; "
        "hand values on instead, in the carry of a lax.scan for instance"
    )
    raise TapeTypeError(msg)


def _run(closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Run a jaxpr with cells in place of arrays that are changed; inputs may be cells."""
    return evaluated(closed.jaxpr, closed.consts, inputs, _apply)


def _apply(eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, parameters.assumed(eqn.primitive, eqn.params)
    if name == "new_ref":
        return [_Cell(ins[0])]
    key = _CALLED.get(eqn.primitive)
    if key is not None and (_makes_one(jaxapi.closed(params[key]).jaxpr) or any(isinstance(x, _Cell) for x in ins)):
        return _run(jaxapi.closed(params[key]), ins)
    if not any(isinstance(x, _Cell) for x in ins):
        return jaxapi.bind(eqn.primitive, eqn.params, ins)
    if name in _ACCESS:
        cell, *operands = ins
        return [*_ACCESS[name](cell, operands, params.get("tree"))][: len(eqn.outvars)]  # older releases drop what nobody reads
    if eqn.primitive in _CONTROL:
        return _CONTROL[eqn.primitive](params, ins)
    _refuse(f"`{name}`")


def _places(tree: object, shape: tuple[int, ...], operands: Sequence[Any]) -> Any:
    """Return which elements, in their order in memory, an index reads or writes; None for all of them, in that order."""
    transforms = jax.tree.unflatten(tree, operands)
    every: Any = np.arange(prod(shape), dtype="int32").reshape(shape)
    numbers = every
    for transform in transforms:
        if not hasattr(transform, "indices"):
            _refuse(f"`{type(transform).__name__}`")
        numbers = _indexed(numbers, transform.indices)
    return None if isinstance(numbers, np.ndarray) and np.array_equal(numbers, every) else numbers


def _indexed(numbers: Any, indices: Sequence[Any]) -> Any:
    """Index numbers by what JAX makes of an index: integers, arrays of them, and slices, whose start may be found while it runs."""
    plain: list[Any] = []
    for axis, index in enumerate(indices):
        if not hasattr(index, "start"):
            plain.append(index)
            continue
        start, size, stride = index.start, index.size, index.stride
        if isinstance(start, jax.Array):
            numbers = lax.dynamic_slice_in_dim(numbers, start, (size - 1) * stride + 1 if size else 0, axis)
            start = 0
        plain.append(slice(start, start + size * stride, stride))
    if any(isinstance(index, jax.Array) for index in plain):
        numbers = jnp.asarray(numbers)
    return numbers[tuple(plain)]


def _get(cell: _Cell, index: Sequence[Any], tree: object) -> list[Any]:
    places = _places(tree, cell.value.shape, index)
    return [cell.value if places is None else jnp.ravel(cell.value)[places]]


def _swap(cell: _Cell, operands: Sequence[Any], tree: object) -> list[Any]:
    new, *index = operands
    places = _places(tree, cell.value.shape, index)
    if places is None:
        old, cell.value = cell.value, new
        return [old]
    flat = jnp.ravel(cell.value)
    cell.value = lax.reshape(flat.at[places].set(new), cell.value.shape)
    return [flat[places]]


def _addupdate(cell: _Cell, operands: Sequence[Any], tree: object) -> list[Any]:
    term, *index = operands
    places = _places(tree, cell.value.shape, index)
    flat = jnp.ravel(cell.value)
    cell.value = lax.add(cell.value, term) if places is None else lax.reshape(flat.at[places].add(term), cell.value.shape)
    return []


_ACCESS: dict[str, Callable[[_Cell, Sequence[Any], Any], list[Any]]] = {
    "get": _get,
    "swap": _swap,
    "addupdate": _addupdate,
    "freeze": lambda cell, *_: [cell.value],
    "free_ref": lambda *_: [],
}


class _Held:
    """Cells among operands, each once, and how to put others with new values in their places."""

    def __init__(self, ins: Sequence[Any]) -> None:
        self.cells = list({id(x): x for x in ins if isinstance(x, _Cell)}.values())
        self.values = [cell.value for cell in self.cells]

    def filled(self, ins: Sequence[Any], values: Sequence[Any]) -> tuple[list[Any], list[_Cell]]:
        """Return operands with fresh cells of these values, and those cells."""
        fresh = [_Cell(value) for value in values]
        numbers = {id(cell): i for i, cell in enumerate(self.cells)}
        return [fresh[numbers[id(x)]] if isinstance(x, _Cell) else x for x in ins], fresh

    def update(self, values: Sequence[Any]) -> None:
        """Say what the cells hold afterwards."""
        for cell, value in zip(self.cells, values, strict=True):
            cell.value = value


def _scan(params: dict[str, Any], ins: list[Any]) -> list[Any]:
    """Carry along what is changed in a loop."""
    n, m = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, held = ins[:n], _Held(ins[:n])

    def body(state: Any, x: Any) -> Any:
        carry, values = state
        given, cells = held.filled(consts, values)
        outs = _run(params["jaxpr"], [*given, *carry, *x])
        return (outs[: m - n], [cell.value for cell in cells]), outs[m - n :]

    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    (carry, values), ys = lax.scan(body, (ins[n:m], held.values), ins[m:], **options)
    held.update(values)
    return [*carry, *ys]


def _while(params: dict[str, Any], ins: list[Any]) -> list[Any]:
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    held = _Held(ins[:m])

    def goes_on(state: Any) -> Any:
        carry, values = state
        return _run(params["cond_jaxpr"], [*held.filled(ins[:n], values)[0], *carry])[0]

    def body(state: Any) -> Any:
        carry, values = state
        given, cells = held.filled(ins[n:m], values)
        return _run(params["body_jaxpr"], [*given, *carry]), [cell.value for cell in cells]

    carry, values = lax.while_loop(goes_on, body, (ins[m:], held.values))
    held.update(values)
    return list(carry)


def _cond(params: dict[str, Any], ins: list[Any]) -> list[Any]:
    index, *operands = ins
    held = _Held(operands)

    def running(branch: ClosedJaxpr) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            given, cells = held.filled(operands, values)
            return _run(branch, given), [cell.value for cell in cells]

        return run

    outs, values = lax.switch(index, [running(branch) for branch in params["branches"]], held.values)
    held.update(values)
    return list(outs)


_CONTROL: dict[Any, Callable[[dict[str, Any], list[Any]], list[Any]]] = {_SCAN: _scan, _WHILE: _while, _COND: _cond}
