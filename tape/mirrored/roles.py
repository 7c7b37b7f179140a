"""Roles: which parameters of a JAX function take arrays, read off its signature, and off its derivative; and quick keys of calls.

A call that looks like a former one is recognised by the types and static values of its arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.errors import LeakedTracerError, RuleError
from tape.graph.kinds import NUMBERS, SMALL, Kind, differentiable
from tape.graph.segment import Handle
from tape.ops.kernel import Kernel, Op
from tape.ops.linear import flatten
from tape.recording import record
from tape.recording.template import ARRAY, NUMBER, SEQUENCE

# Arguments that stay static although they take arrays: x**2 is a different primitive from x**y, and a static roll is a concatenation.
# Numbers of pieces have to be, though arrays of positions stand in their place.
_STATIC_ARGUMENTS = {("power", 1), ("pow", 1), ("float_power", 1), ("integer_pow", 1), ("roll", 1)}
_STATIC_ARGUMENTS |= {("split", 1), ("array_split", 1), ("hsplit", 1), ("vsplit", 1), ("dsplit", 1), ("repeat", 1)}
_STATIC_REST = {"reshape", "transpose"}  # methods, whose arguments JAX annotates with Any
_SEQUENCE_ARGUMENTS = {("array", 0), ("asarray", 0)}
_ARRAY_NAMES = ("ArrayLike", "RealArray", "IntegerArray", "numpy.ndarray", "RealNumeric", "Numeric")


class Roles:
    """Which parameters of a function take arrays, read off its annotations at the first call."""

    __slots__ = ("names", "positions", "rest", "scalars")

    rest: int

    def __init__(self, fun: Callable[..., Any], name: str) -> None:
        self.names: dict[str, int] = {}
        positions: list[int] = []
        self.rest = 1
        self.scalars = True  # whether Python scalars can be arrays; unlearned when the function needs them static
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        for p in parameters:
            takes = _takes_array(p)
            if p.kind is p.VAR_POSITIONAL:
                self.rest = takes and name not in _STATIC_REST
                continue
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                place = (name, len(positions))
                takes = SEQUENCE if place in _SEQUENCE_ARGUMENTS else 0 if place in _STATIC_ARGUMENTS else takes
                positions.append(takes)
            self.names[p.name] = takes
        self.positions = tuple(positions)

    def at(self, position: int) -> int:
        """Say whether the argument at ``position`` takes an array (or a sequence of them: SEQUENCE)."""
        return self.positions[position] if position < len(self.positions) else self.rest


def _takes_array(parameter: inspect.Parameter) -> int:
    if parameter.annotation is inspect.Parameter.empty:
        return not isinstance(parameter.default, (bool, int))
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)
    if "Sequence[ArrayLike]" in annotation or "list[ArrayLike]" in annotation:
        return SEQUENCE
    if any(name in annotation for name in _ARRAY_NAMES):
        return True
    return annotation.split("|")[0].strip() in {"Array", "Any"}


@functools.cache
def roles_of(fun: Callable[..., Any], name: str) -> Roles:
    """Return the roles of a function's parameters."""
    return Roles(fun, name)


_CUSTOM = jaxapi.primitive("custom_jvp_call")


def closes_over_inputs(op: Op, kinds: tuple[Kind, ...]) -> bool:
    """Tell whether an op's derivative needs the value of an input (``nondiff_argnums`` of a ``custom_jvp``), which then must not be one."""
    known: Any = op.fun
    if known.closed is None:
        known.closed = _closes_over_inputs(op.kernel_of(kinds))
    return bool(known.closed)


def _closes_over_inputs(kernel: Kernel) -> bool:
    if kernel.transient or len(kernel.in_avals) < 2 or all(entry.primitive is not _CUSTOM for entry in flatten(kernel.jaxpr).entries):
        return False
    try:
        vjp = kernel.vjp(tuple(map(differentiable, kernel.out_avals)), tuple(map(differentiable, kernel.in_avals)))
    except LeakedTracerError:
        return True
    except (RuleError, NotImplementedError, TypeError, ValueError):
        return False
    return vjp.kernel is not None and vjp.kernel.transient


_PLAIN = frozenset({bool, int, float, str, type(None)})


def quick_key(roles: Roles, args: tuple[object, ...], kwargs: dict[str, object], variables: list[Any]) -> tuple[object, ...] | None:
    """Return a cheap key of a call and append its inputs to ``variables``; None where the call needs the full split."""
    key: list[object] = []
    for i, a in enumerate(args):
        if isinstance(a, Handle):
            variables.append(a)
            key.append(ARRAY)
        elif not _quick(key, a, variables, roles.scalars and roles.at(i)):
            return None
    for k, a in kwargs.items():
        key.append(k)
        if isinstance(a, Handle):
            variables.append(a)
            key.append(ARRAY)
        elif not _quick(key, a, variables, roles.scalars and roles.names.get(k, False)):
            return None
    return tuple(key)


def _quick(key: list[object], a: Any, variables: list[Any], takes_array: int) -> bool:
    """Append what is needed of one argument that is not a Variable."""
    kind = type(a)
    if kind in _PLAIN:
        if takes_array and kind in NUMBERS:
            variables.append(a)
            key.append(NUMBER)
        elif kind is float and a == 0.0:
            return False
        else:
            key.append(kind)
            key.append(a)
        return True
    if kind is tuple or kind is list:
        return _quick_items(key, a, variables, takes_array == SEQUENCE)
    if takes_array and isinstance(a, np.generic):
        variables.append(a)
        key.append(NUMBER)
        return True
    if isinstance(a, (type, np.dtype)):
        key.append(kind)
        key.append(a)
        return True
    if isinstance(a, (jax.Array, np.ndarray)):
        if isinstance(a, np.ndarray) and a.dtype == object:
            return False
        variables.append(record.operand(a))
        key.append(ARRAY)
        return True
    return False


def _quick_items(key: list[object], items: Sequence[Any], variables: list[Any], take_arrays: bool) -> bool:
    """Append a sequence of Variables, numbers, axes, names, or further sequences."""
    key.append(type(items))
    key.append(len(items))
    for item in items:
        kind = type(item)
        if take_arrays and (kind in NUMBERS or isinstance(item, np.generic)):
            if kind is int and not -SMALL <= item < SMALL:
                return False
            variables.append(item)
            key.append(NUMBER)
        elif kind is int or kind is str:
            key.append(item)
        elif isinstance(item, Handle):
            variables.append(item)
            key.append(ARRAY)
        elif not ((kind is tuple or kind is list) and _quick_items(key, item, variables, take_arrays)):
            return False
    return True
