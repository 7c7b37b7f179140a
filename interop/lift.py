"""From JAX to the tape: any pure JAX function becomes one op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from interop.inline import Inlined
from tape import jaxapi
from tape.callables.fingerprints import intern
from tape.callables.matching import Latest, told_apart
from tape.callables.snapshot import numbers_in
from tape.callables.traces import TracedCall
from tape.configuration import configuration
from tape.errors import ConcretizationError, TapeError, TapeTypeError, check_callable, wrap
from tape.functions.reads import Lifted
from tape.graph import boundary
from tape.graph.constants import known_array
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, is_variable
from tape.ops.kernel import Op
from tape.programs.program import look
from tape.recording import record
from tape.variables.variable import Variable

_ARRAYS = (jax.Array, np.ndarray, np.generic)
_ZERO = np.float32(0)


@overload
def lift(jax_fun: Callable[..., jax.Array], *, inline: bool = ...) -> Callable[..., Variable]: ...
@overload
def lift(jax_fun: Callable[..., Any], *, inline: bool = ...) -> Callable[..., Any]: ...
def lift(jax_fun: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Make one op of the tape of a pure JAX function.

    Args:
        jax_fun: a function over pytrees of arrays, built of anything that JAX can trace (``jnp``, ``lax``, ``custom_vjp``, Flax ...).
        inline: record each equation of the function as an entry of its own, with the line of the function's code (and the
            ``jax.named_scope``: ``op.scope`` of an op hook), in place of one entry for all of it: op hooks, anomaly detection and
            pictures then see inside.  The compiled program is as fast.  A function that JAX transforms is one entry all the same.

    Returns:
        A function that takes Variables, arrays, numbers and pytrees of them, records one entry (or more: ``inline``), and returns
        ``jax_fun``'s tree with Variables in place of arrays.  Numbers are traced like arrays; where the function needs to see one, it is
        taken as static. Booleans, strings, None and other objects are static.

        ``jax_fun`` is traced once for each choice of shapes, dtypes and static arguments.  What it reads besides its arguments is read
        then: arrays and constant Variables that it closes over (it is traced anew when such a Variable was rebound), and plain Python
        state, whose later changes it does not see.  What only a derivative reads (a rule of ``custom_vjp``, a hook or the backward of a
        ``tape.Function`` in a function from :func:`interop.lower`) is read when the first sweep is traced: give it as an argument if it
        changes.  Lifting a function made anew at every step costs no compilation (equal programs are one
        op, and the arrays in closures are inputs of it), and a trace each time only where what it depends on is not known to be the same.

    Raises:
        TapeTypeError: ``jax_fun`` cannot be called; or it does not fit its arguments (JAX's message).
        LostGradientError: ``jax_fun`` captures a Variable that requires grad: pass it as an argument.

    Example:
        >>> import jax.numpy as jnp, interop, tape
        >>> norm = interop.lift(lambda tree: jnp.sqrt(sum(jnp.sum(x * x) for x in tree.values())))
        >>> x = tape.Variable([3.0, 4.0])
        >>> norm({"x": x}).backward()
        >>> x.grad.numpy()
        array([0.6, 0.8], dtype=float32)

    """
    return _lift(jax_fun, inline=inline, exact=False)


def lift_exactly(jax_fun: Callable[..., Any]) -> Callable[..., Any]:
    """Lift a function whose results are those of ``jax.jit`` of it to the last bit, from the first call on: XLA compiles it at once."""
    return _lift(jax_fun, inline=False, exact=True)


def _lift(jax_fun: Callable[..., Any], *, inline: bool, exact: bool, tied: bool = False) -> Callable[..., Any]:
    check_callable("lift", jax_fun)
    calls = _Calls(jax_fun, inline=inline, exact=exact)

    @functools.wraps(jax_fun)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        if not (args or kwargs) and jaxapi.in_trace():
            boundary.met()  # no operand will say so
        if not tied and boundary.made_of_looked_at(_ZERO):
            held = numbers_in([inspect.unwrap(jax_fun), args, kwargs])
            if any(map(boundary.made_of_looked_at, held)):
                return _lift(_tied(jax_fun), inline=inline, exact=exact, tied=True)(_ZERO, *args, **kwargs)
        return calls.record(args, kwargs)

    lifted.stale = calls.stale  # type: ignore[attr-defined]
    return lifted


def _tied(jax_fun: Callable[..., Any]) -> Callable[..., Any]:
    """Have the results depend on a first argument, whatever it is, as they do on numbers of NumPy's, which JAX makes literals of."""

    @functools.wraps(jax_fun)
    def tied(number: jax.Array, *args: Any, **kwargs: Any) -> Any:
        def tie(x: Any) -> Any:
            known = isinstance(x, Handle) or not differentiable(jax.typeof(x))
            return x if known else lax.select(False, jnp.full_like(x, number), x)

        return jax.tree.map(tie, jax_fun(*args, **kwargs), is_leaf=lambda x: isinstance(x, Handle))

    return tied


