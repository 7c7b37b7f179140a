"""Forward-mode products: the transpose of the transpose.

A sweep is linear in its seed u, so sweeping <sweep(u), t> back to u gives J t (Townsend, "A new trick for calculating Jacobian vector
products", 2017); XLA drops what is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import configuration
from tape.errors import TapeTypeError, TapeValueError, UnrecordedGradientError
from tape.graph.kinds import differentiable
from tape.graph.length import bytes_of
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, Segment, WayBack
from tape.graph.trees import flatten
from tape.recording import record
from tape.sweeps.plan import behind
from tape.sweeps.sweep import Sweep, hazardous, target_of
from tape.transforms.inputs import Call, check_callable, check_recorded, variable
from tape.transforms.reverse import pull
from tape.variables.variable import Variable


class Linear:
    """The linearization of a call: ``push(tangents)`` is its Jacobian times tangents."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.seeds = [record.leaf(_seed(v._place.kind.aval), requires_grad=v._place.kind.requires_grad) for v in call.outputs]
        current, serial = LOCAL.segment(), next(Segment.serials)
        start = {} if current is None else {current: current.state.n_slots}
        with within(linear=not call.nested):
            self.pulled = pull(call, call.outputs, self.seeds, create_graph=True)
        gradients = [g for g in self.pulled if isinstance(g, Handle)]
        for gradient in gradients:
            check_recorded(call.name, gradient)
        _check_linear(call.name, gradients, start, serial)

    def push(self, tangents: Sequence[object], batch: int | None = None) -> list[Any]:
        """Push tangents (one per input leaf; with ``batch``, stacked along a first axis) forward to the outputs.

        Tangents of integers and booleans are arrays of dtype ``float0``, as in JAX.
        """
        given = [_like(t, v, batch) for t, v in zip(tangents, self.call.inputs, strict=True)]  # all are checked, read or not
        roots = [(g, t) for g, t in zip(self.pulled, given, strict=True) if isinstance(g, Variable) and g._place.kind.requires_grad]
        able = [s for s in self.seeds if roots and s._place.kind.requires_grad]
        nested = self.call.nested or any(isinstance(t, Handle) and t._place.kind.requires_grad for t in tangents)
        pushed = dict(zip(map(id, able), swept(roots, able, batch, create_graph=nested) if able else (), strict=True))
        return [pushed[id(s)] if id(s) in pushed else _no_tangent(v, batch) for s, v in zip(self.seeds, self.call.outputs, strict=True)]


_SMALL = 1 << 12  # bytes
_SEEDS: Bounded[Any, jax.Array] = Bounded("seeds of forward products", 256)


def _seed(aval: Any) -> jax.Array:
    """Return zeros of a shape and dtype: a small array is made once, as nobody outside of the product sees it."""
    if bytes_of(aval) > _SMALL or jaxapi.in_trace():
        return jnp.zeros(aval.shape, aval.dtype)
    key = aval.shape, aval.dtype, id(configuration())
    known = _SEEDS.get(key)
    if known is None:
        known = _SEEDS[key] = jnp.zeros(aval.shape, aval.dtype)
    return known


def _check_linear(name: str, gradients: Sequence[Handle], start: dict[Segment, int], serial: int) -> None:
    """Refuse a sweep that read its cotangents outside the tape (in a backward, or in a hook).

    What it computed of them does not lead back to the seeds then: a sweep from there would not meet it, and give zero.  Only what the
    sweep wrote is looked at: segments that are newer than ``serial``, and of older ones the slots from ``start`` on.
    """
    way = WayBack(map(target_of, gradients))
    for segment, slots in way:
        written = behind(segment.state, slots, first=start.get(segment, 0 if segment.serial > serial else segment.state.n_slots))
        hazard = next((step for step in written.steps if step.hazard is not None), None)
        if hazard is not None:
            msg = f"{name}: {hazardous(segment, hazard)}"
            raise UnrecordedGradientError(msg)
        way.follow(segment, written.ends)


def swept(roots: Sequence[tuple[Variable, Any]], inputs: Sequence[Variable], batch: int | None, *, create_graph: bool) -> list[Variable]:
    """Gradients for (root, seed) pairs; with ``batch``, the seeds and gradients are stacked along a first axis."""
    sweep = Sweep(map(target_of, inputs), (), create_graph, batch)
    sweep.run([r for r, _ in roots], [s for _, s in roots])
    gradients = [(sweep.gradients.get(target_of(v)), v) for v in inputs]
    return [zeros(v, batch) if g is None else g for g, v in gradients]


def zeros(like: Variable, batch: int | None) -> Variable:
    """Return zeros of a Variable's shape and dtype, stacked along a first axis where there is a batch."""
    return record.leaf(jnp.zeros((() if batch is None else (batch,)) + like.shape, like.dtype))  # type: ignore[no-any-return]


