"""What users write in a ``tape.Function``: which methods there are, what they can be called with, and what they return.

All of it is checked before anything changes.  A message names the function and the position, and for an argument its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeTypeError
from tape.functions.arguments import ONE, Definition, Layout
from tape.graph.kinds import differentiable
from tape.graph.segment import Handle
from tape.graph.trees import flatten
from tape.jaxapi import ShapedArray
from tape.recording import record

_METHODS = ("forward", "backward", "jvp", "vmap")
_SHOWN = {
    "forward": "def forward(ctx, x): return ...",
    "backward": "def backward(ctx, g): return ...",
    "jvp": "def jvp(ctx, t): return ...",
}
_NUMBERS = (int, float, complex)
_VALUES = (Handle, jax.Array, np.ndarray, np.generic, *_NUMBERS)


def check_class(function: type, base: type) -> None:
    """Check that a class defines a forward, and that its methods are static."""
    if function is base:
        msg = (
            "Function.apply: tape.Function itself has no forward; make a subclass with static methods forward and backward, and call its "
            "apply"
        )
        raise TapeTypeError(msg)
    for name in _METHODS:
        method = inspect.getattr_static(function, name)
        if method is not inspect.getattr_static(base, name) and not isinstance(method, staticmethod):
            msg = f"{function.__name__}.{name} must be a static method, got {type(method).__name__}; put @staticmethod above it"
            raise TapeTypeError(msg)
    check_defined(function, base, "forward")


def check_defined(function: type, base: type, name: str) -> None:
    """Check that a class has a method of its own."""
    if getattr(function, name) is getattr(base, name):
        msg = f"{function.__name__} has no {name}; define a static method: @staticmethod {_SHOWN[name]}"
        raise TapeTypeError(msg)


def check_arity(function: type, name: str, count: int, what: str) -> None:
    """Check that a method takes ``ctx`` and so many further values."""
    misfit = _misfit(getattr(function, name), [None] * (1 + count), {})
    if misfit is not None:
        msg = f"{function.__name__}.{name} is called with ctx and {count} values ({what}), but is defined as {name}{misfit}"
        raise TapeTypeError(msg)


def check_call(function: Definition, error: TypeError, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Say what is wrong with the arguments of a call, if it is they that made its forward raise ``error``."""
    misfit = None if isinstance(error, TapeTypeError) else _misfit(function.forward, [None, *args], kwargs)
    if misfit is not None:
        msg = f"{function.__name__}.apply: the arguments do not fit forward{misfit}; apply takes those after ctx"
        if hasattr(function, "setup_context"):
            msg += ", and there is no setup_context: keep what backward needs in forward, by ctx.save_for_backward"
        raise TapeTypeError(msg) from error


def check_mapping(function: Definition, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Check that a ``vmap`` takes ``info``, ``in_dims``, and what the forward takes after ``ctx``."""
    assert function.vmap is not None
    misfit = _misfit(function.vmap, args, kwargs)
    if misfit is not None:
        msg = (
            f"{function.__name__}.vmap is called with info, in_dims and the arguments of forward ({len(args) + len(kwargs)} values), but "
            f"is defined as vmap{misfit}"
        )
        raise TapeTypeError(msg)


def _misfit(method: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]) -> str | None:
    """Return the parameters of a method and why it cannot be called with such arguments; None where it can, or does not tell."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        return f"{signature}: {e}"
    return None


def outputs_of(function: Definition, result: object, method: str = "forward") -> tuple[list[Handle], Any]:
    """Return the outputs of a forward (or ``vmap``) as Variables, and their tree."""
    if isinstance(result, Handle):
        return [result], ONE
    leaves, tree = flatten(result)
    for i, x in enumerate(leaves):
        if not isinstance(x, _VALUES):
            where = "" if len(leaves) == 1 else f" as output {i}"
            repair = "keep anything else in ctx" if method == "forward" else "return the outputs of forward as batches"
            msg = f"{function.__name__}.{method} must return Variables or arrays, got {type(x).__name__}{where}; {repair}"
            raise TapeTypeError(msg)
    if not leaves:
        msg = f"{function.__name__}.{method} must return Variables or arrays, got {type(result).__name__} without any; return at least one"
        raise TapeTypeError(msg)
    return [x if isinstance(x, Handle) else record.constant_from(f"what {function.__name__}.{method} returned", x) for x in leaves], tree


def checked_gradients(function: Definition, returned: object, avals: Sequence[ShapedArray], layout: Layout) -> list[Handle | None]:
    """Return what a backward returned as one Variable or None per array argument."""

    def names() -> list[str]:
        return layout.names(function.forward)

    def misfit() -> str:
        given = ", ".join(names())
        return f"array arguments ({given}); return one for each of these, None where no gradient flows, and nothing for other arguments"

    def owner(i: int) -> str:
        return f"argument {i}, which has {{}} and is {names()[i]!r} of forward"

    return _each_checked(f"{function.__name__}.backward", "gradient", returned, avals, misfit, owner)


def checked_tangents(function: Definition, returned: object, avals: Sequence[ShapedArray]) -> list[Handle | None]:
    """Return what a ``jvp`` returned as one Variable or None per output."""

    def misfit() -> str:
        return "outputs; return one per output, None where the output does not change"

    return _each_checked(f"{function.__name__}.jvp", "tangent", returned, avals, misfit, "output {}, which has {{}}".format)


def _each_checked(
    name: str, what: str, returned: object, avals: Sequence[ShapedArray], misfit: Callable[[], str], owner: Callable[[int], str]
) -> list[Handle | None]:
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    if len(values) != len(avals):
        msg = f"{name} returned {len(values)} {what}s for {len(avals)} {misfit()}"
        raise RuleError(msg)
    return [_checked(name, what, owner, i, x, aval) for i, (x, aval) in enumerate(zip(values, avals, strict=True))]


def _checked(name: str, what: str, owner: Callable[[int], str], i: int, value: object, aval: ShapedArray) -> Handle | None:
    """Return one gradient or tangent as a Variable of its owner's shape and dtype."""
    if value is None or not differentiable(aval):
        return None
    if not isinstance(value, Handle):
        if not isinstance(value, _VALUES):
            msg = (
                f"{name} returned {type(value).__name__} as the {what} of {owner(i).format(f'shape {aval.shape}')}; return a Variable, an "
                "array or None"
            )
            raise GradientDtypeError(msg)
        if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
            if isinstance(value, complex) and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
                msg = (
                    f"{name} returned the complex number {value} as the {what} of {owner(i).format(f'dtype {aval.dtype}')}; return its "
                    "real part"
                )
                raise GradientDtypeError(msg)
            value = jnp.asarray(value, aval.dtype)
        value = record.constant_from(f"the {what} that {name} returned", value)
    assert isinstance(value, Handle)
    given = value._place.kind.aval
    if given.shape != aval.shape:
        msg = (
            f"{name} returned a {what} of shape {given.shape} for {owner(i).format(f'shape {aval.shape}')}; return the shape of what it "
            "belongs to (sum over what was broadcast)"
        )
        raise GradientShapeError(msg)
    if given.dtype != aval.dtype:
        msg = f"{name} returned a {what} of dtype {given.dtype} for {owner(i).format(f'dtype {aval.dtype}')}; cast it with .astype"
        raise GradientDtypeError(msg)
    return value
