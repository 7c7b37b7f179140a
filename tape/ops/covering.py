"""Scatters that write all of an array, as ``x.at[:].set(y)`` does, become the elementwise primitive that each is, or an update of a slice.

XLA makes a map of such a scatter.  Where something reverses that (``x[::-1]``, a sweep through ``np.flip``), it aborts the process while it
compiles: nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from tape.jaxapi import ClosedJaxpr, JaxprEqn, Primitive, primitive, trace
from tape.ops.building import JaxprBuilder

_SCATTER = primitive("scatter")
_ELEMENTWISE: dict[Primitive | None, Callable[..., Any]] = {
    _SCATTER: lambda x, update: lax.dynamic_update_slice(x, update, [0] * x.ndim),  # x stays connected, with zeros for its gradient
    primitive("scatter_add"): lax.add,
    primitive("scatter_sub"): lax.sub,
    primitive("scatter_mul"): lax.mul,
    primitive("scatter_min"): lax.min,
    primitive("scatter_max"): lax.max,
}


def without(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr without such scatters (those inside calls stay), the same one where there are none."""
    if not any(map(_covers, closed.jaxpr.eqns)):
        return closed
    into = JaxprBuilder()
    return into.closed(into.inline(closed, [into.input(v.aval) for v in closed.jaxpr.invars], instead=_elementwise))


def _covers(eqn: JaxprEqn) -> bool:
    """Tell whether an equation scatters one update, as large as the array, to where the array begins."""
    if eqn.primitive not in _ELEMENTWISE or (eqn.primitive is _SCATTER and eqn.params["update_jaxpr"] is not None):
        return False
    _, indices, update = eqn.invars
    aval: Any = indices.aval
    return aval.shape == (0,) and update.aval == eqn.outvars[0].aval


def _elementwise(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return what computes an equation that covers everything, from the operands of the scatter; None for any other."""
    if not _covers(eqn):
        return None
    how = _ELEMENTWISE[eqn.primitive]
    return trace(lambda x, _, update: how(x, update), *[v.aval for v in eqn.invars])[0]
