"""From the tape to JAX: a function written with the tape becomes a JAX function.

JAX differentiates the ops themselves, at every order and in both directions, and what the tape cut off is cut off for JAX.  What JAX cannot
see of the tape's derivative (hooks, rules of the user's own) is in the tape's sweep: where there is any, that is the derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import jax
import jax.errors
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import ConcretizationError, LostGradientError, TapeTypeError, check_callable
from tape.functions.linear_map import is_zero, linear_map, zero_tangent
from tape.graph import boundary
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, Segment, behind, is_variable
from tape.modes import enable_grad
from tape.ops.jaxprs import equations_in
from tape.programs.program import look
from tape.recording import record
from tape.rules import table
from tape.sweeps.sweep import Sweep, target_of
from tape.transforms.inputs import check_recorded
from tape.variables.variable import Variable


@overload
def lower(tape_fun: Callable[..., Variable]) -> Callable[..., jax.Array]: ...
@overload
def lower(tape_fun: Callable[..., Any]) -> Callable[..., Any]: ...
def lower(tape_fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make a JAX function of a function written with the tape.

    Args:
        tape_fun: takes Variables (in pytrees, among static objects) and returns Variables or arrays; it may call ``backward``, use hooks
            and ``tape.Function``.  Variables that it captures are constants to JAX, as arrays are that a JAX function captures.

    Returns:
        A function over pytrees of arrays, for ``jax.jit``, ``jax.vmap``, ``jax.grad``, ``jax.jvp``, ``jax.hessian`` and the rest, in any
        nesting.

        Two derivatives meet here.  One that JAX is asked for is that of the whole function: a sweep inside (``tape.gradients``,
        ``backward``) is part of what is computed, so its derivative flows, be it recorded (``create_graph``) or not, and so does that of
        what is computed from a ``.value``.  What was cut off (``no_grad``, ``detach``, ``stop_gradient``, ``unchain``) is a constant at
        every order, and a ``tape.Function`` has its own ``backward``.  One that the function asks for inside is the tape's, whose rules
        hold: a second sweep through a gradient that was not recorded raises.

        Where hooks, op hooks or rules given to ``tape.rules.defvjp`` have a say, the derivative is the tape's own sweep, traced, with the
        hooks called once for each trace; second derivatives differentiate that sweep, and forward mode transposes it.

    Raises:
        TapeTypeError: ``tape_fun`` cannot be called, or returns something that is not an array; in forward mode: hooks are not linear.
        LostGradientError: the JAX function is given a Variable that requires grad: call ``tape_fun`` itself.
        UnrecordedGradientError: where hooks have a say: the sweep comes to a gradient that was taken without recording, or to what was
            computed from a ``.value``.
        LostGradientError: where hooks have a say: JAX differentiates by a value that ``tape_fun`` closes over.

    Example:
        >>> import jax, interop
        >>> square = interop.lower(lambda x: x * x)
        >>> float(jax.grad(square)(3.0)), float(jax.hessian(square)(3.0))
        (6.0, 2.0)

    """
    check_callable("lower", tape_fun)

    @functools.wraps(tape_fun)
    def lowered(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_variable)
        leaves = [x.__jax_array__() if isinstance(x, Handle) else x for x in leaves]  # type: ignore[attr-defined] # which may refuse
        dynamic = [isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) or type(x) is int for x in leaves]
        arguments = [x for x, d in zip(leaves, dynamic, strict=True) if d]
        statics = [None if d else x for x, d in zip(leaves, dynamic, strict=True)]  # what JAX keeps of us may hold no tracer
        trees: list[Any] = []

        def run(arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            """Call the tape function on Variables of ``arrays``; return them and its flat outputs as Variables."""
            inputs = [record.leaf(x, requires_grad=differentiable(x)) for x in map(_as_array, arrays)]
            it = iter(inputs)
            filled = [next(it) if d else x for x, d in zip(statics, dynamic, strict=True)]
            again_args, again_kwargs = jax.tree.unflatten(tree, filled)
            with enable_grad(), boundary.allowing_captures():
                result = tape_fun(*again_args, **again_kwargs)
                flat, out_tree = jax.tree.flatten(result, is_leaf=is_variable)
                outputs = [_variable(x) for x in flat]
            trees[:] = [out_tree]
            return inputs, outputs

        traced = jaxapi.in_trace()
        results: list[Any] | None = None
        if not (traced and ((LOCAL.scope.observer is not None and LOCAL.scope.observer.sweeps) or _meets(table.changed(), run, arguments))):
            try:
                inputs, outputs = run(arguments)
                if not (traced and _refuses(outputs)):
                    results = [_array(v) for v in outputs]
            except (
                NotImplementedError,
                ConcretizationError,
                *jaxapi.CONCRETE_ERRORS,
            ):  # under jax.grad, the sweep's forward runs on values
                if not traced:
                    raise
        if results is None or (traced and _hides(inputs, outputs)):
            results = _swept(run, results, arguments)
        return jax.tree.unflatten(trees[0], results)

    return lowered


def _meets(primitives: frozenset[jaxapi.Primitive], run: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Tell whether a run comes to one of these primitives; True also where it cannot be traced."""
    if not primitives:
        return False
    try:
        jaxpr, _ = jaxapi.trace(lambda *arrays: [_array(v) for v in run(arrays)[1]], *map(jax.typeof, arguments))
    except Exception:  # noqa: BLE001 - it is the user's function; the run that counts says it again
        return True
    return any(eqn.primitive in primitives for eqn in equations_in(jaxpr.jaxpr))


_SCATTER_MUL = jaxapi.primitive("scatter_mul")


def _hides(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether a sweep from outputs to inputs (leaves) may meet a hook: on a Variable, or inside of a step of ``tape.jit``."""
    if any(v._extra is not None and v._extra.node is not None and v._extra.node.hooks for v in inputs):
        return True
    return any(
        any(segment.hooks.values()) or any(getattr(step.kernel, "hooked", False) for step in segment.state.path())
        for segment in _behind(outputs)
    )


def _refuses(outputs: Sequence[Any]) -> bool:
    """Tell whether JAX has no derivative of what leads to outputs, though the tape has: of a product at places that may repeat."""
    return any(
        eqn.primitive is _SCATTER_MUL and not eqn.params["unique_indices"]
        for segment in _behind(outputs)
        for step in segment.state.path()
        if step.kernel is not None
        for eqn in equations_in(step.kernel.jaxpr.jaxpr)
    )


def _behind(outputs: Sequence[Any]) -> Iterator[Segment]:
    """Return the segments that lead to outputs."""
    return behind([v._segment for v in outputs if v._segment is not None], {})


_CLOSED_OVER = (
    "lower: the function closes over a value by which JAX differentiates, and hooks (or a rule given to tape.rules.defvjp) make its "
    "derivative a sweep to its arguments; pass the value as an argument, or close over jax.lax.stop_gradient of it"
)


def _swept(run: Callable[..., Any], results_before: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return the results of a run with the tape's sweep for their derivative.

    Args:
        run: calls the tape function on arrays; returns its inputs and outputs as Variables.
        results_before: the results, where it ran already.  Those that are not recorded have JAX's derivative; without them that is refused.
        arguments: the arrays.

    """

    @jax.custom_jvp
    def call(results_before: Any, *arrays: Any) -> list[Any]:
        return [_array(v) for v in run(arrays)[1]] if results_before is None else results_before

    def rule(primals: Any, tangents: Any) -> Any:
        try:
            return derivative(primals, tangents)
        except jax.errors.UnexpectedTracerError as e:
            raise LostGradientError(_CLOSED_OVER) from e

    def derivative(primals: Any, tangents: Any) -> Any:
        results_before, *arrays = primals
        pushed, *given = tangents
        with within(caller=boundary.Caller(_LOOKED)):
            inputs, outputs = run(arrays)
        moving = [i for i, t in enumerate(given) if not is_zero(t)]
        smooth = [i for i, v in enumerate(outputs) if v._place.kind.requires_grad]
        if results_before is None:
            results_before = [_array(v) for v in outputs]
            for v in outputs:
                check_recorded("lower", v)
            pushed = [None] * len(outputs)
        elif not moving and any(not is_zero(pushed[i]) for i in smooth):
            raise LostGradientError(_CLOSED_OVER)
        pull = _pull([inputs[i] for i in moving], [outputs[i] for i in smooth])
        # The linear map lives in JAX's caches: it closes over nothing that may be a tracer.
        sweep = jaxapi.jaxpr_as_fun(jaxapi.hoist(pull, range(len(pull.in_avals))))
        like = [jax.typeof(results_before[i]).update(weak_type=False) for i in smooth]

        def transpose(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            return list(sweep(*residuals, *cts))

        def forward(residuals: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
            try:
                return list(jax.linear_transpose(lambda *cts: transpose(residuals, cts), *like)(list(linear)))
            except (NotImplementedError, TypeError, ValueError, AssertionError) as e:
                msg = (
                    f"lower: there is no forward mode, since the sweep with its hooks is not linear for JAX ({e}); use reverse mode "
                    "(jax.grad, jax.jacrev), or hooks that scale the gradient or only look at it"
                )
                raise TapeTypeError(msg) from e

        if moving and smooth:
            linear = linear_map(forward, transpose, pull.consts, [_as_array(given[i]) for i in moving], like)
            table = dict(zip(smooth, linear, strict=True))
        else:
            table = dict.fromkeys(smooth)
        return call(results_before, *arrays), [
            _tangent(table.get(i, t), x) for i, (t, x) in enumerate(zip(pushed, results_before, strict=True))
        ]

    call.defjvp(rule, symbolic_zeros=True)
    try:
        results: list[Any] = call(results_before, *arguments)
    except jax.errors.UnexpectedTracerError as e:
        raise LostGradientError(_CLOSED_OVER) from e
    return results


def _pull(inputs: Sequence[Any], outputs: Sequence[Any]) -> jaxapi.ClosedJaxpr:
    """Trace the sweep from the outputs to the inputs; what it reads of the forward are the constants."""

    def pull(*seeds: Any) -> list[Any]:
        sweep = Sweep([target_of(v) for v in inputs], (), create_graph=False)
        with boundary.allowing_captures():
            sweep.run(outputs, [record.leaf(s) for s in seeds])
        swept = [sweep.gradients.get(target_of(v)) for v in inputs]
        return [jnp.zeros(v.shape, v.dtype) if g is None else _array(g) for v, g in zip(inputs, swept, strict=True)]

    return jaxapi.trace(pull, *[v._place.kind.aval.update(weak_type=False) for v in outputs])[0]


_LOOKED = (
    "it was computed from the value of a Variable outside the tape (by .value or raw jax.numpy), and hooks make the derivative a sweep, "
    "which would take it for a constant; compute it with tape.numpy, or take .detach().value to say that it is one"
)


def _tangent(tangent: Any, like: Any) -> Any:
    return zero_tangent(like) if is_zero(tangent) else tangent


def _variable(value: Any) -> Any:
    if isinstance(value, Handle):
        return value
    if isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        return record.constant_from("what the function given to lower returned", value)
    msg = f"lower: the function must return Variables or arrays, got {type(value).__name__}"
    raise TapeTypeError(msg)


def _array(variable: Any) -> Any:
    with boundary.allowing_captures():  # JAX differentiates it: nothing is lost
        return _as_array(look(variable))


def _as_array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)  # which is slow for what JAX differentiates