def _no_tangent(output: Variable, batch: int | None) -> Any:
    return zeros(output, batch) if differentiable(output._place.kind.aval) else np.zeros(output.shape, jaxapi.float0)


def _check_empty(tangent: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if getattr(tangent, "dtype", None) != jaxapi.float0 or tangent.shape != shape:
        msg = (
            f"jvp: the tangent of an input of dtype {dtype} has to be empty, np.zeros({shape}, jax.dtypes.float0), got {tangent!r}; pass "
            "that, or leave the input out of the primals"
        )
        raise TapeTypeError(msg)


def _like(tangent: Any, primal: Variable, batch: int | None) -> Any:
    """Return a tangent as a Variable of the primal's shape and dtype; that of an integer is of dtype ``float0``, and nobody reads it."""
    if not differentiable(primal._place.kind.aval):
        _check_empty(tangent, primal.shape, primal.dtype)
        return tangent
    like = variable("jvp", tangent)
    shape = primal.shape if batch is None else (batch, *primal.shape)
    aval = like._place.kind.aval
    if aval.shape != shape:
        msg = f"jvp: a tangent has shape {aval.shape}, but its primal has shape {shape}"
        raise TapeValueError(msg)
    losing = aval.dtype.kind == "c" != primal.dtype.kind
    if losing or (aval.dtype != primal.dtype and not aval.weak_type and not isinstance(tangent, (int, float, complex))):
        repair = "take its real part" if losing else "cast it"
        msg = f"jvp: a tangent has dtype {aval.dtype}, but its primal has dtype {primal.dtype}; {repair}"
        raise TapeTypeError(msg)
    return like if aval.dtype == primal.dtype else like.astype(primal.dtype)


def check_tuples(name: str, primals: object, tangents: object) -> None:
    """Check that there is a sequence of primals and one of tangents."""
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        msg = (
            f"{name}: primals and tangents must be tuples or lists, got {type(primals).__name__} and {type(tangents).__name__}; "
            f"write tape.{name}(f, (x,), (v,))"
        )
        raise TapeTypeError(msg)


@overload
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = ...) -> tuple[Any, Any]: ...
@overload
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]) -> tuple[Any, Any, Any]: ...
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and its derivative along ``tangents`` (tuples, as in ``jax.jvp``).

    Raises:
        TapeTypeError, TapeValueError: tangents differ from the primals in structure, shape or dtype.

    Example:
        >>> import tape
        >>> y, dy = tape.jvp(lambda x: x * x, (3.0,), (1.0,))
        >>> float(y), float(dy)
        (9.0, 6.0)

    """
    check_callable("jvp", fun)
    check_tuples("jvp", primals, tangents)
    (given, tree), (leaves, other) = flatten(tuple(primals)), flatten(tuple(tangents))
    if tree != other:
        msg = f"jvp: primals and tangents must have one structure, got {tree} and {other}"
        raise TapeTypeError(msg)
    for primal, tangent in zip(given, leaves, strict=True):
        if isinstance(primal, int) or getattr(getattr(primal, "dtype", None), "kind", "") in ("b", "i", "u"):  # before anything runs
            _check_empty(tangent, getattr(primal, "shape", ()), getattr(primal, "dtype", jnp.result_type(int)))
    call = Call("jvp", fun, primals, {}, range(len(primals)), has_aux=has_aux, allow_int=True)
    pushed = jax.tree.unflatten(call.output_tree, Linear(call).push(leaves))
    result = call.output(), call.product(pushed, leaves)
    return (*result, call.result(call.aux)) if has_aux else result


@overload
def linearize(fun: Callable[..., Any], *primals: object, has_aux: Literal[False] = ...) -> tuple[Any, Callable[..., Any]]: ...
@overload
def linearize(fun: Callable[..., Any], *primals: object, has_aux: Literal[True]) -> tuple[Any, Callable[..., Any], Any]: ...
def linearize(fun: Callable[..., Any], *primals: object, has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and the linear function that pushes tangents forward (and ``aux``, where ``fun`` returns that beside it).

    Example:
        >>> import tape
        >>> y, push = tape.linearize(lambda x: x * x, 3.0)
        >>> float(push(1.0))
        6.0

    """
    check_callable("linearize", fun)
    call = Call("linearize", fun, primals, {}, range(len(primals)), has_aux=has_aux, allow_int=True)
    linear = Linear(call)

    def push(*tangents: object) -> object:
        leaves, tree = flatten(tuple(tangents))
        if tree != call.tree:
            msg = f"linearize: the tangents have the structure {tree}, but the primals have {call.tree}"
            raise TapeTypeError(msg)
        return call.product(jax.tree.unflatten(call.output_tree, linear.push(leaves)), leaves)

    result = call.output(), push
    return (*result, call.result(call.aux)) if has_aux else result
