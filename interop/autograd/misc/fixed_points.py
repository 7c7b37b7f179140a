"""Fixed points, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interop.autograd import core
from interop.autograd.differential_operators import make_vjp
from interop.autograd.extend import defvjp, primitive, vspace

__all__ = ["fixed_point"]


@primitive
def fixed_point(f: Callable[[Any], Callable[[Any], Any]], a: Any, x0: Any, distance: Callable[[Any, Any], Any], tol: float) -> Any:
    """Return the fixed point of ``f(a)``, iterated from ``x0`` until two points are closer than ``tol``."""
    step = f(a)
    x, before = step(x0), x0
    while distance(x, before) > tol:
        x, before = step(x), x
    return x


def _vjp(ans: Any, f: Any, a: Any, x0: Any, distance: Any, tol: float) -> Callable[[Any], Any]:
    def adjoint(parameters: Any) -> Callable[[Any], Any]:
        at, point, cotangent = parameters
        pull, _ = core.make_vjp(f(at), point)
        return lambda g: vspace(point).add(pull(g), cotangent)

    by_a, _ = make_vjp(lambda x, y: f(x)(y))(a, ans)
    return lambda g: by_a(fixed_point(adjoint, (a, ans, g), vspace(x0).zeros(), distance, tol))


defvjp(fixed_point, None, _vjp, None)
