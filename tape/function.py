"""``tape.Function``: an op whose forward and backward are Python over Variables.

The forward's own entries are recorded as constants; an identity entry on its outputs carries the user's backward, which is called at
every sweep (never replayed).  Under an outer JAX transformation it appears as a ``custom_vjp``, so that ``jax.grad`` uses the backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import boundary, emission, jaxapi, record
from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeTypeError
from tape.kernel import Op
from tape.kinds import Place
from tape.modes import enable_grad, no_grad
from tape.plan import FunctionOp
from tape.program import look
from tape.pullback import differentiable
from tape.record import handle
from tape.segment import LOCAL, Extra, Handle, Segment, in_mode, watched
from tape.trie import CONSTANT, RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.trie import State

__all__ = ["Context", "Function"]


class _Kept:
    """A saved Variable, kept without a reference to the Variable or to the function's own segment (which keeps the context)."""

    __slots__ = ("cell", "leaf", "node", "own", "place", "segment")

    def __init__(self, variable: Handle, own: Segment) -> None:
        self.cell = variable._cell
        self.place = variable._place
        self.leaf = self.place.segment is own  # a leaf that waits for it
        if self.leaf:
            self.place = Place(self.place.slot, self.place.kind)
        self.own = variable._segment is own
        self.segment = None if self.own else variable._segment
        self.node = record.node_of(variable) if variable._segment is None and variable._place.kind.requires_grad else None

    def variable(self, own: Segment | None) -> Any:
        """Make the Variable again."""
        place = self.place
        if self.leaf and own is not None and own.pending:
            place = own.leaf_place(place.slot, place.kind)
        made = handle(own if self.own else self.segment, place, self.cell)
        if self.node is not None:
            made._extra = Extra()
            made._extra.node = self.node
        return made


