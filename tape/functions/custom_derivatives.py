"""How a ``tape.Function`` appears to JAX: as a function with the user's derivatives.

Without a ``jvp`` it is a ``jax.custom_vjp``.  With one it is a ``jax.custom_jvp`` whose tangent map is transposed by the user's backward, so
that both directions are the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.functions.context import Context
from tape.functions.linear_map import linear_map
from tape.functions.mapped import mapped
from tape.functions.returned import outputs_of
from tape.functions.tracking import Arguments, is_variable, refilled
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, parked
from tape.graph.trie import CONSTANT, RECORD
from tape.graph.watcher import NOBODY
from tape.programs.program import look
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_jax_function"]


def as_jax_function(function: Any, arguments: Arguments, context: Context, outputs: Sequence[Any], tree: Any) -> list[Any]:
    """Compute the outputs as a JAX function whose derivatives are the user's.

    Args:
        function: the ``tape.Function``.
        arguments: its arguments, the value of one of which belongs to a JAX transformation.
        context: the context of a call of its forward.
        outputs: what that call returned.
        tree: the tree of the outputs (None for one Variable).

    """
    call = _Call(function, arguments, context, outputs, tree)
    arrays = [look(v) for v in arguments.inputs]
    values = (_forward_mode if function.jvp is not None else _reverse_mode)(call)(*arrays)
    marked = {id(v._cell) for v in context._constants}
    if LOCAL.scope.mode == CONSTANT:
        values = [jax.lax.stop_gradient(x) for x in values]
    elif marked:
        values = [jax.lax.stop_gradient(x) if id(v._cell) in marked else x for x, v in zip(values, outputs, strict=True)]
    return [record.leaf(x) for x in values]


class _Call:
    """One call, as a function of arrays: the arguments without their arrays."""

    def __init__(self, function: Any, arguments: Arguments, context: Context, outputs: Sequence[Any], tree: Any) -> None:
        self.function = function
        self.outputs = [v._place.kind.aval for v in outputs]
        self.tree = tree
        self.avals = context._avals
        self.parts = arguments.parts
        self.stripped = arguments.stripped()

    def run(self, arrays: Sequence[Any], needs: tuple[bool, ...]) -> tuple[Context, dict[int, int], list[Any]]:
        """Call the forward; return its context, which outputs Variables are (by the id of their cell), and the outputs."""
        context = Context(self.function, needs, self.avals, self.parts)
        context._traced = True
        inputs = [record.leaf(x) for x in arrays]
        args, kwargs = refilled(self.stripped, inputs)
        with _alone():
            outputs, _ = outputs_of(self.function, self.function.forward(context, *args, **kwargs))
        context._outputs = tuple([v._place.kind.aval for v in outputs])
        marked = {id(v._cell) for v in context._constants}
        if marked:
            context._places = tuple(i for i, v in enumerate(outputs) if id(v._cell) not in marked)
        context._constants = []
        positions = {id(v._cell): i for i, v in enumerate(outputs)}
        for v in inputs:
            positions.pop(id(v._cell), None)
        return context, positions, [look(v) for v in outputs]

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs; where ``jax.vmap`` maps this, they are those of the function's own ``vmap``, if it has one."""

        def single(*arrays: Any) -> list[Any]:
            return self.run(arrays, (False,) * len(arrays))[2]

        if self.function.vmap is None:
            return single(*arrays)
        return mapped(self.function, single, self.stripped, self.outputs, self.tree, arrays)


class _Saved:
    """What a context holds, as arrays and as what is no array: it may pass a transformation's boundary."""

    def __init__(self, arrays: Sequence[Any], static: _Static) -> None:
        self.arrays = arrays
        self.static = static

    def context(self) -> Context:
        """Make the context again."""
        it = iter(self.arrays)
        static = self.static
        leaves = [record.leaf(next(it)) if x is _VARIABLE else next(it) if x is _ARRAY else x for x in static.leaves]
        saved, free = jax.tree.unflatten(static.tree, leaves)
        made = Context(static.call.function, static.needs, static.call.avals, static.call.parts)
        made._traced, made._materialize, made._outputs, made._places = True, static.materialize, static.outputs, static.places
        if saved is not None:
            made.save_for_backward(*saved)
        made.__dict__.update(free)
        return made


class _Static:
    """What a context holds besides arrays; JAX compares it by identity."""

    def __init__(self, call: _Call, context: Context, tree: Any, leaves: list[Any]) -> None:
        self.call = call
        self.needs = context.needs_input_grad
        self.materialize = context._materialize
        self.outputs = context._outputs
        self.places = context._places
        self.tree = tree
        self.leaves = leaves


_VARIABLE, _ARRAY = object(), object()


