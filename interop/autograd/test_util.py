"""Checks of gradients against differences, as HIPS autograd's ``test_util`` has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from interop.autograd.core import make_jvp, make_vjp
from interop.autograd.vspaces import vspace
from interop.autograd.wrap_util import get_name, unary_to_nary

__all__ = ["check_equivalent", "check_grads", "check_jvp", "check_vjp", "combo_check", "make_numerical_jvp", "scalar_close"]

TOL = RTOL = EPS = 1e-6
_FAILED = "({}) check of {} failed"  # what programs that test their checks look for


def scalar_close(a: Any, b: Any) -> bool:
    """Tell whether two numbers are equal to 1e-6, absolutely or relatively."""
    return bool(abs(a - b) < TOL or abs(a - b) / abs(a + b) < RTOL)


def _direction(space: Any) -> Any:
    """Draw a direction whose numbers have a mean square of one: along a short one, nothing would differ by 1e-6."""
    drawn = space.randn()
    square = space.inner_prod(drawn, drawn)
    return space.scalar_mul(drawn, float(space.size / square) ** 0.5) if square else drawn


def make_numerical_jvp(f: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    """Return what pushes a tangent forward by a central difference."""
    inputs, outputs = vspace(x), vspace(f(x))

    def jvp(v: Any) -> Any:
        above = f(inputs.add(x, inputs.scalar_mul(v, EPS / 2)))
        below = f(inputs.add(x, inputs.scalar_mul(v, -EPS / 2)))
        return outputs.scalar_mul(outputs.add(above, outputs.scalar_mul(below, -1.0)), 1.0 / EPS)

    return jvp


def check_vjp(f: Callable[[Any], Any], x: Any) -> None:
    """Compare the VJP at ``x`` with a difference along a random direction."""
    vjp, y = make_vjp(f, x)
    inputs, outputs = vspace(x), vspace(y)
    tangent, cotangent = _direction(inputs), _direction(outputs)
    pulled = inputs.covector(vjp(outputs.covector(cotangent)))
    if vspace(pulled) != inputs:
        msg = f"{_FAILED.format('VJP', get_name(f))}: its VJP gives {vspace(pulled)}, but the argument is in {inputs}"
        raise AssertionError(msg)
    exact, numeric = inputs.inner_prod(tangent, pulled), outputs.inner_prod(cotangent, make_numerical_jvp(f, x)(tangent))
    if not scalar_close(numeric, exact):
        msg = f"{_FAILED.format('VJP', get_name(f))}: its VJP gives {exact} at {x}, and differences {numeric}"
        raise AssertionError(msg)


def check_jvp(f: Callable[[Any], Any], x: Any) -> None:
    """Compare the JVP at ``x`` with a difference along a random direction."""
    tangent = _direction(vspace(x))
    try:
        check_equivalent(make_jvp(f, x)(tangent)[1], make_numerical_jvp(f, x)(tangent))
    except AssertionError as e:
        msg = f"{_FAILED.format('JVP', get_name(f))} at {x}: {e}"
        raise AssertionError(msg) from e


def check_equivalent(x: Any, y: Any) -> None:
    """Check that two values are in one space and, along a random direction, equal to 1e-6."""
    space, other = vspace(x), vspace(y)
    if space != other:
        msg = f"the two are in other spaces: {space} and {other}"
        raise AssertionError(msg)
    v = _direction(space)
    if not scalar_close(space.inner_prod(x, v), space.inner_prod(y, v)):
        msg = f"the two differ: {x} and {y}"
        raise AssertionError(msg)


@unary_to_nary
def check_grads(f: Callable[[Any], Any], x: Any, modes: Sequence[str] = ("fwd", "rev"), order: int = 2) -> None:
    """Check the derivatives of ``f`` to some order, in both modes, against differences.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd.test_util import check_grads
        >>> check_grads(lambda x: np.sin(x) * x, order=2)(0.5)

    """
    if not all(m in {"fwd", "rev"} for m in modes):
        msg = f"check_grads: modes are 'fwd' and 'rev', got {modes!r}"
        raise AssertionError(msg)
    for mode, check in (("fwd", check_jvp), ("rev", check_vjp)):
        if mode not in modes:
            continue
        check(f, x)
        if order > 1:
            again: Any = (lambda x, v: make_jvp(f, x)(v)[1]) if mode == "fwd" else (lambda x, v: make_vjp(f, x)[0](v))
            again.__name__ = f"{'jvp' if mode == 'fwd' else 'vjp'}_{get_name(f)}"
            direction = _direction(vspace(x if mode == "fwd" else f(x)))
            check_grads(again, (0, 1), modes, order=order - 1)(x, direction)


def combo_check(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., None]:
    """Return what checks the gradients of ``fun`` for all combinations of the arguments that it is given."""

    def check(*lists: Any, **options: Any) -> None:
        choices = [[(name, x) for x in values] for name, values in options.items()]
        for given in itertools.product(*lists):
            for named in itertools.product(*choices):
                check_grads(fun, *args, **kwargs)(*given, **dict(named))

    return check
