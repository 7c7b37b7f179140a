"""How a ``tape.Function`` appears to JAX: as a function with the user's derivatives.

Without a ``jvp`` it is a ``jax.custom_vjp``.  With one it is a ``jax.custom_jvp`` whose tangent map is transposed by the user's backward,
so that both directions are the user's.  Under ``jax.vmap`` its own ``vmap``, if it has one, computes the outputs of a whole batch, in
place of a mapped forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tape import jaxapi
from tape.errors import RuleError
from tape.functions.arguments import Definition, Layout
from tape.functions.backward import pull, push
from tape.functions.checks import check_mapping, outputs_of
from tape.functions.context import Context
from tape.functions.linear_map import is_zero, linear_map, zero_tangent
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, parked
from tape.graph.segment import Handle, is_variable
from tape.graph.trees import flatten
from tape.graph.trie import CONSTANT, RECORD
from tape.graph.watcher import NOBODY
from tape.jaxapi import ShapedArray
from tape.programs.program import look
from tape.recording import record


def as_jax_function(context: Context, inputs: Sequence[Handle], tree: jax.tree_util.PyTreeDef) -> list[Handle]:
    """Return the outputs of a call, of which there is a context, as those of a JAX function whose derivatives are the user's."""
    function = context._function
    call = _Call(function, context._layout, context._avals, context._outputs, tree)
    values = (_reverse_mode if function.jvp is None else _forward_mode)(call)(*[look(v) for v in inputs])
    smooth = () if LOCAL.scope.mode == CONSTANT else context._places
    return [record.leaf(x if i in smooth else jax.lax.stop_gradient(x)) for i, x in enumerate(values)]


class _Call(NamedTuple):
    """One call, as a function of arrays: the arguments without their arrays."""

    function: Definition
    layout: Layout
    avals: tuple[ShapedArray, ...]
    outputs: tuple[ShapedArray, ...]
    tree: Any  # of the outputs

    def run(self, arrays: Sequence[jax.Array], needs: tuple[bool, ...]) -> tuple[Context, dict[int, int], list[jax.Array]]:
        """Call the forward; return its context, which outputs Variables are (by the id of their cell), and the outputs."""
        context = Context(self.function, self.layout, self.avals, needs, traced=True)
        inputs = [record.leaf(x) for x in arrays]
        args, kwargs = self.layout.filled(inputs)
        with _alone():
            outputs, _ = outputs_of(self.function, self.function.forward(context, *args, **kwargs))
        context._give(outputs)
        positions = {id(v._cell): i for i, v in enumerate(outputs)}
        for v in inputs:
            positions.pop(id(v._cell), None)
        return context, positions, [look(v) for v in outputs]

    def values(self, *arrays: jax.Array) -> list[jax.Array]:
        """Return the outputs."""
        return self.run(arrays, (False,) * len(arrays))[2]

    def mapped(self, *arrays: jax.Array) -> list[jax.Array]:
        """Return the outputs; where ``jax.vmap`` maps this, they are those of the function's own ``vmap``, if it has one."""
        if self.function.vmap is None or not any(isinstance(x, jaxapi.Tracer) for x in arrays):
            return self.values(*arrays)  # nobody maps it, and the forward may look at values
        single = jaxapi.custom_vmap(self.values)
        single.def_vmap(functools.partial(_mapped, self))
        return list(single(*arrays))


