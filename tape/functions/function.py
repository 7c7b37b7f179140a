"""``tape.Function``: an op whose forward and backward are Python over Variables.

The forward's own entries are recorded as values without a derivative; an identity entry on its outputs carries the user's backward, which
is called at every sweep (never replayed).  Under an outer JAX transformation it appears as a ``custom_vjp`` or ``custom_jvp``, so that JAX
uses the user's derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from tape.errors import TapeTypeError
from tape.functions.arguments import ONE, laid_out, plain
from tape.functions.backward import Backward, record_entry, swept_once
from tape.functions.checks import check_arity, check_call, check_class, check_defined, outputs_of
from tape.functions.context import Context
from tape.functions.custom_derivatives import as_jax_function
from tape.functions.reads import Reads
from tape.graph import boundary
from tape.graph.scope import LOCAL, in_mode, in_scope, watched
from tape.graph.segment import Handle
from tape.graph.trie import RECORD, SWEEP
from tape.graph.watcher import NOBODY
from tape.mirrored.detachment import detach
from tape.ops.kernel import Op
from tape.recording import record
from tape.sweeps.plan import FunctionOp


class Function:
    """Base class of ops with a derivative of their own.

    Subclasses define static methods over Variables; calls go through :meth:`apply`:

    - ``forward(ctx, *args, **kwargs)`` returns the outputs: a Variable or array, or a pytree of them.  It does not record.  Arrays among
      the arguments, in pytrees too, arrive as Variables, everything else as it is.  ``ctx`` (:class:`Context`) keeps what the backward
      needs: ``ctx.save_for_backward(...)`` and ``ctx.saved``, free attributes, ``ctx.needs_input_grad``,
      ``ctx.set_materialize_grads(True)``, ``ctx.mark_non_differentiable(...)``.
    - ``backward(ctx, *gradients)`` gets one gradient per output, None where there is none (zeros, after ``set_materialize_grads``), and
      returns one per array argument, None where none flows: positional arguments in order, then keyword ones in the order of the call.  It
      is called once in every sweep.  In the batched sweep of a Jacobian it is traced for all rows, as under ``jax.vmap``; where that fails,
      since it looks at values or calls NumPy, it is called for each row.  What it records can be differentiated again; what it cannot
      record (values that the forward computed on the way, raw JAX) raises when it is.
    - ``jvp(ctx, *tangents)``, optional, gets one tangent per array argument (None: zero) and returns one per output.  ``tape.jvp``,
      ``jacfwd``, ``linearize``, ``hvp``, ``jax.jvp`` and ``jax.linearize`` use it; without it the tape's transforms differentiate the
      backward by its gradients.
    - ``vmap(info, in_dims, *args, **kwargs)``, optional, computes the outputs of a whole batch under ``jax.vmap``, in place of a mapped
      forward (whose derivatives stay those of the function: backward and ``jvp`` are mapped as they are).  It is called with the arguments
      of forward, some arrays of which have a further first axis of length ``info.batch_size``: ``in_dims`` has, for each positional
      argument, 0 in place of such an array and None in that of others (``info.keyword_dims``, by name, for keyword ones).  It returns
      ``(outputs, out_dims)``: the structure that forward returns, and for each output the axis of the batch, None where it has none.

    Under ``jax.vmap`` without a ``vmap``, the forward is mapped as it is.

    Raises:
        TapeTypeError: at the first call: a method is missing, is not static or takes another number of arguments than it will be given; at
            any call: the forward returned something else than arrays.  Nothing was recorded then.
        RuleError: in a sweep, which changes nothing then: the backward returned the wrong number of gradients; or a ``vmap`` returned no
            batch;
        GradientShapeError, GradientDtypeError: or one of the wrong shape, dtype or type.
        LostGradientError: at a call, while gradients are recorded: an output was computed of a Variable with a gradient that is no
            argument.
        UnrecordedGradientError: a second derivative would be lost.

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
        >>> g = tape.gradients(Cube.apply(x), x, create_graph=True)
        >>> float(tape.gradients(g, x))
        12.0

    """

    _entry_ops: ClassVar[dict[tuple[str, int, int], FunctionOp]]
    _is_checked = False
    jvp: Any = None
    vmap: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._entry_ops = {}
        cls._is_checked = False

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:  # noqa: D102 - it refuses
        msg = f"{cls.__name__} is a tape.Function, of which there are no objects; call {cls.__name__}.apply(...)"
        raise TapeTypeError(msg)

    @staticmethod
    def forward(ctx: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from Variables (not recording)."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, /, *gradients: Any, **_: Any) -> Any:  # type checkers let this be overridden with any parameters
        """Compute the gradients of the array arguments from those of the outputs (None: missing)."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function; Variables in ``args`` and ``kwargs``, in pytrees too, are tracked.

        Returns:
            What ``forward`` returned, with Variables in place of arrays.

        """
        if not cls._is_checked:
            check_class(cls, Function)
            cls._is_checked = True
        layout, inputs = (
            (plain(len(args)), list(args)) if not kwargs and all(isinstance(x, Handle) for x in args) else laid_out(args, kwargs)
        )
        if LOCAL.scope.trace is not NOBODY:
            inputs = list(map(LOCAL.scope.trace.assigned, inputs))
        kinds = [v._place.kind for v in inputs]
        needs = tuple([k.requires_grad for k in kinds]) if LOCAL.scope.mode == RECORD else (False,) * len(kinds)
        ctx = Context(cls, layout, tuple([k.aval for k in kinds]), needs)
        if True in needs:
            check_defined(cls, Function, "backward")
            if LOCAL.scope.observer is not None and watched():
                return LOCAL.scope.observer.around(cls.__name__, None, tuple(inputs), cls._call, ctx, inputs)
        return cls._call(ctx, inputs)

    @classmethod
    def _call(cls, ctx: Context, inputs: list[Handle]) -> Any:
        """Run the forward, and record its outputs where gradients are wanted."""
        scope = LOCAL.scope
        mode = scope.mode
        reads = Reads(scope.forward) if mode == RECORD else None
        inside = scope.but(caller=ctx._caller) if reads is None else scope.but(mode=SWEEP, caller=ctx._caller, forward=reads)
        outputs, tree = in_scope(inside, cls._outputs, ctx, inputs, reads)
        values = outputs
        if scope.trace.capturing or any(map(boundary.is_traced, inputs)):
            values = in_mode(mode, as_jax_function, ctx, inputs, tree)  # op hooks have seen the forward
        if True in ctx.needs_input_grad:
            values = _recorded(cls, ctx, inputs, outputs, values)
        elif mode == RECORD and any(v._place.kind.unrecorded for v in inputs):
            values = _unrecorded(ctx, inputs, values)
        elif scope.notes is not None:
            scope.notes.computed(cls.__name__, inputs, outputs)
        return values[0] if tree is ONE else jax.tree.unflatten(tree, values)

    @classmethod
    def _outputs(cls, ctx: Context, inputs: list[Handle], reads: Reads | None) -> tuple[list[Handle], Any]:
        """Run the forward; return its outputs as Variables, and their tree."""
        args, kwargs = ctx._layout.filled(inputs)
        try:
            outputs, tree = outputs_of(cls, cls.forward(ctx, *args, **kwargs))
        except TypeError as error:
            check_call(cls, error, args, kwargs)
            raise
        ctx._give(outputs)
        if reads is not None:
            reads.check(cls.__name__, inputs, outputs if len(ctx._places) == len(outputs) else [outputs[i] for i in ctx._places])
        return outputs, tree


_OF = Op("of", lambda x, *_: x)


def _unrecorded(ctx: Context, inputs: list[Handle], values: list[Handle]) -> list[Handle]:
    """Return the results of a call as what is computed of all inputs: the backward may have a gradient for one that they do not use."""
    sources = [v for v in inputs if v._place.kind.unrecorded]
    return [record.record(_OF, (v, *sources)) if i in ctx._places and not v._place.kind.unrecorded else v for i, v in enumerate(values)]


def _recorded(cls: type[Function], ctx: Context, inputs: list[Handle], outputs: list[Handle], values: list[Handle]) -> list[Handle]:
    """Record the entry that carries the backward; return its results, in the places of the outputs that have gradients."""
    places = ctx._places
    if len(places) < len(values):
        values = [v if i in places else detach(v) for i, v in enumerate(values)]
        if not places:
            return values
    if (cls.__name__, len(inputs), len(places)) not in cls._entry_ops:
        check_arity(cls, "backward", len(outputs), "one gradient per output of forward")
        if cls.jvp is not None:
            check_arity(cls, "jvp", len(inputs), "one tangent per array argument")
    results = record_entry(cls, cls.__name__, inputs, values if len(places) == len(values) else [values[i] for i in places])
    first = results[0]
    segment = first._segment or next((v._segment for v in results if v._segment is not None), None)
    if segment is None:  # integers only
        return values
    given = [id(v._cell) for v in inputs]
    saved = {}
    recorded = list(values)
    for i, v in zip(places, results, strict=True):
        recorded[i] = v
        cell = id(outputs[i]._cell)
        if cell not in given:
            saved[cell] = v
    ctx._freeze(segment, saved)
    backward = segment.functions[first._place.slot] = Backward(ctx)
    if segment.packing is not None and not segment.pending:
        segment.packing.take_context(segment, backward, first._place.slot)
    return recorded


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that cannot be differentiated itself: a second derivative through it raises, and is never silently wrong.

    Its Variables are not recorded, so it may compute by any means.

    Args:
        backward: the static method of a :class:`Function`; ``@staticmethod`` stands above this decorator.

    Raises:
        UnrecordedGradientError: when a gradient that it returned is differentiated.
        TapeTypeError: what is decorated is not a function.

    Example:
        >>> import tape
        >>> class Square(tape.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...
        ...     @staticmethod
        ...     @tape.once_differentiable
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved
        ...         return 2 * x.value * g.value
        >>> x = tape.Variable(3.0)
        >>> float(tape.gradients(Square.apply(x), x))
        6.0
        >>> g = tape.gradients(Square.apply(x), x, create_graph=True)
        >>> tape.gradients(g, x)
        Traceback (most recent call last):
        ...
        tape.errors.UnrecordedGradientError: ... Square.backward is once_differentiable, ...

    """
    if isinstance(backward, staticmethod) or not callable(backward):
        msg = (
            f"once_differentiable: expected a function, got {type(backward).__name__}; write @staticmethod above @tape.once_differentiable"
        )
        raise TapeTypeError(msg)

    @functools.wraps(backward)
    def once(ctx: Context, *gradients: object) -> object:
        return swept_once(ctx, backward, gradients)

    return once
