"""Replacement: what hooks return in place of gradients, checked."""

from __future__ import annotations

from typing import Any

from tape.errors import GradientDtypeError, GradientShapeError, RuleError
from tape.graph.boundary import Caller, recorded
from tape.graph.scope import within
from tape.graph.segment import Handle
from tape.recording import record

_LOOKED = (
    "{0} returned an array that it computed outside the tape (by .value, raw jax.numpy or NumPy), so a second derivative through it "
    "would be lost; compute it with tape.numpy, or return tape.constant(...) to say that it is a constant"
)


def calling(who: str) -> within:
    """While a hook runs, and its result is taken: an array that it made of a value which it looked at has no derivative on the tape."""
    return within(caller=Caller(_LOOKED, who, recorded=recorded()))


def replacement(who: str, gradient: Handle, given: object) -> Handle:
    """Return the Variable that a hook returned in place of a gradient, if it has its shape and dtype."""
    new_gradient = given if isinstance(given, Handle) else record.constant(given)
    old, new = gradient._place.kind.aval, new_gradient._place.kind.aval
    if new.shape != old.shape:
        msg = f"{who} returned a gradient of shape {new.shape} for one of shape {old.shape}; return the same shape, or None to leave it"
        raise GradientShapeError(msg)
    if new.dtype != old.dtype:
        msg = f"{who} returned a gradient of dtype {new.dtype} for one of dtype {old.dtype}; cast it, or return None to leave it"
        raise GradientDtypeError(msg)
    return new_gradient


def replacements(what: str, present: tuple[Any, ...], given: object) -> tuple[Any, ...]:
    """Return the gradients that are present (None: there is none) with those in their place that an op hook has given."""
    if not isinstance(given, (tuple, list)):
        msg = f"{what} returned {type(given).__name__}; return a tuple of {len(present)} gradients, or None to leave them"
        raise GradientDtypeError(msg)
    if len(given) != len(present):
        msg = f"{what} returned {len(given)} gradients for {len(present)}; return one for each, None for those to leave"
        raise RuleError(msg)
    replaced = []
    for i, (old, new) in enumerate(zip(present, given, strict=True)):
        if new is not None and old is None:
            msg = f"{what} returned a gradient in position {i}, where there is none to replace; return None there"
            raise RuleError(msg)
        replaced.append(old if new is None else replacement(f"{what}, position {i},", old, new))
    return tuple(replaced)
