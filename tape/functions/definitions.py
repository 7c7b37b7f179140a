"""Definitions of ``tape.Function`` classes, checked when they are first used: which methods there are, and what they can be called with."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tape.errors import TapeTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["check_arity", "check_call", "check_class", "check_defined", "check_mapping"]

_METHODS = ("forward", "backward", "jvp", "vmap")
_SHOWN = {
    "forward": "def forward(ctx, x): return ...",
    "backward": "def backward(ctx, g): return ...",
    "jvp": "def jvp(ctx, t): return ...",
}


def check_class(function: Any, base: type) -> None:
    """Check that a class defines a forward, and that its methods are static.

    Raises:
        TapeTypeError: it does not.

    """
    if function is base:
        msg = "Function.apply: tape.Function itself has no forward; make a subclass with static methods forward and backward, and call its apply"
        raise TapeTypeError(msg)
    for name in _METHODS:
        method = inspect.getattr_static(function, name)
        if method is not inspect.getattr_static(base, name) and not isinstance(method, staticmethod):
            msg = f"{function.__name__}.{name} must be a static method, got {type(method).__name__}; put @staticmethod above it"
            raise TapeTypeError(msg)
    check_defined(function, base, "forward")
    function._is_checked = True


def check_defined(function: Any, base: Any, name: str) -> None:
    """Check that a class has a method of its own.

    Raises:
        TapeTypeError: it does not.

    """
    if getattr(function, name) is getattr(base, name):
        msg = f"{function.__name__} has no {name}; define a static method: @staticmethod {_SHOWN[name]}"
        raise TapeTypeError(msg)


def check_arity(function: Any, name: str, count: int, what: str) -> None:
    """Check that a method takes ``ctx`` and so many further values.

    Raises:
        TapeTypeError: it does not.

    """
    misfit = _misfit(getattr(function, name), [None] * (1 + count), {})
    if misfit is not None:
        msg = f"{function.__name__}.{name} is called with ctx and {count} values ({what}), but is defined as {name}{misfit}"
        raise TapeTypeError(msg)


def check_call(function: Any, error: TypeError, args: Any, kwargs: dict[str, Any]) -> None:
    """Say what is wrong with the arguments of a call, if it is they that made its forward raise ``error``.

    Raises:
        TapeTypeError: they do not fit its parameters.

    """
    misfit = None if isinstance(error, TapeTypeError) else _misfit(function.forward, [None, *args], kwargs)
    if misfit is not None:
        msg = f"{function.__name__}.apply: the arguments do not fit forward{misfit}; apply takes those after ctx"
        raise TapeTypeError(msg) from error


def check_mapping(function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Check that a ``vmap`` takes ``info``, ``in_dims``, and what the forward takes after ``ctx``.

    Raises:
        TapeTypeError: it does not.

    """
    misfit = _misfit(function.vmap, args, kwargs)
    if misfit is not None:
        msg = (
            f"{function.__name__}.vmap is called with info, in_dims and the arguments of forward ({len(args) + len(kwargs)} values), but is "
            f"defined as vmap{misfit}"
        )
        raise TapeTypeError(msg)


def _misfit(method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
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