def _saved(call: _Call, context: Context, positions: dict[int, int], results: Sequence[Any]) -> _Saved:
    """Take what a context holds; saved outputs are the results of the function, with its derivatives, as on the tape."""
    kept = None if context._saved is None else context._saved.value()
    leaves, tree = jax.tree.flatten((kept, dict(context.__dict__)), is_leaf=is_variable)

    def array(x: Any) -> Any:
        if not is_variable(x):
            return x
        position = positions.get(id(x._cell))
        return look(x) if position is None else results[position]

    arrays = [array(x) for x in leaves if is_variable(x) or isinstance(x, jax.Array)]
    marks = [_VARIABLE if is_variable(x) else _ARRAY if isinstance(x, jax.Array) else x for x in leaves]
    return _Saved(arrays, _Static(call, context, tree, marks))


jax.tree_util.register_pytree_node(_Saved, lambda s: (s.arrays, s.static), lambda static, arrays: _Saved(arrays, static))


def _reverse_mode(call: _Call) -> Any:
    """Return a call as a function of its arrays with the user's backward."""

    @jax.custom_vjp
    def fun(*arrays: Any) -> list[Any]:
        return call.values(arrays)

    def forward(*primals: Any) -> Any:
        needs = tuple([bool(p.perturbed) and differentiable(a) for p, a in zip(primals, call.avals, strict=True)])
        arrays = [p.value for p in primals]
        context, positions, _ = call.run(arrays, needs)
        results = fun(*arrays)  # whose derivatives, of higher order, are the user's too
        return results, _saved(call, context, positions, results)

    def backward(saved: _Saved, cotangents: Any) -> Any:
        return tuple(_pull(saved.context(), cotangents))

    sharing = {} if call.function.vmap is None else jaxapi.SHARING  # a loop cannot contain calls that may be mapped in that way
    fun.defvjp(forward, backward, symbolic_zeros=True, **sharing)
    return fun


def _forward_mode(call: _Call) -> Any:
    """Return a call as a function of its arrays with the user's jvp, transposed by the user's backward."""

    @jax.custom_jvp
    def fun(*arrays: Any) -> list[Any]:
        return call.values(arrays)

    def rule(primals: Any, tangents: Any) -> Any:
        moving = [i for i, t in enumerate(tangents) if not _is_zero(t)]
        context, positions, _ = call.run(primals, tuple([i in moving for i in range(len(primals))]))
        results = fun(*primals)
        saved = _saved(call, context, positions, results)
        smooth = [i for i, x in enumerate(results) if differentiable(x) and (context._places is None or i in context._places)]

        def forward(residuals: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
            given: list[Any] = [None] * len(primals)
            for i, t in zip(moving, linear, strict=True):
                given[i] = record.leaf(t)
            with _alone():
                found = _Saved(residuals, saved.static).context()._push(given)
                places = range(len(results)) if context._places is None else context._places
                table = dict(zip(places, found, strict=True))
                return [_array(table[i], results[i]) for i in smooth]

        def transpose(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            given: list[Any] = [None] * len(results)
            for i, ct in zip(smooth, cotangents, strict=True):
                given[i] = ct
            found = _pull(_Saved(residuals, saved.static).context(), given)
            return [jnp.zeros(call.avals[i].shape, call.avals[i].dtype) if found[i] is None else found[i] for i in moving]

        pushed = dict(zip(smooth, linear_map(forward, transpose, saved.arrays, [tangents[i] for i in moving]), strict=True))
        return results, [pushed[i] if i in pushed else _zero(x) for i, x in enumerate(results)]

    fun.defjvp(rule, symbolic_zeros=True)
    return fun


def _pull(context: Context, cotangents: Sequence[Any]) -> list[Any]:
    """Call the user's backward on arrays; None is zero."""
    seeds = [None if _is_zero(ct) else record.leaf(ct) for ct in cotangents]
    if all(s is None for s in seeds):
        return [None] * len(context._avals)
    if context._places is not None:
        seeds = [seeds[i] for i in context._places]
    with _alone():
        return [None if g is None else look(g) for g in context._pull(seeds)]


def _alone() -> parked:
    """While the user's Python runs for JAX, which differentiates what it computes: the Variables in it are constants to the tape.

    That may be at any moment, also while an entry is being recorded: what is pending outside stays as it is.
    """
    return parked(mode=RECORD, caller=NOBODY, forward=NOBODY)


def _is_zero(x: Any) -> bool:
    return x is None or isinstance(x, (jaxapi.SymbolicZero, jaxapi.ad.Zero)) or x.dtype == jaxapi.float0


def _array(variable: Any, like: Any) -> Any:
    return jnp.zeros(like.shape, like.dtype) if variable is None else look(variable)


def _zero(x: Any) -> Any:
    return jnp.zeros(x.shape, x.dtype) if differentiable(x) else np.zeros(x.shape, jaxapi.float0)
