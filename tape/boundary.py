"""Boundaries: where a value would leave the tape, or the JAX transformation that it belongs to, without its gradient."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tape import jaxapi
from tape.errors import LeakedTracerError
from tape.segment import LOCAL, Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["allowing_captures", "capture_message", "check_no_leak", "is_traced", "refusing_captures"]


@contextlib.contextmanager
def refusing_captures(name: str) -> Iterator[None]:
    """While a raw JAX function is traced: a Variable that requires grad and is none of its arguments would lose its gradient."""
    old, LOCAL.lifting = LOCAL.lifting, name
    LOCAL.reads = []
    captures, LOCAL.captures = LOCAL.captures, None
    try:
        yield
    finally:
        LOCAL.lifting = old
        LOCAL.captures = captures


@contextlib.contextmanager
def allowing_captures() -> Iterator[None]:
    """While a function of the tape runs inside a raw JAX function: Variables are looked at as usual."""
    old, LOCAL.lifting = LOCAL.lifting, None
    try:
        yield
    finally:
        LOCAL.lifting = old


def capture_message(name: str, variable: Handle) -> str:
    """Say which Variable a lifted function captured."""
    aval = variable._place.kind.aval
    called = f" {variable._extra.name!r}" if variable._extra is not None and variable._extra.name else ""
    return (
        f"lift: the function {name!r} captures a Variable{called} that requires grad (shape {aval.shape}, dtype {aval.dtype}), whose gradient "
        "would be lost; pass it as an argument, or capture variable.detach()"
    )


def is_traced(variable: Handle) -> bool:
    """Tell whether a Variable's value belongs to a JAX transformation, without looking at it."""
    value = variable._cell[0]
    if value is None:
        return variable._segment is not None and variable._segment.trace is not None
    return isinstance(value, jaxapi.Tracer)


def check_no_leak(function: str, variable: Handle, value: Any) -> None:
    """Refuse to store a tracer (or what will be one) in a Variable from outside the running JAX transformation."""
    found = is_traced(value) if isinstance(value, Handle) else isinstance(value, jaxapi.Tracer)
    if not found or is_traced(variable):
        return
    if variable._extra is not None and variable._extra.inside:
        return
    aval = variable._place.kind.aval
    msg = (
        f"{function}: a value that exists only inside a JAX transformation would be stored in a Variable from outside (shape {aval.shape}, "
        f"dtype {aval.dtype}); return it from the transformed function (tape.gradients returns gradients), or pass the Variable's value in"
    )
    raise LeakedTracerError(msg)