def _kept(
    call: _Call, context: Context, positions: dict[int, int], results: Sequence[jax.Array]
) -> tuple[list[Any], Callable[..., Context]]:
    """Return the arrays that a context holds, and what makes the context of them again.

    Saved outputs are the results of the function, with its derivatives, as on the tape.
    """
    saved = context._kept.get("saved")
    held = None if saved is None else saved.value(saved.leaves), dict(context.__dict__)
    leaves, tree = flatten(held)
    arrays: list[Any] = []
    for i, x in enumerate(leaves):
        if is_variable(x):
            position = positions.get(id(x._cell))
            arrays.append(look(x) if position is None else results[position])
            leaves[i] = _VARIABLE
        elif isinstance(x, jax.Array):
            arrays.append(x)
            leaves[i] = _ARRAY
    needs, materialize, outputs, places = context.needs_input_grad, context._materialize, context._outputs, context._places

    def again(*arrays: jax.Array) -> Context:
        it = iter(arrays)
        values, free = jax.tree.unflatten(
            tree, [record.leaf(next(it)) if x is _VARIABLE else next(it) if x is _ARRAY else x for x in leaves]
        )
        context = Context(call.function, call.layout, call.avals, needs, traced=True)
        context._materialize, context._outputs, context._places = materialize, outputs, places
        if values is not None:
            context.save_for_backward(*values)
        context.__dict__.update(free)
        return context

    return arrays, again


_VARIABLE, _ARRAY = object(), object()


def _named(call: _Call) -> Callable[..., list[jax.Array]]:
    """Return a call as a function of its arrays, of the name by which reports know the user's class."""

    def fun(*arrays: jax.Array) -> list[jax.Array]:
        return call.mapped(*arrays)

    fun.__name__ = call.function.__name__
    return fun


def _reverse_mode(call: _Call) -> Callable[..., list[jax.Array]]:
    """Return a call as a function of its arrays with the user's backward."""
    fun = jax.custom_vjp(_named(call))

    def forward(*primals: Any) -> tuple[list[jax.Array], Callable[[], Context]]:
        needs = tuple([bool(p.perturbed) and differentiable(a) for p, a in zip(primals, call.avals, strict=True)])
        arrays = [p.value for p in primals]
        context, positions, _ = call.run(arrays, needs)
        results = fun(*arrays)  # whose derivatives, of higher order, are the user's too
        held, again = _kept(call, context, positions, results)
        return results, jaxapi.partial(again, *held)

    def backward(saved: Callable[[], Context], cotangents: Sequence[Any]) -> tuple[jax.Array | None, ...]:
        return tuple(_pull(saved(), cotangents))

    sharing = {} if call.function.vmap is None else jaxapi.SHARING  # a loop cannot contain calls that may be mapped in that way
    fun.defvjp(forward, backward, symbolic_zeros=True, **sharing)
    return fun


def _forward_mode(call: _Call) -> Callable[..., list[jax.Array]]:
    """Return a call as a function of its arrays with the user's jvp, transposed by the user's backward."""
    fun = jax.custom_jvp(_named(call))

    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[list[jax.Array], list[Any]]:
        moving = [i for i, t in enumerate(tangents) if not is_zero(t)]
        context, positions, _ = call.run(primals, tuple([i in moving for i in range(len(primals))]))
        results = fun(*primals)
        held, again = _kept(call, context, positions, results)
        places, avals = context._places, call.outputs  # the linear map lives in JAX's caches: it closes over nothing that may be a tracer
        smooth = [i for i in places if differentiable(avals[i])]

        def forward(residuals: Sequence[jax.Array], linear: Sequence[jax.Array]) -> list[jax.Array]:
            given: list[Handle | None] = [None] * len(call.avals)
            for i, t in zip(moving, linear, strict=True):
                given[i] = record.leaf(t)
            with _alone():
                pushed = dict(zip(places, push(again(*residuals), given), strict=True))
                return [_array(pushed[i], avals[i]) for i in smooth]

        def transpose(residuals: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> list[jax.Array]:
            given: list[jax.Array | None] = [None] * len(avals)
            for i, ct in zip(smooth, cotangents, strict=True):
                given[i] = ct
            pulled = _pull(again(*residuals), given)
            return [jnp.zeros(call.avals[i].shape, call.avals[i].dtype) if (g := pulled[i]) is None else g for i in moving]

        pushed = dict(zip(smooth, linear_map(forward, transpose, held, [tangents[i] for i in moving]), strict=True))
        return results, [pushed[i] if i in pushed else zero_tangent(x) for i, x in enumerate(results)]

    fun.defjvp(rule, symbolic_zeros=True)
    return fun


def _pull(context: Context, cotangents: Sequence[Any]) -> list[jax.Array | None]:
    """Call the user's backward on arrays; None is zero."""
    seeds = [None if is_zero(ct) else record.leaf(ct) for ct in cotangents]
    if all(s is None for s in seeds):
        return [None] * len(context._avals)
    with _alone():
        return [None if g is None else look(g) for g in pull(context, [seeds[i] for i in context._places])]


def _alone() -> parked:
    """While the user's Python runs for JAX, which differentiates what it computes: the Variables in it are constants to the tape.

    That may be at any moment, also while an entry is being recorded: what is pending outside stays as it is.
    """
    return parked(mode=RECORD, caller=NOBODY, forward=NOBODY)


def _array(variable: Handle | None, like: ShapedArray) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype) if variable is None else look(variable)


