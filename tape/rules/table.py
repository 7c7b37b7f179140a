"""The table that the records make up, and the rules that users put into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.rules.registry import COSTS, RULES, SOUGHT, Cost, Rule, find

_given: dict[jaxapi.Primitive, Rule] = {}  # by users, in place of the library's own
_revision = 0


def _own() -> dict[jaxapi.Primitive, Rule]:
    """Return the library's own rules, entered at the first look (so that ``import tape`` stays quick: they take 35 ms)."""
    from tape.rules import families  # noqa: F401, PLC0415 - as above

    return RULES


def _own_of(primitive: jaxapi.Primitive) -> Rule | None:
    own = _own()
    if primitive.name in SOUGHT:
        find(primitive.name)
    return own.get(primitive)


def _all() -> dict[jaxapi.Primitive, Rule]:
    own = _own()
    for name in list(SOUGHT):
        find(name)
    return own


def defvjp(primitive: jaxapi.Primitive, rule: Callable[..., Any]) -> None:
    """Give ``primitive`` a VJP rule of your own, in place of the one there is.

    Args:
        primitive: a ``jax.extend.core.Primitive``.
        rule: called as ``rule(ct, out, *ins, **params)``; returns one cotangent per input, each of its input's shape and dtype, or
            None for no gradient.  A single cotangent may be returned bare.  For a primitive with several results ``ct`` and ``out``
            are tuples, and ``ct`` holds None for a result without a cotangent.  Written in ``lax``, it is differentiable itself.

    Raises:
        TapeTypeError: ``primitive`` is not a primitive, or ``rule`` cannot be called.

    Example:
        >>> import tape, jax
        >>> from jax.extend.core.primitives import sin_p
        >>> old = tape.rules.lookup(sin_p)
        >>> tape.rules.defvjp(sin_p, lambda ct, out, x: (ct * jax.lax.cos(x),))
        >>> tape.rules.defvjp(sin_p, old.vjp)

    """
    global _revision  # noqa: PLW0603 - one table for the process
    if not isinstance(primitive, jaxapi.Primitive):
        msg = (
            f"tape.rules.defvjp: primitive must be a jax.extend.core.Primitive, got {type(primitive).__name__}; "
            "pass for instance jax.extend.core.primitives.sin_p"
        )
        raise TapeTypeError(msg)
    if not callable(rule):
        msg = (
            f"tape.rules.defvjp: the rule for {primitive} cannot be called (got {type(rule).__name__}); pass rule(ct, out, *ins, **params)"
        )
        raise TapeTypeError(msg)
    own = _own_of(primitive)
    if own is None:
        _given[primitive] = Rule(primitive, rule, (), "user", cost=cost_of(primitive))
    elif rule is own.vjp:  # it is put back
        _given.pop(primitive, None)
    else:
        _given[primitive] = replace(own, vjp=rule, source="user", selective=False, augment=None)
    _revision += 1


def revision() -> int:
    """Count of rules changed by users since import: part of the key of everything that caches a derivative."""
    return _revision


def changed() -> frozenset[jaxapi.Primitive]:
    """Return the primitives that have a rule of the user's own."""
    return frozenset(_given)


def lookup(primitive: jaxapi.Primitive) -> Rule | None:
    """Return the record of ``primitive``, or None where JAX's own derivative is used.

    Example:
        >>> import tape
        >>> from jax.extend.core.primitives import tanh_p
        >>> tape.rules.lookup(tanh_p).source
        "tanh' = 1 - tanh^2"

    """
    return _given.get(primitive) or _own_of(primitive)


def cost_of(primitive: jaxapi.Primitive) -> Cost:
    """Return what the results of ``primitive`` cost."""
    rule = lookup(primitive)
    return COSTS.get(str(primitive), Cost.SMALL) if rule is None else rule.cost


def is_cheap(primitive: jaxapi.Primitive) -> bool:
    """Tell whether XLA computes the results of ``primitive`` with whatever reads them: elementwise and layout primitives."""
    rule = lookup(primitive)
    return rule is not None and (rule.elementwise or rule.cost is Cost.FREE)


def is_little(primitive: jaxapi.Primitive) -> bool:
    """Tell whether small results of ``primitive`` cost little: of one with a rule of the library's own, or a product."""
    rule = _own_of(primitive)
    return rule is not None and (rule.cost is not Cost.HIGH or primitive.name == "dot_general")


def registered() -> tuple[Rule, ...]:
    """All records, in the order of registration.

    Example:
        >>> import tape
        >>> len(tape.rules.registered()) > 100
        True

    """
    return tuple({**_all(), **_given}.values())


def everything() -> list[jaxapi.Primitive]:
    """Return the primitives of the installed JAX, and those that have a record, by name."""
    known = {p for p in vars(jaxapi.primitives).values() if isinstance(p, jaxapi.Primitive)}
    return sorted({*known, *_all(), *_given}, key=str)
