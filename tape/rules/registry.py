"""The rule table: one record per ``lax`` primitive.

A record holds the VJP, the domain in which the derived test suite draws its arguments, and the source of the formula.  Everything
that is the same for all rules (arity, shapes, dtypes, which inputs need a cotangent) is done once, in :mod:`tape.ops.pullback`.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tape import jaxapi
from tape.errors import TapeTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LINE", "Cost", "Domain", "Example", "Rule", "coverage", "defvjp", "lookup", "register", "registered", "zero"]

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
    that computes it, called only if the cotangent is wanted.  For a primitive with several results ``ct`` and ``out`` are tuples,
    and ``ct`` holds None for a result without a cotangent.  What it may assume of ``params``, :mod:`tape.rules.parameters` says.  A
    ``selective`` rule is also told which cotangents are wanted (``wanted=``, one bool per input): for primitives that hold a jaxpr, where
    one sweep yields all of them.

    ``augment(params, keep)`` gives such a primitive the values inside it that ``keep`` lets be kept as further outputs: it returns the
    parameters changed, and the avals of those outputs.  ``prune(params, used)`` takes out of it what only unused outputs need: it returns the
    parameters changed, and which inputs and which outputs are left.
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


_RULES: dict[jaxapi.Primitive, Rule] = {}
_OWN: dict[jaxapi.Primitive, Rule] = {}
_COSTS: dict[str, Cost] = {}  # of primitives without a rule, by name: callbacks are not listed publicly
_filled = False


def _table() -> dict[jaxapi.Primitive, Rule]:
    """Return the table, filled at the first look into it (so that ``import tape`` stays quick)."""
    global _filled  # noqa: PLW0603 - one table for the process
    if not _filled:
        importlib.import_module("tape.rules.families")
        _filled = True
    return _RULES


_revision = 0


def register(name: str, vjp: Vjp | None = None, **fields: Any) -> Callable[[Vjp], Vjp]:
    """Enter the record of the primitive called ``name``, with these fields, for the rule that it is given or decorates.

    A primitive that this JAX release lacks is passed over.
    """
    primitive = jaxapi.primitive(name)

    def enter(vjp: Vjp) -> Vjp:
        if primitive is not None:
            _OWN[primitive] = _RULES[primitive] = Rule(primitive, vjp, **fields)
        return vjp

    if vjp is not None:
        enter(vjp)
    return enter


elementwise = functools.partial(register, elementwise=True)


def leave_to_jax(*names: str, cost: Cost) -> None:
    """Enter what primitives without a rule cost, whose derivative is JAX's."""
    _COSTS.update(dict.fromkeys(names, cost))


def no_gradient(ct: Any, out: Any, *ins: Any, **params: Any) -> tuple[None, ...]:
    """VJP of a primitive through which no gradient flows; the sweep knows it and does not look behind such a primitive."""
    return (None,) * len(ins)


def zero(*names: str, source: str = "piecewise constant: the derivative is zero wherever it exists", cost: Cost = Cost.SMALL) -> None:
    """Enter primitives through which no gradient flows (comparisons, rounding, integer and key operations)."""
    for name in names:
        register(name, no_gradient, domain=(), source=source, cost=cost)


def defvjp(primitive: jaxapi.Primitive, rule: Callable[..., Any]) -> None:
    """Give ``primitive`` a VJP rule of your own, in place of the one there is.

    Args:
        primitive: a ``jax.extend.core.Primitive``.
        rule: called as ``rule(ct, out, *ins, **params)``; returns one cotangent per input, each of its input's shape and dtype, or
            None for no gradient.  A single cotangent may be returned bare.  For a primitive with several results ``ct`` and ``out``
            are tuples, and ``ct`` holds None for a result without a cotangent.  Written in ``lax``, it is differentiable itself.

    Raises:
        TapeTypeError: ``primitive`` is no primitive, or ``rule`` cannot be called.

    Example:
        >>> import tape, jax
        >>> from jax.extend.core.primitives import sin_p
        >>> old = tape.rules.lookup(sin_p)
        >>> tape.rules.defvjp(sin_p, lambda ct, out, x: (ct * jax.lax.cos(x),))
        >>> tape.rules.defvjp(sin_p, old.vjp)

    """
    global _revision  # noqa: PLW0603 - one table for the process
    if not isinstance(primitive, jaxapi.Primitive):
        msg = f"tape.rules.defvjp: primitive must be a jax.extend.core.Primitive, got {type(primitive).__name__}; pass for instance jax.extend.core.primitives.sin_p"
        raise TapeTypeError(msg)
    if not callable(rule):
        msg = (
            f"tape.rules.defvjp: the rule for {primitive} cannot be called (got {type(rule).__name__}); pass rule(ct, out, *ins, **params)"
        )
        raise TapeTypeError(msg)
    old = _table().get(primitive)
    own = _OWN.get(primitive)
    if own is not None and rule is own.vjp:  # the library's own rule is put back
        _RULES[primitive] = own
        _revision += 1
        return
    if old is None:
        _RULES[primitive] = Rule(primitive, rule, (), "user", cost=cost_of(primitive))
    else:
        _RULES[primitive] = replace(old, vjp=rule, source="user", selective=False, augment=None)
    _revision += 1


def revision() -> int:
    """Count of rules changed by users since import: part of the key of everything that caches a derivative."""
    return _revision


def changed() -> frozenset[jaxapi.Primitive]:
    """Return the primitives that have a rule of the user's own."""
    return frozenset([p for p, rule in _RULES.items() if _OWN.get(p) is not rule]) if _revision else frozenset()


def lookup(primitive: jaxapi.Primitive) -> Rule | None:
    """Return the record of ``primitive``, or None where JAX's own derivative is used."""
    return _table().get(primitive)


def cost_of(primitive: jaxapi.Primitive) -> Cost:
    """Return what the results of ``primitive`` cost."""
    rule = _table().get(primitive)
    return _COSTS.get(str(primitive), Cost.SMALL) if rule is None else rule.cost


def is_cheap(primitive: jaxapi.Primitive) -> bool:
    """Tell whether XLA computes the results of ``primitive`` with whatever reads them: elementwise and layout primitives."""
    rule = _table().get(primitive)
    return rule is not None and (rule.elementwise or rule.cost is Cost.FREE)


def registered() -> tuple[Rule, ...]:
    """All records, in the order of registration."""
    return tuple(_table().values())


def coverage() -> dict[str, str]:
    """Say for every ``lax`` primitive whose derivative a sweep uses.

    Returns:
        A dict from the primitive's name to ``"own"`` (a rule of this library; plain calls such as ``jit`` are inlined), ``"user"`` (one
        given to :func:`defvjp`) or ``"jax"`` (JAX's derivative of the primitive).

    Example:
        >>> import tape
        >>> tape.rules.coverage()["tanh"]
        'own'

    """
    known = {found for name in dir(jaxapi.primitives) if isinstance(found := getattr(jaxapi.primitives, name), jaxapi.Primitive)}
    table = {}
    for primitive in sorted(known | set(_table()), key=str):
        rule = _RULES.get(primitive)
        called = primitive in jaxapi.CALL_JAXPR_PARAMS  # inlined: the rules of what it calls apply
        table[str(primitive)] = "own" if called else "jax" if rule is None else "user" if rule.source == "user" else "own"
    return table
