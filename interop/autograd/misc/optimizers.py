"""Stochastic optimizers of pytrees: ``optimizer(grad, x0, callback=None, num_iters, step_size, ...)``.

``grad(x, i)`` is the gradient at step ``i``, and ``callback(x, i, gradient)`` is called before each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interop.autograd import numpy as np
from interop.autograd.misc.flatten import flatten
from interop.autograd.wrap_util import wraps

__all__ = ["adam", "rmsprop", "sgd", "unflatten_optimizer"]


def unflatten_optimizer(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Make of an optimizer of vectors one of nested containers."""

    def of_containers(grad: Callable[..., Any], x0: Any, callback: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        start, unflatten = flatten(x0)

        def gradient(x: Any, i: int) -> Any:
            return flatten(grad(unflatten(x), i))[0]

        def told(x: Any, i: int, g: Any) -> None:
            if callback is not None:
                callback(unflatten(x), i, unflatten(g))

        return unflatten(optimize(gradient, start, told if callback else None, *args, **kwargs))

    return wraps(optimize)(of_containers)  # type: ignore[no-any-return]


@unflatten_optimizer
def sgd(
    grad: Callable[..., Any],
    x: Any,
    callback: Callable[..., Any] | None = None,
    num_iters: int = 200,
    step_size: float = 0.1,
    mass: float = 0.9,
) -> Any:
    """Descend with momentum.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import grad
        >>> from interop.autograd.misc.optimizers import sgd
        >>> best = sgd(lambda x, i: grad(lambda x: np.sum((x - 3.0) ** 2))(x), np.zeros(2))
        >>> np.round(best, 2)
        array([3., 3.])

    """
    velocity = np.zeros(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        velocity = mass * velocity - (1.0 - mass) * g
        x = x + step_size * velocity
    return x


@unflatten_optimizer
def rmsprop(
    grad: Callable[..., Any],
    x: Any,
    callback: Callable[..., Any] | None = None,
    num_iters: int = 100,
    step_size: float = 0.1,
    gamma: float = 0.9,
    eps: float = 1e-8,
) -> Any:
    """Divide steps by a running root mean square of the gradient."""
    square = np.ones(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        square = square * gamma + g**2 * (1 - gamma)
        x = x - step_size * g / (np.sqrt(square) + eps)
    return x


@unflatten_optimizer
def adam(
    grad: Callable[..., Any],
    x: Any,
    callback: Callable[..., Any] | None = None,
    num_iters: int = 100,
    step_size: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Any:
    """Adam (Kingma and Ba, 2015): running first and second moments, with their bias corrected."""
    first, second = np.zeros(len(x)), np.zeros(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        first = (1 - b1) * g + b1 * first
        second = (1 - b2) * g**2 + b2 * second
        x = x - step_size * (first / (1 - b1 ** (i + 1))) / (np.sqrt(second / (1 - b2 ** (i + 1))) + eps)
    return x
