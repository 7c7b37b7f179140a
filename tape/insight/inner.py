"""What is inside an entry: the equations of its jaxpr, as entries of a tape of their own."""

from __future__ import annotations

from typing import Any

from tape import jaxapi
from tape.graph.kinds import kind_of
from tape.graph.lines import is_foreign
from tape.ops.linear import equations_in, held_by

_LIMIT = 1 << 14  # equations shown


def weight(jaxpr: jaxapi.Jaxpr) -> int:
    """Return how many equations there are, those of inner jaxprs in place of the ones that hold them."""
    return sum(1 for eqn in equations_in(jaxpr) if not held_by(eqn))


def plain(jaxpr: jaxapi.Jaxpr) -> bool:
    """Tell whether there is one primitive only, which holds no other one."""
    return len(jaxpr.eqns) < 2 and not any(held_by(eqn) for eqn in jaxpr.eqns)


def inner_entries(jaxpr: jaxapi.Jaxpr, entry: Any, value: Any) -> tuple[Any, ...]:
    """Return the equations of a jaxpr as entries; those that hold a jaxpr have it as theirs."""
    values: dict[Any, Any] = {}
    for i, v in enumerate(jaxpr.invars):
        values[v] = value.of(kind_of(v.aval), f"in{i}")
    for i, v in enumerate(jaxpr.constvars):
        values[v] = value.of(kind_of(v.aval), f"const{i}")
    entries = []
    for number, eqn in enumerate(jaxpr.eqns[:_LIMIT]):
        made = [v for v in eqn.outvars if not isinstance(v, jaxapi.DropVar)]
        inputs = tuple(value.of(kind_of(v.aval), str(v.val)) if isinstance(v, jaxapi.Literal) else values[v] for v in eqn.invars)
        for i, v in enumerate(made):
            values[v] = value.of(kind_of(v.aval), f"%{number}" if len(made) == 1 else f"%{number}.{i}", number, i)
        within = next(iter(held_by(eqn)), None)
        params = {key: x for key, x in eqn.params.items() if not isinstance(x, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr))}
        outputs = tuple(values[v] for v in made)
        entries.append(entry(number, eqn.primitive.name, inputs, outputs, line_of(eqn), _params=params, _jaxpr=within))
    return tuple(entries)


def line_of(eqn: jaxapi.JaxprEqn) -> tuple[str, int] | None:
    """Return the user's line that an equation comes from, as far as JAX knows it."""
    for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", None) or ():
        if is_foreign(frame.file_name):
            return frame.file_name, frame.line_num
    return None


def turns_of(entry: Any) -> int:
    """Return how many turns the longest loop in an entry takes, where that is known before it runs."""
    jaxpr = entry._jaxpr
    return max([eqn.params["length"] for eqn in equations_in(jaxpr) if eqn.primitive.name == "scan"], default=0) if jaxpr is not None else 0
