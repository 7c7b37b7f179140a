"""Records of rules, one per ``lax`` primitive.

A record holds the VJP, the domain in which the derived test suite draws its arguments, and the source of the formula.  Everything
that is the same for all rules (arity, shapes, dtypes, which inputs need a cotangent) is done once, in :mod:`tape.ops.pullback`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tape import jaxapi

Domain = tuple[float, float]
Vjp = Callable[..., Any]

LINE: Domain = (-2.0, 2.0)  # of what is smooth everywhere


class Cost(enum.Enum):
    """What it costs to compute a primitive's results again; where that is more than keeping them, they are kept for the sweep."""

    FREE = "values are put elsewhere, as XLA does for whoever reads them"
    SMALL = "computed again wherever they are read"
    LOOPED = "kept in a loop's body: nothing is fused with the way back there, so that it costs more than reading them"
    HIGH = "kept everywhere"


@dataclass(frozen=True, slots=True)
class Example:
    """One use of a primitive for the derived suite.

    ``fun`` takes arrays of ``shapes`` (drawn from the record's domain, one per argument) and returns arrays.
    """

    fun: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One record: how a primitive is differentiated, tested and justified.

    ``vjp(ct, out, *ins, **params)`` returns one cotangent per input: an array, None (no gradient), or a function without arguments
    that computes it, called only if the cotangent is wanted; that of a single input may be returned bare.  For a primitive with several
    results ``ct`` and ``out`` are tuples, and ``ct`` holds None for a result without a cotangent.  What it may assume of ``params``,
    ``tape/rules/parameters.py`` says.  A ``selective`` rule is also told which cotangents are wanted (``wanted=``, one bool per input):
    for primitives that hold a jaxpr, where one sweep yields all of them.

    ``augment(params, keep)`` gives such a primitive the values inside it that ``keep`` lets be kept as further outputs: it returns the
    parameters changed, and the avals of those outputs.  ``prune(params, used)`` takes out of it what only unused outputs need: it returns
    the parameters changed, and which inputs and which outputs are left.
    """

    primitive: jaxapi.Primitive
    vjp: Vjp
    domain: tuple[Domain, ...] = (LINE,)
    source: str = ""
    examples: Sequence[Example] = ()
    complex: bool = True
    kinks: tuple[float, ...] = ()
    elementwise: bool = False
    selective: bool = False
    augment: Callable[[dict[str, Any], Any], tuple[dict[str, Any], list[Any]]] | None = None
    prune: Callable[[dict[str, Any], list[bool]], tuple[dict[str, Any], list[bool], list[bool]]] | None = None
    cost: Cost = Cost.SMALL


RULES: dict[jaxapi.Primitive, Rule] = {}
SOUGHT: dict[str, tuple[Callable[[], jaxapi.Primitive | None], Callable[[jaxapi.Primitive], Rule]]] = {}  # by name, not found yet


def find(name: str) -> None:
    """Enter the record that is to be found under a name, if there is one."""
    sought = SOUGHT.get(name)
    if sought is not None:
        finder, record = sought
        primitive = finder()
        if primitive is not None:
            RULES[primitive] = record(primitive)
        SOUGHT.pop(name, None)  # last: another thread finds it in one of the two


COSTS: dict[str, Cost] = {}  # of primitives without a rule, by name: callbacks are not listed publicly


def register(
    name: str, vjp: Vjp | None = None, *, finder: Callable[[], jaxapi.Primitive | None] | None = None, **fields: Any
) -> Callable[[Vjp], Vjp]:
    """Enter the record of the primitive called ``name``, with these fields, for the rule that it is given or decorates.

    A primitive that this JAX release lacks is passed over; one that is in none of its lists is looked for by ``finder`` in what
    uses it, when a primitive of its name is met: that takes JAX some milliseconds.
    """
    primitive = jaxapi.primitive(name)

    def enter(vjp: Vjp) -> Vjp:
        if primitive is not None:
            RULES[primitive] = Rule(primitive, vjp, **fields)
        elif finder is not None:
            SOUGHT[name] = finder, lambda primitive: Rule(primitive, vjp, **fields)
        return vjp

    if vjp is not None:
        enter(vjp)
    return enter


elementwise = functools.partial(register, elementwise=True)


def leave_to_jax(*names: str, cost: Cost) -> None:
    """Enter what primitives without a rule cost, whose derivative is JAX's."""
    COSTS.update(dict.fromkeys(names, cost))


def no_gradient(ct: Any, out: Any, *ins: Any, **params: Any) -> tuple[None, ...]:
    """VJP of a primitive through which no gradient flows; the sweep knows it and does not look behind such a primitive."""
    return (None,) * len(ins)


def zero(*names: str, source: str = "piecewise constant: the derivative is zero wherever it exists", cost: Cost = Cost.SMALL) -> None:
    """Enter primitives through which no gradient flows (comparisons, rounding, integer and key operations)."""
    for name in names:
        register(name, no_gradient, domain=(), source=source, cost=cost)
