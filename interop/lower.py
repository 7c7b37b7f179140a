"""From the tape to JAX: a function written with the tape becomes a JAX function whose derivative is the tape's sweep."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.modes import enable_grad
from tape.ops.pullback import differentiable
from tape.programs.program import look
from tape.recording import boundary, record
from tape.recording.segment import Handle
from tape.sweeps.sweep import Sweep, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lower"]


def lower(tape_fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make a JAX function of a function written with the tape.

    Args:
        tape_fun: takes Variables (in pytrees, among static objects) and returns Variables or arrays; it may call ``backward``, use hooks
            and ``tape.Function``.  Variables that it captures are constants to JAX, as arrays are that a JAX function captures.

    Returns:
        A function over pytrees of arrays, for ``jax.jit``, ``jax.vmap``, ``jax.grad`` and the rest.  Its reverse-mode derivative is the
        tape's own sweep, hooks included; second derivatives differentiate that sweep.

    Raises:
        TapeTypeError: ``tape_fun`` cannot be called, or returns something that is no array.

    Example:
        >>> import jax, interop
        >>> square = interop.lower(lambda x: x * x)
        >>> float(jax.grad(square)(3.0))
        6.0

    """
    if not callable(tape_fun):
        msg = f"lower: expected a function, got {type(tape_fun).__name__}"
        raise TapeTypeError(msg)

    @functools.wraps(tape_fun)
    def lowered(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
        leaves = [look(x) if isinstance(x, Handle) else x for x in leaves]
        dynamic = [isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) or type(x) is int for x in leaves]
        arguments = [x for x, d in zip(leaves, dynamic, strict=True) if d]
        statics = [None if d else x for x, d in zip(leaves, dynamic, strict=True)]  # what JAX keeps of us may hold no tracer
        trees: list[Any] = []

        def run(arrays: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
            """Call the tape function on Variables of ``arrays``; return them and its flat outputs as Variables."""
            inputs = [record.leaf(jnp.asarray(x), requires_grad=differentiable(jnp.asarray(x))) for x in arrays]
            it = iter(inputs)
            filled = [next(it) if d else x for x, d in zip(statics, dynamic, strict=True)]
            again_args, again_kwargs = jax.tree.unflatten(tree, filled)
            with enable_grad(), boundary.allowing_captures():
                result = tape_fun(*again_args, **again_kwargs)
            flat, out_tree = jax.tree.flatten(result, is_leaf=lambda x: isinstance(x, Handle))
            trees[:] = [out_tree]
            return inputs, [_variable(x) for x in flat]

        @jax.custom_vjp
        def call(*arrays: Any) -> list[Any]:
            return [_array(v) for v in run(arrays)[1]]

        def forward(*arrays: Any) -> tuple[list[Any], Any]:
            inputs, outputs = run(arrays)
            able = [v for v in outputs if v._place.kind.requires_grad]

            def pull(seeds: list[Any]) -> list[Any]:
                sweep = Sweep([target_of(v) for v in inputs if v._place.kind.requires_grad], (), create_graph=False)
                with boundary.allowing_captures():
                    sweep.run(able, [record.leaf(s) for s in seeds])
                found = [sweep.gradients.get(target_of(v)) if v._place.kind.requires_grad else None for v in inputs]
                return [jnp.zeros(v.shape, v.dtype) if g is None else _array(g) for v, g in zip(inputs, found, strict=True)]

            jaxpr = jax.make_jaxpr(pull)([jaxapi.ShapedArray(v.shape, v.dtype) for v in able])
            marks = [v._place.kind.requires_grad for v in outputs]
            kept = jaxapi.partial(_Pull(jaxpr.jaxpr, marks, [differentiable(v._place.kind.aval) for v in inputs]), *jaxpr.consts)
            return [_array(v) for v in outputs], kept

        def backward(kept: Any, cts: list[Any]) -> tuple[Any, ...]:
            return kept(cts=cts)  # type: ignore[no-any-return]

        call.defvjp(forward, backward)
        results = call(*arguments)
        return jax.tree.unflatten(trees[0], results)

    return lowered


class _Pull:
    """The tape's sweep as a jaxpr; its constants (the residuals) travel beside it."""

    def __init__(self, jaxpr: Any, marks: list[bool], able: list[bool]) -> None:
        self.jaxpr = jaxpr
        self.marks = marks
        self.able = able

    def __call__(self, *residuals: Any, cts: list[Any]) -> tuple[Any, ...]:
        seeds = [ct for ct, m in zip(cts, self.marks, strict=True) if m]
        found = jaxapi.eval_jaxpr(self.jaxpr, residuals, *seeds)
        return tuple(g if able else np.zeros(g.shape, jaxapi.float0) for g, able in zip(found, self.able, strict=True))


def _variable(value: Any) -> Any:
    if isinstance(value, Handle):
        return value
    if isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        return record.leaf(jnp.asarray(value))
    msg = f"lower: the function must return Variables or arrays, got {type(value).__name__}"
    raise TapeTypeError(msg)


def _array(variable: Any) -> Any:
    with boundary.allowing_captures():  # JAX differentiates it by our sweep: nothing is lost
        found = look(variable)
    return found if isinstance(found, jax.Array) else jnp.asarray(found)
