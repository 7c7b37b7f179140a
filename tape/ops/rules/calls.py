"""Rules of calls: of those that bring a derivative or a linear solver of their own, and of those that are computed again in the sweep.

The user's derivative of a ``custom_jvp`` or ``custom_vjp`` function is asked for, so these two rules, and only these, ask JAX for it.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.errors import LostGradientError, TapeTypeError
from tape.graph.kinds import differentiable, varying
from tape.ops.apart import apart
from tape.ops.building import rebuilt
from tape.ops.linear import flatten
from tape.ops.pullback import pullback
from tape.ops.residuals import AppliedPolicy, Keep, inside, pruned
from tape.rules import parameters
from tape.rules.cotangents import asked_for, filled, for_jax, spread
from tape.rules.registry import Cost, Example, leave_to_jax, register

_CUSTOM_JVP: Any = jaxapi.primitive("custom_jvp_call")
_CUSTOM_VJP: Any = jaxapi.primitive("custom_vjp_call")
_LINEAR = ContextVar("linear", default=False)  # whether a user's JVP is being swept


def _chosen(ins: tuple[Any, ...], wanted: tuple[bool, ...] | None) -> list[int]:
    """Positions of the inputs whose cotangents are wanted."""
    return [i for i, flag in enumerate(asked_for(ins, wanted)) if flag]


def _check_no_flow(params: dict[str, Any], ins: tuple[Any, ...], cts: tuple[Any, ...], closed_over: list[int]) -> None:
    """Check that values which a function closes over need no gradient, since its rule gives none to them."""
    wanted = [i in closed_over for i in range(len(ins))]
    flowing: list[Any] = []

    def fun(ins: Any, cts: Any) -> list[Any]:
        grads = pullback(jaxapi.closed(params["call_jaxpr"]), ins, cts, wanted)
        flowing.extend(x for x, grad in zip(ins, grads, strict=True) if grad is not None)
        return [grad for grad in grads if grad is not None]

    jax.eval_shape(fun, ins, cts)
    if flowing:
        x = flowing[0]
        msg = (
            f"a custom_vjp function closes over a value that is differentiated (shape {x.shape}, dtype {x.dtype}), and its rule gives "
            "gradients to arguments only; pass the value to the function as an argument, or close over jax.lax.stop_gradient of it"
        )
        raise LostGradientError(msg)


@jax.custom_vjp
def _doubled(x: Any, y: Any) -> Any:
    return x * jnp.sin(y)


_doubled.defvjp(
    lambda x, y: (_doubled(x, y), (x, y)),
    lambda saved, ct: (ct * jnp.sin(saved[1]), ct * saved[0] * jnp.cos(saved[1])),
)


@register(
    "custom_vjp_call",
    source="the user's backward function",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    selective=True,
    cost=Cost.LOOPED,
    examples=[Example(_doubled, ((3,), (3,))), Example(_doubled, ((0,), (0,)), "empty")],
)
def _custom_vjp_call(ct: Any, out: Any, *ins: Any, wanted: Any = None, **params: Any) -> tuple[Any, ...]:
    """Run the user's forward and backward functions."""
    chosen = _chosen(ins, wanted)
    closed_over = [i for i in chosen if i < params["num_consts"]]
    if closed_over:
        _check_no_flow(params, ins, ct, closed_over)
        chosen = chosen[len(closed_over) :]
    if not chosen:
        return (None,) * len(ins)
    fun = parameters.partial(_CUSTOM_VJP, params, ins, chosen)
    there = [c is not None for c in ct]  # a backward that asks is told which are not
    _, backward = jax.vjp(lambda *given: list(itertools.compress(fun(*given), there)), *[ins[i] for i in chosen])
    likes = list(itertools.compress(out, there))
    return spread(apart(lambda cts: backward(list(for_jax(cts, likes))), list(itertools.compress(ct, there))), chosen, len(ins))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _cubed(x: Any, factor: float) -> Any:
    return factor * x * x * x