class _Calls:
    """Calls of one lifted function: what it was traced as, for each choice of shapes, dtypes and static arguments."""

    def __init__(self, jax_fun: Callable[..., Any], *, inline: bool, exact: bool) -> None:
        self._fun = jax_fun
        self._name = getattr(jax_fun, "__name__", type(jax_fun).__name__)
        self._inline = inline
        self._exact = exact
        self._traces: dict[Hashable, _Trace] = {}
        self._refused: set[Hashable] = set()  # calls in which a number is to be one of Python's, not an array
        self._last: _LastCall | None = None  # if a call like it can be recognised

    def stale(self) -> bool:
        """Tell whether what the function was traced with last has another value now."""
        return bool(jaxapi.named_axes()) if self._last is None else self._last.trace.applied.stale()

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call, and return its results."""
        last = self._last
        if last is not None and (operands := last.operands(args, kwargs)) is not None:
            return last.trace.record(operands)
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
        try:
            given, trace = self._traced(leaves, tree, numbers_are_arrays=True)
        except jaxapi.CONCRETE_ERRORS:
            given, trace = self._traced(leaves, tree, numbers_are_arrays=False)
        if isinstance(trace, _Trace) and not jaxapi.named_axes():  # whose lengths a trace contains
            flags: list[int | str] = [i for i, x in enumerate(args) if isinstance(x, bool)]
            flags += [k for k, x in kwargs.items() if isinstance(x, bool)]
            self._last = _LastCall(Latest(args, kwargs, flags), trace, given.kinds, given.arrays, configuration())
        return trace.record(given.operands)

    def _traced(self, leaves: list[Any], tree: Any, *, numbers_are_arrays: bool) -> tuple[_Given, _Trace | _Bare]:
        """Return the operands of a call, and what the function is with them: as it was traced before, or traced now."""
        given = _Given.of(leaves, numbers_are_arrays=numbers_are_arrays)
        key = (tree, tuple(given.template), tuple(given.kinds), configuration(), jaxapi.named_axes())
        try:
            trace = self._traces.get(key)
        except TypeError as e:
            msg = f"{self._name}: a static argument cannot be hashed ({e}); pass a tuple or an array in its place"
            raise TapeTypeError(msg) from e
        if numbers_are_arrays and key in self._refused:
            return self._traced(leaves, tree, numbers_are_arrays=False)
        if trace is not None and not trace.applied.stale():
            return given, trace
        try:
            traced = self._trace(given, tree, again=trace is not None)
        except jaxapi.CONCRETE_ERRORS:
            self._refused.add(key)
            raise
        if isinstance(traced, _Trace):
            self._traces[key] = traced
        return given, traced

    def _trace(self, given: _Given, tree: Any, *, again: bool) -> _Trace | _Bare:
        """Trace the function, if no equal one is known; ``again``: what it closes over has another value now."""
        applied = _Applied(self._fun, tree, given.template, self._name)
        head = (lift, self._name, self._inline, self._exact, given.dynamic, tuple(given.kinds))
        call = TracedCall(head, tree, [self._fun, *given.static])
        known: Any = None if again else call.known(record.constant)
        if known is not None:
            return _Trace(applied, known[0], known[1])
        jaxpr, shapes = _jaxpr(applied, self._name, [k.aval for k in given.kinds])
        if any(isinstance(c, jaxapi.Tracer) for c in jaxpr.consts):  # it belongs to what is being traced
            if LOCAL.scope.trace.pends:  # a compiled step, which has it as it is where it can
                msg = f"lift: {self._name} closes over an array that the tape.jit around it takes as an input"
                raise ConcretizationError(msg)
            return _Bare(Op(self._name, applied))
        hoisted, results = jaxapi.hoist(jaxpr, range(len(given.operands))), jax.tree.structure(shapes)
        op: Any = Inlined(hoisted, results) if self._inline else _Whole.of(self._name, hoisted, results, exact=self._exact)
        trace = _Trace(applied, op, [_known(c) for c in jaxpr.consts])
        if not applied.reads and not jaxpr.effects:
            call.learn(op, jaxpr.consts, trace.constants, ())
        return trace


class _Given(NamedTuple):
    """The leaves of a call's arguments."""

    operands: list[Any]  # Variables, and arrays as such
    arrays: list[int]  # which of them were no Variables
    template: list[Any]  # the leaves, with a mark in place of operands

    @classmethod
    def of(cls, leaves: list[Any], *, numbers_are_arrays: bool) -> _Given:
        given = cls([], [], [])
        for x in leaves:
            number = isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic))
            if isinstance(x, Handle):
                given.operands.append(x)
                given.template.append(_DYNAMIC)
            elif isinstance(x, _ARRAYS) or (number and numbers_are_arrays):
                given.arrays.append(len(given.operands))
                given.operands.append(record.operand(x))
                given.template.append(_DYNAMIC)
            else:
                given.template.append(_Typed(x))
        return given

    @property
    def kinds(self) -> list[Any]:
        return [v._place.kind for v in self.operands]

    @property
    def dynamic(self) -> tuple[bool, ...]:
        return tuple([x is _DYNAMIC for x in self.template])

    @property
    def static(self) -> list[Any]:
        return [x.value for x in self.template if x is not _DYNAMIC]


