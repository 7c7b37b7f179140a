"""Constants: arrays and numbers that come onto the tape, as Variables that no entry produced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import errors, jaxapi, layout
from tape.bounded import Bounded
from tape.graph import boundary
from tape.graph.kinds import GivenPlace, Kind, Place, kind_of, scalar_kind
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle

if TYPE_CHECKING:
    from tape.graph.boxes import Cell
    from tape.graph.segment import Segment

_variable_type: type[Handle] = Handle
_new = object.__new__

# The kinds of constants by the ids of their arrays' avals, which are kept so that each id stays its own: an aval is slow to hash, and the
# arrays that one program returns share theirs.  Only arrays of these types have one that is to be had for nothing.
ARRAYS: set[type] = set()
KINDS_OF_ARRAYS: Bounded[int, tuple[Any, Kind]] = Bounded("kinds of arrays", 1 << 12)


def connect(variable_type: type[Handle]) -> None:
    """Tell what to make."""
    global _variable_type  # noqa: PLW0603 - set once, at import
    _variable_type = variable_type


def handle(segment: Segment | None, place: Place, cell: Cell) -> Any:
    """Make a Variable of the given slot and cell."""
    made = _new(_variable_type)
    made._segment = segment
    made._place = place
    made._cell = cell
    made._extra = None
    return made


if layout.NATIVE is not None:
    handle = layout.NATIVE.handle


def leaf(value: Any, *, requires_grad: bool = False, unrecorded: bool | str = False) -> Any:
    """Make a Variable that no entry produced, of an array or tracer; one that requires grad is an argument of a function."""
    place = GivenPlace if requires_grad else Place
    made = handle(None, place(-1, kind_of(jax.typeof(value), requires_grad=requires_grad, unrecorded=unrecorded)), [value])
    boundary.made(made)
    return made


def constant(value: Any) -> Any:
    """Make a constant Variable of an array, a NumPy array (copied) or a scalar."""
    if value.__class__ in ARRAYS:
        return _of_array(value)
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return scalar(value)
    if isinstance(value, jax.Array):
        aval: Any = jax.typeof(value)
        if not isinstance(value, jaxapi.Tracer) and getattr(value, "aval", None) is aval:
            ARRAYS.add(value.__class__)
    else:
        try:
            if isinstance(value, np.ndarray):
                value = jax.numpy.array(value)
            else:
                with jaxapi.ensure_compile_time_eval():
                    value = jax.numpy.asarray(value)
        except (TypeError, ValueError) as e:
            raise errors.TapeTypeError(no_array(value, e)) from e
    return leaf(value, unrecorded=LOCAL.scope.caller.bring(value))


def _of_array(value: Any) -> Any:
    """Make a constant of an array of JAX that is no tracer."""
    aval = value.aval
    unrecorded = LOCAL.scope.caller.bring(value)
    known = None if unrecorded else KINDS_OF_ARRAYS.get(id(aval))
    kind = kind_of(aval, unrecorded=unrecorded) if known is None else known[1]
    if known is None and not unrecorded:
        KINDS_OF_ARRAYS[id(aval)] = aval, kind
    made = handle(None, Place(-1, kind), [value])
    boundary.made(made)
    return made


def no_array(value: object, error: Exception) -> str:
    """Say that JAX makes no array of a value."""
    kind = f"a NumPy array of dtype {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    said = "" if isinstance(value, np.ndarray) else f" ({error})"
    return f"cannot make an array of {kind}{said}; pass a number, a NumPy or JAX array of numbers, or nested lists of numbers"


def scalar(value: Any) -> Any:
    """Make a constant of a number of Python (weakly typed) or NumPy: another one for each place of use."""
    try:
        return handle(None, Place(-1, scalar_kind(value)), [value])
    except TypeError as e:
        raise errors.TapeTypeError(no_array(value, e)) from e
