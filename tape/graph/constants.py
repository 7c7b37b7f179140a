"""Constants: arrays and numbers that come onto the tape, as Variables that no entry produced."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import errors, jaxapi, layout
from tape.bounded import Bounded
from tape.graph import boundary
from tape.graph.kinds import WIDER, GivenPlace, Kind, Place, is_scalar, kind_of, leaf_kind, scalar_kind
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.watcher import NOBODY

if TYPE_CHECKING:
    from tape.graph.boxes import Cell
    from tape.graph.segment import Segment

_variable_type: type[Handle] = Handle
_new = object.__new__

# The kinds of constants by the ids of their arrays' avals, which are kept so that each id stays its own: an aval is slow to hash, and the
# arrays that one program returns share theirs.  Only arrays of these types have one that costs nothing to read.
ARRAYS: set[type] = set()
KINDS_OF_ARRAYS: Bounded[int, tuple[Any, Kind]] = Bounded("kinds of arrays", 1 << 12)


def connect(variable_type: type[Handle]) -> None:
    """Tell what to make."""
    global _variable_type  # noqa: PLW0603 - set once, at import
    _variable_type = variable_type


def handle(segment: Segment | None, place: Place, cell: Cell) -> Any:
    """Make a Variable of the given slot and cell."""
    variable = _new(_variable_type)
    variable._segment = segment
    variable._place = place
    variable._cell = cell
    variable._extra = None
    return variable


if layout.NATIVE is not None:
    handle = layout.NATIVE.handle


def leaf(value: object, *, requires_grad: bool = False, unrecorded: bool | str = False) -> Any:
    """Make a Variable that no entry produced, of an array or tracer; one that requires grad is an argument of a function."""
    place = GivenPlace if requires_grad else Place
    kind = leaf_kind(value, requires_grad=True) if requires_grad else kind_of(jax.typeof(value), unrecorded=unrecorded)
    variable = handle(None, place(-1, kind), [value])
    boundary.made(variable)
    return variable


def constant(value: object) -> Any:
    """Make a constant Variable of an array, a NumPy array (copied) or a scalar."""
    if value.__class__ in ARRAYS:
        return _of_array(value)
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return scalar(value)
    if isinstance(value, jax.Array):
        note_type(value)
    else:
        try:
            traced = isinstance(value, np.ndarray) and not _masked(value) and jaxapi.in_trace()
            value = jax.numpy.array(np.array(value)) if traced else known_array(value, copy=True)  # a trace would hold it, not a copy
        except (TypeError, ValueError) as e:
            raise errors.TapeTypeError(no_array(value, e)) from e
    return leaf(value, unrecorded=LOCAL.scope.caller.bring(value))


def note_type(value: jax.Array) -> None:
    """Note the type of an array of JAX, unless it is a tracer or its aval has to be worked out."""
    if not isinstance(value, jaxapi.Tracer) and getattr(value, "aval", None) == jax.typeof(value):
        ARRAYS.add(value.__class__)


def known_array(value: object, *, copy: bool = False) -> jax.Array:
    """Return an array of a number, a NumPy array or nested lists; what is known stays so inside a JAX transformation.

    ``jnp.asarray`` hands numbers and NumPy arrays to the innermost transformation, also under ``ensure_compile_time_eval``, and where there
    is none to a program that it compiles for their shape, in 15 ms (since JAX 0.10).
    """
    with jaxapi.ensure_compile_time_eval():
        masked = _masked(value)
        if isinstance(value, np.ma.MaskedArray) and not masked:
            value = value.data
        if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)) and not masked:
            array: jax.Array = jax.device_put(np.array(value) if copy and isinstance(value, np.ndarray) else value)
            return array
        return jax.numpy.array(value) if copy and not masked else jax.numpy.asarray(value)


def _masked(value: object) -> bool:
    """Tell whether elements of an array are masked: ``jnp.asarray`` refuses masks, and ``jnp.array`` would drop them."""
    return np.ma.is_masked(value)


def _of_array(value: Any) -> Any:
    """Make a constant of an array of JAX that is not a tracer."""
    aval = value.aval
    unrecorded = LOCAL.scope.caller.bring(value)
    known = None if unrecorded else KINDS_OF_ARRAYS.get(id(aval))
    kind = kind_of(aval, unrecorded=unrecorded) if known is None else known[1]
    if known is None and not unrecorded:
        KINDS_OF_ARRAYS[id(aval)] = aval, kind
    variable = handle(None, Place(-1, kind), [value])
    boundary.made(variable)
    return variable


_SMALL = 1 << 16  # bytes
# Of arrays of at most so many, by dtype and shape, and whether there were 64-bit types.
KINDS_OF_COPIES: Bounded[tuple[Any, ...], Kind] = Bounded("kinds of NumPy arrays", 1 << 12)
# Those that were made last by the ids of the arrays: these, cells and kinds, and whether there were 64-bit types.
COPIES: Bounded[int, tuple[weakref.ref[np.ndarray[Any, Any]], tuple[Cell, Kind], bool]] = Bounded("copies of NumPy arrays", 16)


def _unchanged(value: np.ndarray[Any, Any], copy: np.ndarray[Any, Any]) -> bool:
    """Tell whether a NumPy array, which lies in one piece, is what was copied: to the last bit, as zeros have signs."""
    return value.dtype == copy.dtype and value.shape == copy.shape and value.flags.c_contiguous and value.tobytes() == copy.tobytes()


unchanged = layout.chosen("unchanged", _unchanged)


def copied(value: np.ndarray[Any, Any]) -> tuple[Cell, Kind] | None:
    """Return a cell with a copy of a small NumPy array, to be an input as it is, and its kind; None where it is made an array of JAX now.

    To put it on the device costs as much as recording a hundred entries; a program does that with its other arguments for a tenth of it,
    which is still as much as ten entries cost.  So an array that is an operand of several ops is one input as long as nobody writes to it.
    """
    if value.__class__ is not np.ndarray or jaxapi.in_trace():
        return None
    scope = LOCAL.scope
    if scope.eager or scope.caller is not NOBODY or scope.forward is not NOBODY or scope.trace is not NOBODY:
        return None
    x64 = jaxapi.X64.value
    known = COPIES.get(id(value))
    if known is not None and known[0]() is value and known[2] is x64 and unchanged(value, known[1][0][0]):
        return known[1]
    kind = KINDS_OF_COPIES.get((value.dtype, value.shape, x64))
    if kind is None:
        return None
    made: tuple[Cell, Kind] = [_copy(value, kind)], kind
    if value.dtype == kind.aval.dtype:
        COPIES[id(value)] = weakref.ref(value), made, x64
    return made


def _copy(value: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Return a copy to which nobody may write."""
    copy = np.array(value, kind.aval.dtype, order="C")
    copy.setflags(write=False)
    return copy