@_cubed.defjvp
def _cubed_jvp(factor: float, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    return _cubed(x, factor), 3 * factor * x * x * dx


@register(
    "custom_jvp_call",
    source="the user's JVP, transposed by a sweep over it",
    domain=((-1.0, 1.0),),
    selective=True,
    cost=Cost.LOOPED,
    examples=[
        Example(lambda x: _cubed(x, 2.0), ((3,),)),
        Example(lambda x: jax.nn.silu(_cubed(x, 0.5)), ((2, 3),), "nested in others"),
        Example(lambda x: _cubed(x, 2.0), ((0,),), "empty"),
    ],
)
def _custom_jvp_call(ct: Any, out: Any, *ins: Any, wanted: Any = None, **params: Any) -> tuple[Any, ...]:
    """Sweep the user's JVP, which is linear in the tangents, backwards."""
    chosen = _chosen(ins, wanted)
    if _LINEAR.get():  # a JVP applies the function to tangents: what is linear is its own derivative, and asking for it had no end
        return tuple(pullback(jaxapi.closed(params["call_jaxpr"]), ins, ct, [i in chosen for i in range(len(ins))]))
    fun = parameters.partial(_CUSTOM_JVP, params, ins, chosen)
    smooth = [i for i, x in enumerate(out) if differentiable(x)]

    def tangents_out(*tangents: Any) -> list[Any]:
        _, results = jax.jvp(fun, tuple(ins[i] for i in chosen), tangents)
        return [results[i] for i in smooth]

    start = [jnp.zeros_like(ins[i]) for i in chosen]
    linear, _ = jaxapi.trace(tangents_out, *start)
    token = _LINEAR.set(True)
    try:
        grads = pullback(linear, start, [ct[i] for i in smooth])
    finally:
        _LINEAR.reset(token)
    return spread(grads, chosen, len(ins))


def _augment_remat(params: dict[str, Any], keep: Keep) -> tuple[dict[str, Any], list[Any]]:
    """Give a checkpoint the values that its policy lets be kept as further outputs."""
    policy = params["policy"]
    if policy is None or isinstance(policy, AppliedPolicy):
        return params, []
    listed, slots = inside(jaxapi.closed(params["jaxpr"]), replace(keep, policies=(*keep.policies, policy)))
    further = [s for s in slots if s not in listed.outputs]
    larger = rebuilt(listed, [*listed.outputs, *further])
    if larger.consts:  # nowhere to put them: the primitive has none
        return params, []
    kept = tuple(s in slots for s in (*listed.outputs, *further))
    return {**params, "jaxpr": larger.jaxpr, "policy": AppliedPolicy(policy, kept)}, [listed.avals[s] for s in further]


def _prune_remat(params: dict[str, Any], used: list[bool]) -> tuple[dict[str, Any], list[bool], list[bool]]:
    """Drop the outputs of a checkpoint that nothing reads; its inputs stay."""
    listed, read = pruned(jaxapi.closed(params["jaxpr"]), used)
    smaller = rebuilt(listed, listed.outputs)
    if smaller.consts:  # nowhere to put them, as above
        return params, [True] * len(read), [True] * len(used)
    policy = params["policy"]
    if isinstance(policy, AppliedPolicy) and len(policy.kept) == len(used):
        policy = AppliedPolicy(policy.policy, tuple(kept for kept, flag in zip(policy.kept, used, strict=True) if flag))
    return {**params, "jaxpr": smaller.jaxpr, "policy": policy}, [True] * len(read), used


def _body(x: Any, y: Any) -> tuple[Any, Any]:
    z = jnp.sin(x * y)
    return z * x, jnp.cos(z)


@register(
    "remat",
    source="chain rule over the body",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    selective=True,
    augment=_augment_remat,
    prune=_prune_remat,
    cost=Cost.HIGH,
    examples=[
        Example(jax.checkpoint(_body), ((3,), (3,))),
        Example(jax.checkpoint(_body, prevent_cse=False), ((3,), (3,)), "without a barrier"),
        Example(jax.checkpoint(_body, policy=jax.checkpoint_policies.dots_saveable), ((3,), (3,)), "with a policy"),
    ],
)
def _remat(ct: Any, out: Any, *ins: Any, jaxpr: Any, prevent_cse: Any = True, policy: Any = None, wanted: Any = None, **_: Any) -> Any:
    """Sweep the body with its forward values computed again, those excepted that the policy kept, not before the cotangents are there."""
    known = policy.kept if isinstance(policy, AppliedPolicy) and len(policy.kept) == len(out) else (False,) * len(out)
    guarded = prevent_cse if isinstance(prevent_cse, (tuple, list)) else (prevent_cse,) * len(ins)
    held = [i for i, guard in enumerate(guarded) if guard]
    values = list(ins)
    outs = [x if flag else None for x, flag in zip(out, known, strict=True)]
    body = jaxapi.closed(jaxpr)
    if held:
        barred, outs, ct = _barrier(([ins[i] for i in held], outs, tuple(ct)))
        for i, value in zip(held, barred, strict=True):
            values[i] = value
        if jax.default_backend() == "cpu":
            _hide(values, _cover(body, held), ct)
    return pullback(body, values, ct, wanted, outs)


def _barrier(tree: Any) -> Any:
    """Have none of some values be there before all are; in ``jax.shard_map`` that can be said of those that vary over most axes."""
    values = jax.tree.leaves(tree)
    axes = list(map(varying, values))
    most = max(axes, key=len)
    barrier: Any = lax.optimization_barrier
    barred = iter(barrier([x for x, a in zip(values, axes, strict=True) if a == most]))
    return jax.tree.unflatten(jax.tree.structure(tree), [next(barred) if a == most else x for x, a in zip(values, axes, strict=True)])


def _cover(body: jaxapi.ClosedJaxpr, held: list[int]) -> list[int]:
    """Choose inputs, small ones first, such that whatever depends on a held input depends on a chosen one."""
    listed = flatten(body)
    depends = {i for i in held if not jnp.issubdtype(listed.avals[i].dtype, jax.dtypes.extended)}
    hidden: set[int] = set()
    chosen = []
    for entry in listed.entries:
        slots = [s for s in entry.inputs if isinstance(s, int)]
        if hidden.isdisjoint(slots) and (given := [s for s in slots if s in depends and s < listed.n_inputs]):
            chosen.append(min(given, key=lambda i: listed.avals[i].size))
            hidden.add(chosen[-1])
        if not hidden.isdisjoint(slots):
            hidden.update(entry.slots)
    return chosen


def _hide(values: list[Any], chosen: list[int], cts: Any) -> None:
    """Replace chosen values by ones that are equal, which XLA cannot know before the cotangents are there.

    On CPU, XLA drops the barrier before it looks for common subexpressions, and would undo the checkpoint.  On a mesh it may: there one
    number of a cotangent would have to go from one device to all.
    """
    ct = next((ct for ct in cts if ct is not None and ct.size), None)
    if ct is None or not jax.typeof(ct).sharding.mesh.empty:
        return
    first = lax.reshape(lax.slice(ct, (0,) * ct.ndim, (1,) * ct.ndim), ())
    true = lax.bitwise_or(lax.eq(first, first), lax.ne(first, first))
    for i in chosen:
        values[i] = lax.select(lax.broadcast(true, values[i].shape), values[i], lax.full_like(values[i], 0))


def _by_diagonal(a: Any, b: Any, steps: float | None = None) -> Any:
    """Solve (3 + a a) x = b for a diagonal system, by a solver of one's own, which may say how many steps it took."""

    def matvec(x: Any) -> Any:
        return (3 + a * a) * x

    def solver(matvec: Any, y: Any) -> Any:
        x = y / matvec(jnp.ones_like(y))
        return x if steps is None else (x, jnp.full((), steps))

    solved = lax.custom_linear_solve(matvec, b, solver, solver, has_aux=steps is not None)
    return solved if steps is None else solved[0]


@register(
    "linear_solve",
    source="dx = A^-1 (db - dA x), transposed: the user's solver for the transposed system, and the pullback of the user's product",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    selective=True,
    cost=Cost.HIGH,
    examples=[
        Example(lambda a, b: jnp.linalg.solve(a + 3 * jnp.eye(3, dtype=a.dtype), b), ((3, 3), (3,))),
        Example(lambda a, b: jnp.linalg.solve(a + 3 * jnp.eye(3, dtype=a.dtype), b), ((2, 3, 3), (2, 3, 2)), "batched"),
        Example(_by_diagonal, ((3,), (3,)), "own solver"),
        Example(lambda a, b: _by_diagonal(a, b, steps=2.0), ((3,), (3,)), "solver that says more"),
    ],
)
def _linear_solve(ct: Any, out: Any, *ins: Any, const_lengths: Any, jaxprs: Any, wanted: Any = None, **params: Any) -> tuple[Any, ...]:
    """Differentiate A(c) x = b: the cotangent of b solves the transposed system, that of c is the pullback of -A(c) x to c.

    The constants of the solvers (a factorization, say) follow from c, and so get no cotangent.
    """
    if jaxprs.transpose_solve is None:
        msg = "gradient of custom_linear_solve: there is no solver for the transposed system; pass transpose_solve or symmetric=True"
        raise TapeTypeError(msg)
    rest = iter(ins)
    groups = {name: list(itertools.islice(rest, getattr(const_lengths, name))) for name in const_lengths._fields}
    turned = {"matvec": "vecmat", "vecmat": "matvec", "solve": "transpose_solve", "transpose_solve": "solve"}
    transposed = {
        **params,
        "const_lengths": const_lengths._replace(**{name: getattr(const_lengths, other) for name, other in turned.items()}),
        "jaxprs": jaxprs._replace(**{name: getattr(jaxprs, other) for name, other in turned.items()}),
    }
    operands = [x for name in const_lengths._fields for x in groups[turned[name]]]
    size = len(ins) - sum(const_lengths)  # what the solver returns besides the solution carries no gradient
    solution = out[:size]
    ct_b = parameters.apply("linear_solve", transposed, *operands, *filled(ct[:size], solution))[:size]
    n = const_lengths.matvec
    needed = [*asked_for(ins, wanted)[:n], *(False for _ in solution)]
    ct_matvec = pullback(jaxprs.matvec, (*groups["matvec"], *solution), [lax.neg(c) for c in ct_b], needed)[:n]
    return (*ct_matvec, *(None,) * (len(ins) - n - size), *ct_b)


leave_to_jax("pure_callback", "io_callback", cost=Cost.HIGH)
