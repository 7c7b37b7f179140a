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
    name = getattr(jax_fun, "__name__", type(jax_fun).__name__)
    traces: dict[Hashable, _Trace] = {}
    refused: set[Hashable] = set()  # calls in which a number is to be one of Python's, not an array

    quick: _Quick | None = None  # the latest call, if one like it can be recognised

    @functools.wraps(jax_fun)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        nonlocal quick
        if not (args or kwargs) and jaxapi.in_trace():
            boundary.met()  # no operand will say so
        if not tied and boundary.made_of_looked_at(_ZERO):
            held = numbers_in([inspect.unwrap(jax_fun), args, kwargs])
            if any(map(boundary.made_of_looked_at, held)):
                return _lift(_tied(jax_fun), inline=inline, exact=exact, tied=True)(_ZERO, *args, **kwargs)
        last = quick
        if last is not None and last.configuration is configuration():
            given: list[Any] = []
            if last.call.recognises(args, kwargs, given, given) and not last.trace.applied.stale():
                alike = len(given) == len(last.kinds)  # a number that is static makes one more
                for i in last.arrays if alike else ():
                    given[i] = array = record.operand(given[i])
                    alike = alike and array._place.kind == last.kinds[i]
                if alike:
                    return last.trace.record(given)
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
        try:
            result, trace, kinds, arrays = _call(leaves, tree, numbers_are_arrays=True)
        except jaxapi.CONCRETE_ERRORS:
            result, trace, kinds, arrays = _call(leaves, tree, numbers_are_arrays=False)
        if trace is not None and not jaxapi.named_axes():  # whose lengths a trace contains
            flags: list[int | str] = [i for i, x in enumerate(args) if isinstance(x, bool)]
            flags += [k for k, x in kwargs.items() if isinstance(x, bool)]
            quick = _Quick(Latest(args, kwargs, flags), trace, kinds, arrays, configuration())
        return result

    def stale() -> bool:
        return bool(jaxapi.named_axes()) if quick is None else quick.trace.applied.stale()

    lifted.stale = stale  # type: ignore[attr-defined]

    def _call(leaves: list[Any], tree: Any, *, numbers_are_arrays: bool) -> tuple[Any, _Trace | None, list[Any], list[int]]:
        variables: list[Any] = []
        arrays: list[int] = []
        template: list[Any] = []
        for x in leaves:
            if isinstance(x, Handle):
                variables.append(x)
                template.append(_DYNAMIC)
                continue
            number = isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic))
            if isinstance(x, _ARRAYS) or (number and numbers_are_arrays):
                arrays.append(len(variables))
                variables.append(record.operand(x))
                template.append(_DYNAMIC)
            else:
                template.append(_Typed(x))
        kinds = [v._place.kind for v in variables]
        key = (tree, tuple(template), tuple(kinds), configuration(), jaxapi.named_axes())
        try:
            trace = traces.get(key)
        except TypeError as e:
            msg = f"{name}: a static argument cannot be hashed ({e}); pass a tuple or an array in its place"
            raise TapeTypeError(msg) from e
        if numbers_are_arrays and key in refused:
            return _call(leaves, tree, numbers_are_arrays=False)
        if trace is None or trace.applied.stale():
            applied = _Applied(jax_fun, tree, template, name)
            static = [x.value for x in template if x is not _DYNAMIC]
            call = TracedCall((lift, name, inline, exact, tuple([x is _DYNAMIC for x in template]), tuple(kinds)), tree, [jax_fun, *static])
            known: Any = call.known(record.constant) if trace is None else None
            if known is not None:
                trace = traces[key] = _Trace(applied, known[0], known[1])
                return trace.record(variables), trace, kinds, arrays
            try:
                jaxpr, shapes = _traced(applied, name, [k.aval for k in kinds])
            except jaxapi.CONCRETE_ERRORS:
                refused.add(key)
                raise
            if any(isinstance(c, jaxapi.Tracer) for c in jaxpr.consts):  # it belongs to what is being traced
                if LOCAL.scope.trace.pends:  # a compiled step, which has it as it is where it can
                    msg = f"lift: {name} closes over an array that the tape.jit around it takes as an input"
                    raise ConcretizationError(msg)
                return record.record(Op(name, applied), variables), None, kinds, arrays
            hoisted, results = jaxapi.hoist(jaxpr, range(len(variables))), jax.tree.structure(shapes)
            op: Any = Inlined(hoisted, results) if inline else _Whole.of(name, hoisted, results, exact=exact)
            trace = traces[key] = _Trace(applied, op, [_known(c) for c in jaxpr.consts])
            if not applied.reads and not jaxpr.effects:
                call.learn(op, jaxpr.consts, trace.constants, ())
        return trace.record(variables), trace, kinds, arrays

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

    def record(self, variables: list[Any]) -> Any:
        around = LOCAL.scope.trace
        if around.guards:  # what this function was traced with, the one around is traced with
            for variable, _ in self.applied.reads.values():
                around.operand(variable)
        return self.op.record([*self.constants, *variables])


class _Quick(NamedTuple):
    """The latest call, in a form in which one like it is recognised quickly."""

    call: Latest
    trace: _Trace
    kinds: list[Any]  # of what was given
    arrays: list[int]  # which of it was no Variable
    configuration: Any


def _known(value: Any) -> Any:
    """Make a constant that outlives the JAX transformation that may be running: further calls find the trace."""
    return record.constant(known_array(value, copy=True) if isinstance(value, np.ndarray) else value)


def _traced(applied: _Applied, name: str, avals: list[Any]) -> tuple[jaxapi.ClosedJaxpr, Any]:
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