def known_operand(value: np.ndarray[Any, Any]) -> Any:
    """:func:`operand` of what is a constant whoever brings it, as what the facade of another library hands to rules."""
    kind = None if jaxapi.in_trace() else KINDS_OF_COPIES.get((value.dtype, value.shape, jaxapi.X64.value))
    return operand(value) if kind is None else handle(None, Place(-1, kind), [_copy(value, kind)])


def operand(value: object) -> Any:
    """:func:`constant` of what is an operand of one op."""
    if not isinstance(value, np.ndarray):
        return constant(value)
    cell_and_kind = copied(value)
    if cell_and_kind is None:
        variable = constant(value)
        kind = variable._place.kind
        if value.nbytes > _SMALL or value.dtype.kind not in "biufc" or kind.unrecorded:
            return variable
        if not isinstance(variable._cell[0], jax.Array) or jaxapi.in_trace():
            return variable
        KINDS_OF_COPIES[value.dtype, value.shape, jaxapi.X64.value] = kind
        cell_and_kind = copied(value)  # as from now on, so that the first structure is that of the next
        if cell_and_kind is None:
            return variable
    return handle(None, Place(-1, cell_and_kind[1]), cell_and_kind[0])


def no_array(value: object, error: Exception) -> str:
    """Say that JAX makes no array of a value."""
    if isinstance(value, jax.Ref):
        shape = f"shape {value.shape}, dtype {value.dtype}"
        return (
            f"an array that is changed in place (jax.Ref, {shape}) cannot be an operand of an op; read it before, and pass what it holds: "
            "f(x, ref[...]), or make it inside of the function with jax.new_ref"
        )
    if _masked(value):
        shape = f"shape {value.shape}, dtype {value.dtype}"  # type: ignore[attr-defined]
        return f"a masked NumPy array ({shape}) would lose its mask; pass m.filled(0.0), or m.data for what is below the mask too"
    kind = f"a NumPy array of dtype {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    said = "" if isinstance(value, np.ndarray) else f" ({error})"
    if isinstance(value, dict):
        return f"cannot make an array of {kind}; make one of each value: jax.tree.map(tape.Variable, tree)"
    return f"cannot make an array of {kind}{said}; pass a number, a NumPy or JAX array of numbers, or nested lists of numbers"


def refused(where: str, value: object, error: Exception) -> errors.TapeError:
    """Return what is raised where JAX makes no array of a value."""
    if isinstance(error, OverflowError):
        return errors.TapeOverflowError(f"{where}: {error}; {WIDER}")
    if isinstance(error, errors.LostGradientError) and isinstance(value, (list, tuple)):
        msg = (
            f"{where}: a {type(value).__name__} with a Variable that requires grad in it would lose its gradient; use "
            "tape.numpy.asarray(values), which records, or pass .detach() of each"
        )
        return errors.LostGradientError(msg)
    return errors.TapeTypeError(f"{where}: {no_array(value, error)}")


def kept(value: object) -> Any:
    """:func:`constant` of what a user may keep and give to a compiled step: an array, as a number is part of the programs that read it."""
    made = constant(value)
    if is_scalar(made._cell[0]):
        made._cell[0] = known_array(value)
        boundary.made(made)
    return made


def constant_from(where: str, value: object) -> Any:
    """:func:`kept`, with where the value comes from in what is raised."""
    try:
        return kept(value)
    except (errors.TapeTypeError, errors.TapeOverflowError) as e:
        msg = f"{where}: {e}"
        raise type(e)(msg) from e


def scalar(value: object) -> Any:
    """Make a constant of a number of Python (weakly typed) or NumPy: another one for each place of use.

    NumPy makes its numbers of arrays without axes, so that one counts as an array where it may be made of a value that was looked at.
    """
    try:
        unrecorded = isinstance(value, np.generic) and LOCAL.scope.caller.bring(value)
        if unrecorded:
            return leaf(known_array(value), unrecorded=unrecorded)
        return handle(None, Place(-1, scalar_kind(value)), [value])
    except TypeError as e:
        raise errors.TapeTypeError(no_array(value, e)) from e
