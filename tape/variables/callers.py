"""Callers: what asks for a Python number of a Variable, as the bytecode of the function tells whose frame asks.

``float(v)`` says that a number is wanted.  ``array[i] = v``, ``array.fill(v)``, ``math.exp(v)``, SciPy's ``quad`` and ``brentq`` do not:
they call ``v.__float__()`` like that, and what they make of the number would be a constant without a word.
"""

from __future__ import annotations

import builtins
import dis
from array import array
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from tape import layout
from tape.bounded import Bounded


class Sink(NamedTuple):
    """What keeps, or computes with, a number of a Variable without saying so: how it reads, and what does the same on the tape."""

    reads: str
    number: str  # with {} for what makes the number
    recorded: str


class _Instruction(NamedTuple):
    """An instruction of a function: whether it assigns to an element, or the names that lead to what it calls."""

    assigns: bool
    names: tuple[str, ...]
    local: bool  # the first of them


_NOTHING = _Instruction(assigns=False, names=(), local=False)
_ASSIGNS = _NOTHING._replace(assigns=True)
_NUMBERS = {("float",), ("int",), ("complex",)}
ASSIGNMENT = Sink("array[i] = v", "array[i] = {}(v)", "array = tape.numpy.asarray(array).at[i].set(v)")
_MADE = Sink("array.array(code, [v])", "array.array(code, [{}(v)])", "a list and tape.numpy.stack")
_READ = Sink("np.fromiter(v, dtype)", "np.fromiter([{}(x) for x in v], dtype)", "v.astype(dtype), tape.numpy.stack of a list")
_INTEGRAL = Sink("scipy.integrate.quad of v", "{}(v)", "a weighted sum over nodes (numpy.polynomial.legendre.leggauss)")
_ROOT = Sink("a root finder of scipy.optimize of v", "{}(v)", "steps of Newton's method, x = x - f(x) / slope,")
_METHODS = {
    "fill": Sink("array.fill(v)", "array.fill({}(v))", "array = tape.numpy.full_like(array, v)"),
    "append": Sink("array.append(v)", "array.append({}(v))", "a list and tape.numpy.stack"),
    "insert": Sink("array.insert(i, v)", "array.insert(i, {}(v))", "a list and tape.numpy.stack"),
}
_QUESTIONS = {"ceil", "floor", "isclose", "isfinite", "isinf", "isnan", "trunc"}  # functions of math through which no gradient flows

_PLACES: Bounded[int, tuple[CodeType, dict[int, _Instruction]]] = Bounded("callers", 1024)  # by the id of the code
if layout.NATIVE is not None:
    layout.NATIVE.asking(_PLACES, _NOTHING)


def assigns(frame: FrameType) -> bool:
    """Tell whether a frame is at an assignment to elements: ``x[i] = y``."""
    return sink(frame) is ASSIGNMENT


def sink(frame: FrameType) -> Sink | None:
    """Return what asks for a number where a frame is; None where that says so itself, or nobody can tell."""
    code, at = frame.f_code, frame.f_lasti
    known = _PLACES.get(id(code))
    if known is None or known[0] is not code:
        known = _PLACES[id(code)] = code, {}
    place = known[1].get(at)
    if place is None:
        place = _place(code, at)
        if place.names in _NUMBERS and not place.local and place.names[0] not in frame.f_globals:
            place = _NOTHING
        known[1][at] = place
    if place.assigns:
        return ASSIGNMENT
    return _called(frame, place) if place.names else None


def _place(code: CodeType, at: int) -> _Instruction:
    """Find what an instruction does, and if it calls, by which names, going back over what puts the arguments on the stack."""
    before = [step for step in dis.get_instructions(code) if step.offset <= at]
    call = before.pop()
    if call.opname not in {"CALL", "PRECALL"} or call.arg is None:
        return _ASSIGNS if call.opname in {"STORE_SUBSCR", "STORE_SLICE"} else _NOTHING
    if before[-1].opname == "PRECALL":  # Python 3.11; it is where a frame stands once the call is one that Python has specialized
        before.pop()
    waiting = call.arg
    while before and waiting:
        step = before.pop()
        waiting -= dis.stack_effect(step.opcode, step.arg, jump=False)
    if before and before[-1].opname == "PUSH_NULL":
        before.pop()
    names: list[str] = []
    for step in reversed(before):
        if step.opname not in {"LOAD_ATTR", "LOAD_METHOD"}:
            if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL")):
                last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
                return _Instruction(assigns=False, names=(last, *reversed(names)), local=step.opname != "LOAD_GLOBAL")
            break
        names.append(step.argval)
    return _NOTHING


def _called(frame: FrameType, place: _Instruction) -> Sink | None:
    """Return what is called by some names, if it takes the number of a Variable in silence."""
    first, *names = place.names
    value: Any = frame.f_locals.get(first) if place.local else None
    if value is None:
        value = frame.f_globals[first] if first in frame.f_globals else getattr(builtins, first, None)
    for name in names:  # what would run code, a property, is left alone
        holds = isinstance(value, (ModuleType, np.ndarray, array))
        value = getattr(value, name, None) if holds else getattr(value, "__dict__", {}).get(name)
    if value is array:
        return _MADE
    if value is np.fromiter:
        return _READ
    if value.__class__ is not BuiltinFunctionType:
        return None
    if isinstance(value.__self__, (np.ndarray, array)):
        return _METHODS.get(value.__name__)
    module = value.__module__ or ""
    if module.startswith("scipy."):  # in C, of what the integrand or the function returned
        return _INTEGRAL if module.startswith("scipy.integrate.") else _ROOT if module.startswith("scipy.optimize.") else None
    if module not in {"math", "cmath"} or value.__name__ in _QUESTIONS:
        return None
    name = f"{module}.{value.__name__}"
    return Sink(f"{name}(v)", f"{name}({{}}(v))", f"a function of tape.numpy (tape.numpy.{value.__name__}, if there is one)")