class _Whole(NamedTuple):
    """The one op of a traced function.  It returns a plain tuple in place of nested results: those the recorder in C does not hand out."""

    op: Op
    tree: Any  # of nested results; None for others

    @classmethod
    def of(cls, name: str, jaxpr: jaxapi.ClosedJaxpr, tree: Any, *, exact: bool) -> _Whole:
        n = tree.num_leaves
        flat = jax.tree.structure((0,) * n)
        nested = n > 0 and tree not in (jax.tree.structure(0), flat, jax.tree.structure([0] * n))
        return cls(intern(name, jaxpr, flat if nested else tree, exact=exact), tree if nested else None)

    def record(self, inputs: list[Any]) -> Any:
        results = record.record(self.op, inputs)
        return results if self.tree is None else jax.tree.unflatten(self.tree, results)


class _Trace(NamedTuple):
    """A traced function: the op of its program (or its equations), and the arrays that it closes over, which are the op's first inputs."""

    applied: _Applied
    op: _Whole | Inlined
    constants: list[Any]

    def record(self, operands: list[Any]) -> Any:
        around = LOCAL.scope.trace
        if around.guards:  # what this function was traced with, the one around is traced with
            for variable, _ in self.applied.reads.values():
                around.operand(variable)
        return self.op.record([*self.constants, *operands])


class _Bare(NamedTuple):
    """The op of a function that closes over a tracer: of this call alone."""

    op: Op

    def record(self, operands: list[Any]) -> Any:
        return record.record(self.op, operands)


class _LastCall(NamedTuple):
    """The latest call, in a form in which one like it is recognised quickly."""

    call: Latest
    trace: _Trace
    kinds: list[Any]  # of the operands
    arrays: list[int]  # which of them were no Variables
    configuration: Any

    def operands(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """Return the operands of a call that is like it; None where one is not."""
        operands: list[Any] = []
        if self.configuration is not configuration() or not self.call.recognises(args, kwargs, operands, operands):
            return None
        if self.trace.applied.stale() or len(operands) != len(self.kinds):  # a number that is static makes one more
            return None
        for i in self.arrays:
            operands[i] = array = record.operand(operands[i])
            if array._place.kind != self.kinds[i]:
                return None
        return operands


def _known(value: Any) -> Any:
    """Make a constant that outlives the JAX transformation that may be running: further calls find the trace."""
    return record.constant(known_array(value, copy=True) if isinstance(value, np.ndarray) else value)


def _jaxpr(applied: _Applied, name: str, avals: list[Any]) -> tuple[jaxapi.ClosedJaxpr, Any]:
    try:
        return jaxapi.trace(applied, *avals)
    except (TapeError, *jaxapi.CONCRETE_ERRORS):
        raise
    except (TypeError, ValueError, IndexError) as e:
        raise (wrap(e, name) or e) from e


class _Dynamic:
    """Marks an array among the leaves of the arguments."""


_DYNAMIC = _Dynamic()


class _Typed:
    """A static leaf, told apart by type, and zeros by sign, as well as value."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = told_apart(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Typed) and bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)


class _Applied:
    """The function on arrays that an op runs: leaves back in their places, captures refused."""

    def __init__(self, fun: Callable[..., Any], tree: Any, template: list[Any], name: str) -> None:
        self.fun = fun
        self.tree = tree
        self.template = template
        self.name = name
        self.reads: dict[int, tuple[Any, Any]] = {}  # captured constants, by cell

    def stale(self) -> bool:
        """Tell whether a captured constant has another value now than when the function was traced."""
        return bool(self.reads) and any(variable._cell is not cell for variable, cell in self.reads.values())

    def __call__(self, *arrays: Any) -> Any:
        it = iter(arrays)
        filled = [next(it) if x is _DYNAMIC else x.value for x in self.template]
        args, kwargs = jax.tree.unflatten(self.tree, filled)
        lifted = Lifted(self.name)
        with within(trace=lifted, forward=lifted, eager=True):  # so that it hears of each operand
            result = self.fun(*args, **kwargs)
            results = jax.tree.map(lambda x: look(x) if isinstance(x, Handle) else x, result, is_leaf=is_variable)
        self.reads.update((id(cell), (v, cell)) for v, cell in lifted.noted)
        return results
