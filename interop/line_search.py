"""Line searches by a closure that computes the loss and its gradients anew, as users of PyTorch write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import tape
from tape import extend
from tape.errors import TapeTypeError, TapeValueError
from tape.jaxapi import Tracer

_NEEDED = (
    "Optimizer.step: optax's transformation needs more than gradients ({}); call optimizer.step(value=loss) or, for a line search such as "
    "optax.lbfgs(), optimizer.step(value=loss, grad=jax.tree.map(lambda p: p.grad, optimizer.parameters), value_fn=interop.lower(f)), "
    "where f(parameters) computes the loss"
)


class LackingError(Exception):
    """A transformation needs arguments beside the gradients: what Python said, and their ``names``, which nothing else tells."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said
        self.names = frozenset(re.findall(r"'(\w+)'", said))

    def told(self) -> TapeTypeError:
        """Return the error for the user."""
        return TapeTypeError(_NEEDED.format(self.said))


def checked_loss(loss: Any) -> tape.Variable:
    """Return what a closure returned.

    Raises:
        TapeTypeError: it is not a Variable.
        TapeValueError: it has another size than 1.

    """
    if not isinstance(loss, tape.Variable):
        msg = f"Optimizer.step: the closure must return the loss, a tape.Variable, got {type(loss).__name__}; end it with `return loss`"
        raise TapeTypeError(msg)
    if loss.size != 1:
        msg = f"Optimizer.step: the loss of the closure has shape {loss.shape}; reduce it to one number, for instance with .mean()"
        raise TapeValueError(msg)
    return loss


def searched(
    update: Callable[..., Any], closure: Callable[[], Any], loss: tape.Variable, leaves: Sequence[tape.Variable], tree: Any, state: Any
) -> tuple[list[Any], Any]:
    """Return parameters and state after optax's update, where a search evaluates the closure at other values of the parameters.

    Optax runs step by step on values (``jax.disable_jit``), and so the closure may be any Python.  In the end the parameters have the
    values and gradients that they had.

    Args:
        update: of optax's transformation.
        closure: computes the loss of the parameters, sweeps back from it, and returns it.
        loss: what it returned for their present values; their gradients are there.
        leaves: the parameters.
        tree: their structure.
        state: optax's.

    Raises:
        TapeTypeError: a JAX transformation, or ``tape.jit``, runs.

    """
    value, before, kept = extend.array(loss).reshape(()), [extend.array(p) for p in leaves], [p.grad for p in leaves]
    if any(isinstance(x, Tracer) for x in (value, *before)):
        msg = (
            "Optimizer.step: a line search by a closure looks at values, which are not known inside of tape.jit and JAX's transformations; "
            "take the step outside of it, or call optimizer.step(value=loss, grad=gradients, value_fn=interop.lower(f))"
        )
        raise TapeTypeError(msg)

    def gradients() -> list[jax.Array]:
        return [jnp.zeros_like(x) if p.grad is None else extend.array(p.grad) for p, x in zip(leaves, before, strict=True)]

    def at(params: Any) -> tuple[jax.Array, list[jax.Array]]:
        with jax.disable_jit(False), tape.enable_grad():
            for p, x in zip(leaves, jax.tree.leaves(params), strict=True):
                p.value = x
                p.grad = None
            return extend.array(checked_loss(closure())).reshape(()), gradients()

    @jax.custom_vjp
    def value_fn(params: Any) -> jax.Array:
        return at(params)[0]

    value_fn.defvjp(at, lambda found, ct: (jax.tree.unflatten(tree, [ct.astype(g.dtype) * g for g in found]),))
    known = jax.tree.unflatten(tree, before)
    gradient = jax.tree.unflatten(tree, gradients())
    try:
        with jax.disable_jit():
            updates, after = update(gradient, state, known, value=value, grad=gradient, value_fn=value_fn)
            moved = optax.apply_updates(known, updates)
    finally:
        for p, x, g in zip(leaves, before, kept, strict=True):
            p.value = x
            p.grad = g
    return jax.tree.leaves(moved), after
