"""Detachment: the same values without their past, and where bits are read that have no gradient."""

from __future__ import annotations

from typing import Any, overload

import jax

from tape import jaxapi
from tape.errors import LostGradientError
from tape.graph.kinds import Place, kind_of
from tape.graph.scope import LOCAL, in_mode
from tape.graph.segment import Handle, V, extra_of
from tape.graph.trees import mapped
from tape.graph.trie import CONSTANT, RECORD
from tape.ops.kernel import Op
from tape.recording import record
from tape.recording.record import handle
from tape.sweeps.seeds import describe

_IDENTITY = Op("detach", lambda x: x)
detaching = record.repeating(3, one=_IDENTITY)


def detach(variable: Handle) -> Any:
    """Return a constant of the same value, without running what is pending."""
    kind = variable._place.kind
    if variable._cell[0] is None:
        return in_mode(CONSTANT, record.record, _IDENTITY, (variable,))
    value = LOCAL.scope.trace.read(variable, flows=False)._cell[0]
    if isinstance(value, jaxapi.Tracer):
        return record.leaf(jax.lax.stop_gradient(value))
    detached = handle(None, Place(-1, kind_of(kind.aval)), [value])
    if jaxapi.in_trace():
        extra_of(detached).inside = True
    if LOCAL.scope.notes is not None:
        LOCAL.scope.notes.detached(variable, detached)
    return detached


@overload
def stop_gradient(x: V) -> V: ...
@overload
def stop_gradient(x: Any) -> Any: ...
def stop_gradient(x: Any) -> Any:
    """Return ``x`` cut off from the tape.

    Args:
        x: a Variable, an array, or a pytree of them; any shape and dtype.

    Returns:
        The same values as constant Variables.

    Example:
        >>> import tape
        >>> x = tape.Variable(3.0)
        >>> y = x * tape.stop_gradient(x)
        >>> float(tape.gradients(y, x))
        3.0

    """
    return mapped(lambda v: detach(v if isinstance(v, Handle) else record.kept(v)), x)


def refuse_reinterpretation(variable: object, what: str) -> None:
    """Raise where reading the bits of a Variable as another type would lose its gradient."""
    if isinstance(variable, Handle) and variable._place.kind.requires_grad and LOCAL.scope.mode == RECORD:
        msg = (
            f"{what}: reads the bits of a Variable that requires grad ({describe(variable)}), through which no gradient flows; "
            "pass it detached (.detach()), or convert the values with .astype(dtype)"
        )
        raise LostGradientError(msg)
