"""``odeint``, differentiated by the adjoint equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import scipy.integrate

from interop.autograd import numpy as np
from interop.autograd.differential_operators import make_vjp
from interop.autograd.extend import defvjp_argnums, primitive
from interop.autograd.misc.flatten import flatten

__all__ = ["odeint"]

_OF_FUNC = frozenset({"tfirst", "Dfun", "col_deriv", "ml", "mu"})  # they say what func is like, not the adjoint equation


@primitive
def odeint(func: Callable[..., Any], y0: Any, t: Any, args: Any = (), **options: Any) -> Any:
    """Solve ``dy/dt = func(y, t, *args)`` by SciPy's ``odeint``; derivatives are by ``y0``, ``t`` and ``args``."""
    return scipy.integrate.odeint(func, y0, t, tuple(args), **options)


def _vjp(argnums: Sequence[int], ys: Any, given: Sequence[Any], options: dict[str, Any]) -> Callable[[Any], list[Any]]:
    func, _, t, *rest = given
    args = rest[0] if rest else ()
    if options.get("tfirst"):
        given_func = func
        func = lambda y, t, *args: given_func(t, y, *args)  # noqa: E731 - one line says it
    options = {name: value for name, value in options.items() if name not in _OF_FUNC}
    times, size = ys.shape
    flat, unflatten = flatten(args)

    def flat_func(y: Any, t: Any, flat: Any) -> Any:
        return func(y, t, *unflatten(flat))

    def backwards(state: Any, t: Any, flat: Any) -> Any:
        """Solve for the state and for the cotangents of state, time and arguments."""
        pull, slope = make_vjp(flat_func, (0, 1, 2))(state[:size], t, flat)
        by_y, by_t, by_args = pull(-state[size : 2 * size])
        return np.concatenate([slope, by_y, np.reshape(by_t, (1,)), by_args])

    def vjp(g: Any) -> list[Any]:
        by_y, by_t0, by_args, by_times = g[-1], 0.0, np.zeros(len(flat)), []
        for i in range(times - 1, 0, -1):
            moved = np.dot(func(ys[i], t[i], *args), g[i])
            by_times.append(moved)
            by_t0 = by_t0 - moved
            start = np.concatenate([ys[i], by_y, np.reshape(by_t0, (1,)), by_args])
            end = odeint(backwards, start, np.array([t[i], t[i - 1]]), (flat,), **options)[1]
            by_y, by_t0, by_args = end[size : 2 * size] + g[i - 1], end[2 * size], end[2 * size + 1 :]
        by_times.append(by_t0)
        gradients = [None, by_y, np.array(by_times[::-1]), unflatten(by_args)]
        return [gradients[n] for n in argnums]

    return vjp


defvjp_argnums(odeint, _vjp)