class Context:
    """What a forward leaves for its backward; it takes free attributes.

    Attributes:
        needs_input_grad: for each array argument, whether a gradient is wanted.

    """

    def __init__(self, function: type[Function], needs_input_grad: tuple[bool, ...]) -> None:
        self._function = function
        self._saved: tuple[Any, ...] = ()
        self._segment: Segment | None = None
        self._materialize = False
        self._avals: tuple[Any, ...] = ()
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *values: Any) -> None:
        """Keep Variables, arrays or pytrees of them for the backward."""
        self._saved = values

    @property
    def saved(self) -> tuple[Any, ...]:
        """What :meth:`save_for_backward` kept."""
        segment = self._segment
        return jax.tree.map(  # type: ignore[no-any-return]
            lambda x: x.variable(segment) if isinstance(x, _Kept) else x,
            self._saved,
            is_leaf=lambda x: isinstance(x, (_Kept, Handle)),
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Have the backward see zeros instead of None for outputs without a gradient."""
        self._materialize = bool(value)

    def _freeze(self, segment: Segment, results: dict[int, Any]) -> None:
        """Give up references to Variables and to the segment that will hold this context, so that dropping its Variables frees it.

        Saved outputs (``results`` by the id of their cell) become the function's results, so that second derivatives reach them.
        """
        self._saved = jax.tree.map(
            lambda x: _Kept(results.get(id(x._cell), x), segment) if isinstance(x, Handle) else x,
            self._saved,
            is_leaf=lambda x: isinstance(x, Handle),
        )

    def sweep(self, segment: Segment, entry: State, cotangents: Sequence[Any]) -> list[Any]:
        """Call the user's backward; return one gradient (or None) per input of the entry."""
        cts = list(cotangents)
        if self._materialize:
            cts = [emission.zeros_like(p.kind.aval) if ct is None else ct for ct, p in zip(cts, entry.places, strict=True)]
        self._segment = segment
        try:
            gradients = self._function.backward(self, *cts)
        finally:
            self._segment = None
        checked = self._check(gradients)
        return checked + [None] * (len(entry.inputs) - len(checked))

    def _check(self, gradients: Any) -> list[Any]:
        name = self._function.__name__
        listed = list(gradients) if isinstance(gradients, (tuple, list)) else [gradients]
        if len(listed) != len(self._avals):
            msg = (
                f"{name}.backward returned {len(listed)} gradients for {len(self._avals)} array arguments; return one per argument, None "
                "where no gradient flows"
            )
            raise RuleError(msg)
        checked: list[Any] = []
        for i, (gradient, aval) in enumerate(zip(listed, self._avals, strict=True)):
            if gradient is None or not jnp.issubdtype(aval.dtype, jnp.inexact):
                checked.append(None)
                continue
            if not isinstance(gradient, (Handle, jax.Array, np.ndarray, np.generic, int, float, complex)):
                msg = f"{name}.backward returned {type(gradient).__name__} as the gradient of argument {i}; return a Variable, an array or None"
                raise GradientDtypeError(msg)
            scalar = isinstance(gradient, (int, float, complex)) and not isinstance(gradient, np.generic)
            made = gradient if isinstance(gradient, Handle) else record.constant(jnp.asarray(gradient, aval.dtype) if scalar else gradient)
            found = made._place.kind.aval
            if found.shape != aval.shape:
                msg = f"{name}.backward returned a gradient of shape {found.shape} for argument {i}, which has shape {aval.shape}"
                raise GradientShapeError(msg)
            if found.dtype != aval.dtype:
                msg = f"{name}.backward returned a gradient of dtype {found.dtype} for argument {i}, which has dtype {aval.dtype}; cast it"
                raise GradientDtypeError(msg)
            checked.append(made)
        return checked


class Function:
    """Base class of ops with a backward of their own.

    Subclasses define the static methods ``forward(ctx, *args, **kwargs)`` and ``backward(ctx, *gradients)``; calls go through
    :meth:`apply`.  ``backward`` returns one gradient (or None) per array argument: positional ones in order, then keyword ones.

    Example:
        >>> import tape
        >>> class Cube(tape.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved
        ...         return 3 * x * x * g
        >>> x = tape.Variable(2.0)
        >>> Cube.apply(x).backward()
        >>> float(x.grad)
        12.0

    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from Variables (not recording)."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute the gradients of the array arguments from those of the outputs (None: missing)."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function; Variables in ``args`` and ``kwargs`` are tracked."""
        if watched():
            inputs = _track(args, kwargs)[2]
            if LOCAL.mode == RECORD and any(v._place.kind.requires_grad for v in inputs):
                return LOCAL.observer.around(cls.__name__, None, tuple(inputs), cls._apply, args, kwargs)
        return cls._apply(args, kwargs)

    @classmethod
    def _apply(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        filled, filled_kwargs, inputs = _track(args, kwargs)
        needs = tuple(LOCAL.mode == RECORD and v._place.kind.requires_grad for v in inputs)
        ctx = Context(cls, needs)
        ctx._avals = tuple(v._place.kind.aval for v in inputs)
        with no_grad():
            result = cls.forward(ctx, *filled, **filled_kwargs)
        leaves, tree = jax.tree.flatten(result, is_leaf=lambda x: isinstance(x, Handle))
        if not leaves or not all(isinstance(x, (Handle, jax.Array, np.ndarray, np.generic, int, float, complex)) for x in leaves):
            msg = f"{cls.__name__}.forward must return Variables or arrays, got {type(result).__name__}"
            raise TapeTypeError(msg)
        outputs = [x if isinstance(x, Handle) else record.constant(x) for x in leaves]
        if LOCAL.captures is not None or any(boundary.is_traced(v) for v in inputs):
            outputs = in_mode(LOCAL.mode, _as_custom_vjp, cls, args, kwargs, inputs, outputs)  # op hooks have seen the forward
        kinds = [v._place.kind for v in inputs]
        if LOCAL.mode == CONSTANT or not any(k.requires_grad or k.unrecorded for k in kinds):
            return jax.tree.unflatten(tree, outputs)
        made = record.record(_entry_op(cls, len(inputs), len(outputs)), [*inputs, *outputs])
        segment = next((v._segment for v in made if v._segment is not None), None)
        if segment is not None and any(needs):
            given = {id(v._cell) for v in inputs}
            ctx._freeze(segment, {id(o._cell): m for o, m in zip(outputs, made, strict=True) if id(o._cell) not in given})
            segment.functions[made[0]._place.slot] = ctx
        return jax.tree.unflatten(tree, made)


def _track(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Make Variables of the array arguments (pytrees of them too) and list them."""
    inputs: list[Any] = []

    def make(x: Any) -> Any:
        if isinstance(x, (jax.Array, np.ndarray)):
            x = record.constant(x)
        if isinstance(x, Handle):
            inputs.append(x)
        return x

    def walk(value: Any) -> Any:
        return jax.tree.map(make, value, is_leaf=lambda x: isinstance(x, Handle))

    return [walk(a) for a in args], {k: walk(v) for k, v in kwargs.items()}, inputs


_ENTRY_OPS: dict[Any, FunctionOp] = {}


def _entry_op(cls: type[Function], n_inputs: int, n_outputs: int) -> FunctionOp:
    key = (cls, n_inputs, n_outputs)
    found = _ENTRY_OPS.get(key)
    if found is None:
        identity = Op(cls.__name__, lambda *arrays: arrays[n_inputs:])
        found = _ENTRY_OPS[key] = FunctionOp(cls.__name__, identity)
    return found


def _as_custom_vjp(cls: type[Function], args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """Compute the outputs as a JAX function whose derivative is the user's backward."""
    n_outputs = len(outputs)
    avals = tuple(v._place.kind.aval for v in inputs)
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
    template = [
        _ARGUMENT if isinstance(x, (Handle, jax.Array, np.ndarray)) else x for x in leaves
    ]  # what JAX keeps of us may hold no tracer

    def run(arrays: Any) -> tuple[Context, list[Any]]:
        ctx = Context(cls, tuple(differentiable(aval) for aval in avals))  # what JAX differentiates by, it does not say
        ctx._avals = avals
        it = iter(arrays)
        walked, keyed = jax.tree.unflatten(tree, [record.leaf(next(it)) if x is _ARGUMENT else x for x in template])
        with enable_grad():  # JAX differentiates what is saved; the Variables are constants
            result = cls.forward(ctx, *walked, **keyed)
        leaves = jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, Handle))
        return ctx, [look(x) if isinstance(x, Handle) else jnp.asarray(x) for x in leaves]

    @jax.custom_vjp
    def call(*arrays: Any) -> list[Any]:
        return run(arrays)[1]

    def forward(*arrays: Any) -> Any:
        ctx, results = run(arrays)
        leaves, tree = jax.tree.flatten(ctx._saved, is_leaf=lambda x: isinstance(x, Handle))
        arrays_saved = [look(x) if isinstance(x, Handle) else x for x in leaves]
        marks = [isinstance(x, Handle) for x in leaves]
        ctx._saved = ()
        return results, _Residuals(arrays_saved, (ctx, tree, marks))

    def backward(residuals: _Residuals, cts: Any) -> Any:
        ctx, tree, marks = residuals.static
        ctx._saved = jax.tree.unflatten(tree, [record.leaf(x) if m else x for x, m in zip(residuals.arrays, marks, strict=True)])
        seeds = [None if ct is None or ct.dtype == jaxapi.float0 else record.leaf(ct) for ct in cts]
        with enable_grad():
            checked = ctx._check(ctx._function.backward(ctx, *seeds))
        return tuple(_zero_cotangent(aval) if g is None else look(g) for g, aval in zip(checked, ctx._avals, strict=True))

    call.defvjp(forward, backward)
    values = call(*[look(v) for v in inputs])
    if LOCAL.mode == CONSTANT:
        values = [jax.lax.stop_gradient(v) for v in values]
    assert len(values) == n_outputs
    return [record.leaf(v) for v in values]


_ARGUMENT = object()


class _Residuals:
    """Arrays that go from a custom_vjp's forward to its backward, with what is not an array beside them."""

    def __init__(self, arrays: list[Any], static: Any) -> None:
        self.arrays = arrays
        self.static = static


jax.tree_util.register_pytree_node(_Residuals, lambda r: (r.arrays, r.static), lambda static, arrays: _Residuals(list(arrays), static))


def _zero_cotangent(aval: Any) -> Any:
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jaxapi.float0)