class MapInfo(NamedTuple):
    """What a ``vmap`` is told besides its arguments.

    Attributes:
        batch_size: how many calls the one call stands for.
        keyword_dims: by name, where the arrays of keyword arguments have their further axis: as ``in_dims`` for positional ones.

    """

    batch_size: int
    keyword_dims: dict[str, Any]


def _mapped(call: _Call, size: int, flags: Sequence[bool], *batch: jax.Array) -> tuple[list[jax.Array], list[bool]]:
    """Return what the function's own ``vmap`` gives as arrays with the further axis first, and which of them have it."""
    function = call.function
    assert function.vmap is not None
    args, kwargs = call.layout.filled([record.leaf(x) for x in batch])
    in_dims, keyword_dims = call.layout.filled([0 if flag else None for flag in flags], others=False)
    given = (MapInfo(size, keyword_dims), tuple(in_dims), *args)
    check_mapping(function, given, kwargs)
    returned = function.vmap(*given, **kwargs)
    name = f"{function.__name__}.vmap"
    if not isinstance(returned, tuple) or len(returned) != len(("outputs", "out_dims")):
        what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        msg = (
            f"{name} must return (outputs, out_dims), got {what}; return the outputs, and for each the axis of the batch (None: it has "
            "none)"
        )
        raise RuleError(msg)
    outputs, tree = outputs_of(function, returned[0], "vmap")
    if tree != call.tree:
        msg = f"{name} returned outputs of the structure {tree}, but forward returns {call.tree}; return the same structure"
        raise RuleError(msg)
    try:
        numbered = jax.tree.unflatten(tree, range(len(outputs)))
        dims = jax.tree.leaves(jax.tree.broadcast(returned[1], numbered, is_leaf=_is_none), is_leaf=_is_none)
    except ValueError:
        dims = []
    if len(dims) != len(outputs):
        msg = (
            f"{name} returned out_dims {returned[1]!r} for {len(outputs)} outputs; return one axis per output, or one for all (None: no "
            "axis)"
        )
        raise RuleError(msg)
    arrays = []
    for i, (v, dim, aval) in enumerate(zip(outputs, dims, call.outputs, strict=True)):
        got = v._place.kind.aval
        if dim is not None and (dim.__class__ is not int or not -len(got.shape) <= dim < len(got.shape)):
            msg = f"{name} returned {dim!r} as the axis of output {i}, which has shape {got.shape}; return the axis of the batch, or None"
            raise RuleError(msg)
        at = None if dim is None else dim % len(got.shape)
        expected = aval.shape if at is None else (*aval.shape[:at], size, *aval.shape[at:])
        if (got.shape, got.dtype) != (expected, aval.dtype):
            msg = (
                f"{name} returned shape {got.shape}, dtype {got.dtype} as output {i} with the batch at axis {dim}, but {size} outputs of "
                f"forward there have shape {expected}, dtype {aval.dtype}"
            )
            raise RuleError(msg)
        arrays.append(look(v) if at is None else jnp.moveaxis(look(v), at, 0))
    return arrays, [dim is not None for dim in dims]


def _is_none(x: object) -> bool:
    return x is None
