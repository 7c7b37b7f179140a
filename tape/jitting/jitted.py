"""``tape.jit``: a step that reads and writes Variables, as one compiled program."""

from __future__ import annotations

import functools
import textwrap
import time
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import jax
import numpy as np

from tape import jaxapi
from tape.callables.matching import Latest
from tape.callables.reach import Reach
from tape.configuration import configuration
from tape.errors import TapeTypeError, check_callable, check_flag
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.watcher import NOBODY
from tape.jitting.arguments import Call, Parameters, aval_of, belongs_to, signature
from tape.jitting.binding import STATE, Binding, TracedError
from tape.jitting.compilation import CompiledStep, forget_replaced
from tape.jitting.looks import settled, trace_anew
from tape.jitting.retraces import change_of, note, retraced
from tape.programs.telling import begun, timed, warn_of
from tape.recording import record
from tape.rules import table
from tape.statistics import STATS
from tape.terminal import columns, is_terminal

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

_STEPS_LIMIT = 128  # traced steps that one function keeps
_BINDINGS_LIMIT = 8  # bindings that one of them keeps


class CacheInfo(NamedTuple):
    """How often a compiled function ran, was traced, and how many traces it keeps."""

    calls: int
    traces: int
    kept: int


class Jitted(Generic[P, R]):
    """A function compiled by :func:`jit`."""

    def __init__(self, fun: Callable[P, R], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self.__wrapped__ = fun
        self.name = getattr(fun, "__name__", type(fun).__name__)
        self._options = options
        self._parameters = Parameters(fun, options)
        self._entries: dict[Hashable, list[CompiledStep]] = {}
        # The latest call, by which one like it is recognised without flattening trees: that saves 4 to 8 of 9 to 13 us.
        self._quick: tuple[Binding, Latest, tuple[Hashable, ...]] | None = None
        self.reasons: list[str] = []
        self._called = [0]

    # -- calling ------------------------------------------------------------------------------------------------------

    @record.repeating(4)
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        quick, scope = self._quick, LOCAL.scope
        if quick is None or scope.trace is not NOBODY or scope.observer is not None or scope.caller is not NOBODY:
            return self._call(args, kwargs)  # type: ignore[no-any-return]
        binding, latest, circumstances = quick
        arrays: list[Any] = []
        variables: list[Any] = []
        if circumstances != _circumstances() or not latest.recognises(args, kwargs, arrays, variables):
            return self._call(args, kwargs)  # type: ignore[no-any-return]
        if len(variables) > 1 and len({*map(id, variables)}) < len(variables):  # one of them twice is another structure
            return self._call(args, kwargs)  # type: ignore[no-any-return]
        with STATE:
            inputs = binding.inputs(arrays, variables) if binding.suits(variables) else None
        if inputs is None or (binding.unrepeatable and jaxapi.in_trace()):
            return self._call(args, kwargs)  # type: ignore[no-any-return]
        self._called[0] += 1
        STATS.hits += 1
        try:
            return binding.run(inputs, arrays, variables)  # type: ignore[no-any-return]
        except TracedError:  # to look for it beforehand would cost more than the rest of the call
            return self._inline(args, kwargs)  # type: ignore[no-any-return]

    def _call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Call the function with arguments of any kind, tracing it if it must be."""
        if args and belongs_to(self, args[0]):
            return self.__get__(args[0])(*args[1:], **kwargs)  # type: ignore[arg-type]
        scope = LOCAL.scope  # the forward of a tape.Function is asked what its outputs were computed of
        if not (scope.trace is scope.forward is NOBODY) or jaxapi.in_trace() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self._inline(args, kwargs)
        if scope.observer is not None and not scope.observer.traceable:  # op hooks that are to see values
            return self._inline(args, kwargs)
        call = self._parameters.take_apart(self.name, args, kwargs)
        variables = call.variables
        self._called[0] += 1
        started = time.perf_counter()
        with STATE:
            binding, traced, new = self._bind(call, variables)
            inputs = binding.inputs(call.arrays, variables)
        if new:
            result = self._compiled(binding, inputs, call, started)
        else:
            if traced:
                retraced(self, self._called[0])
            result = binding.run(inputs, call.arrays, variables)
            STATS.hits += 1
        plain = scope.observer is None and scope.caller is NOBODY  # otherwise arrays that a caller made may count as Variables
        if plain and len(variables) + len(call.arrays) == len(call.leaves):  # no Variable is there twice
            self._quick = binding, Latest(args, kwargs, [k for k, _ in call.statics]), _circumstances()
        else:
            self._quick = None
        return result

    def _compiled(self, binding: Binding, inputs: Any, call: Call, started: float) -> object:
        """Run a binding for the first time, which compiles it, and tell of that; it ``started`` to be traced then."""
        line = user_line()
        site = STATS.sites.of("call", line)
        change = change_of(self, line)
        number = site.last + 1 if change.kind == "function" else self._called[0]
        compilation = begun("step", site, binding.step.ops, change, number=number)
        with timed(compilation, started):
            result = binding.run(inputs, call.arrays, call.variables)
        STATS.compiled(compilation.seconds or 0.0)
        warn_of(site)
        return result

    def _inline(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Run the function as a part of what is traced around it."""
        call = self._parameters.take_apart(self.name, args, kwargs)
        again, keywords = call.put_back([x if isinstance(x, Handle) else _argument(x) for x in call.leaves])
        return self.__wrapped__(*again, **keywords)

    def _bind(self, call: Call, variables: list[Handle]) -> tuple[Binding, bool, bool]:
        """Return the step bound to the Variables of this call, whether it was traced for it, and whether it is a new program."""
        hooks = None if LOCAL.scope.observer is None else LOCAL.scope.observer.key
        key = (signature(call), _circumstances(), hooks)
        entries = self._entries.setdefault(key, [])
        known = _first(entries, lambda e: e.suiting(variables)) or _first(entries, lambda e: e.following(variables))
        if known is not None:
            known[1].called = True
            return known[1], False, False
        reached = Reach([self.__wrapped__])
        known = _first(entries, lambda e: e.bind(variables, reached))
        traced, new = known is None, False
        if known is None:
            entry, said, reached = self._trace(call, reached, entries)
            bound = entry.bind(variables, reached)
            assert bound is not None, "a step does not fit what it was traced with"
            note(self.reasons, said, entry, [e for alike in self._entries.values() for e in alike])
            new = entry not in entries
            if new:
                entries.append(entry)
            self._forget()
        else:
            entry, bound = known
            entries.remove(entry)
            entries.append(entry)  # the latest is the last one
        forget_replaced(self._entries.values())
        bound.forget = functools.partial(forget_replaced, self._entries.values(), bound)
        entry.bindings.insert(0, bound)
        del entry.bindings[_BINDINGS_LIMIT:]
        return bound, traced, new

    def _trace(self, call: Call, reached: Reach, others: Sequence[CompiledStep]) -> tuple[CompiledStep, dict[str, str], Reach]:
        def run(traced: Sequence[jax.Array]) -> object:
            it = iter(traced)
            args, kwargs = call.put_back([x if isinstance(x, Handle) else record.leaf(next(it)) for x in call.leaves])
            return self.__wrapped__(*args, **kwargs)

        avals, known = [aval_of(x) for x in call.arrays], [other.step for other in others]
        step, reached = settled(
            lambda r, anew: trace_anew(self.name, run, avals, call.variables, r, known, anew=anew), self.__wrapped__, reached
        )
        entry = CompiledStep(step, self._options, call, reached, others)
        return entry.known_as(others, call.variables, reached), entry.said, reached

    def _forget(self) -> None:
        """Keep the number of steps bounded: the ones used least lately go."""
        while sum(map(len, self._entries.values())) > _STEPS_LIMIT:
            key = next(iter(self._entries))
            self._entries[key].pop(0)
            if not self._entries[key]:
                del self._entries[key]

    # -- telling ------------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Say why the function was traced, each time; on a terminal in lines that fit it.

        Example:
            >>> import tape
            >>> double = tape.jit(lambda x: x * 2)
            >>> _ = double(tape.constant([1.0])), double(tape.constant([1.0, 2.0]))
            >>> print(double.explain())
            trace 1: first call
            trace 2: argument 0: Variable of shape (1,), dtype float32 -> Variable of shape (2,), dtype float32

        """
        lines = [f"trace {i}: {reason}" for i, reason in enumerate(self.reasons, 1)] or ["not traced yet"]
        if is_terminal():
            lines = [textwrap.fill(line, columns(), subsequent_indent="  ", break_on_hyphens=False) for line in lines]
        return "\n".join(lines)

    def cache_info(self) -> CacheInfo:
        """Return the numbers of calls, traces, and traces kept."""
        return CacheInfo(self._called[0], len(self.reasons), sum(map(len, self._entries.values())))

    def clear_cache(self) -> None:
        """Forget every trace."""
        self._entries.clear()
        self._quick = None

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Return JAX's lowered program for these arguments (``.as_text()``, ``.compile().cost_analysis()``), without running it."""
        call = self._parameters.take_apart(self.name, args, kwargs)
        with STATE:
            binding, *_ = self._bind(call, call.variables)
            inputs = binding.inputs(call.arrays, call.variables)
        return binding.executable.lower(*binding.complete(inputs, call.arrays, call.variables))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<tape.jit of {self.name}>"

    # -- as a method ----------------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self: Jitted[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Jitted[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        kept = getattr(instance, "__dict__", None)
        if kept is None:
            msg = (
                f"jit: {self.name} is a method of {type(instance).__name__}, which has no __dict__ to keep compiled methods in; "
                "add one to its __slots__"
            )
            raise TapeTypeError(msg)
        bound = kept.get(_KEY)
        if bound is None:
            bound = _Bound()
            kind = type if isinstance(instance, type) else object  # a class of a classmethod
            kind.__setattr__(instance, _KEY, bound)
        key = (self, id(instance))
        if key not in bound:
            bound[key] = Jitted(types.MethodType(self.__wrapped__, instance), self._shifted())
        return bound[key]

    def __reduce__(self) -> Any:  # as functions are, by name; a method goes with its object
        if isinstance(self.__wrapped__, types.FunctionType):
            return self.__wrapped__.__qualname__
        return Jitted, (self.__wrapped__, self._options)

    def _shifted(self) -> dict[str, Any]:
        """Return the options for a method without its first parameter."""
        options = dict(self._options)
        for name in ("static_argnums", "donate_argnums"):
            if (given := options.get(name)) is not None:
                listed = [given] if isinstance(given, int) else list(given)
                options[name] = tuple(i - 1 if i > 0 else i for i in listed if i != 0)
        return options


_KEY = "__tape_jit__"


class _Bound(dict[Any, Any]):
    """The compiled methods of one object; a copy of the object starts without."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Bound, ())


def _first(entries: Sequence[CompiledStep], bind: Callable[[CompiledStep], Binding | None]) -> tuple[CompiledStep, Binding] | None:
    """Return the step used last of those that can be bound, and how it is."""
    for entry in reversed(entries):
        bound = bind(entry)
        if bound is not None:
            return entry, bound
    return None


def _circumstances() -> tuple[Hashable, ...]:
    """Return what a trace depends on besides arguments and Variables."""
    return (LOCAL.scope.mode, configuration(), table.revision())


def _argument(x: object) -> Any:
    variable = record.constant(np.asarray(x) if isinstance(x, np.generic) else x)
    if isinstance(variable._cell[0], jax.Array):
        LOCAL.scope.trace.adopt(variable._cell)
    return variable


class _Decorator(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> Jitted[P, R]: ...


class _Options(TypedDict, total=False):
    """The options of :func:`jit`."""

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    donate_state: bool
    keep_unused: bool
    compiler_options: dict[str, Any] | None


@overload
def jit(fun: Callable[P, R], /, **options: Unpack[_Options]) -> Jitted[P, R]: ...
@overload
def jit(fun: None = None, /, **options: Unpack[_Options]) -> _Decorator: ...
def jit(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    donate_state: bool = False,
    keep_unused: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """Compile a function that reads and writes Variables.

    The function is traced once for each structure of its arguments and of the Variables that it touches, and then runs as one program:
    what it reads of Variables is an input, what it assigns (``.value``, ``.grad``, ``v[i] = y``, a name, attribute or item that gets a new
    Variable or array) a result.

    Hooks on Variables inside of it are called as it is traced, and are a part of its derivative.  Its second derivative differentiates
    that; outside of ``tape.jit`` they would see the second sweep, too.

    Args:
        fun: a function or method over Variables; without it, a decorator is returned.  Arrays and numbers arrive as Variables, in any
            pytree.  Variables that it captures, by closure, as globals, in attributes and containers, are found when it is traced, and so
            are JAX's arrays, also others that come there later; flags, names and functions that code
            names are looked at; numbers are part of it, as in ``jax.jit`` (``self.t += 1`` beside Variables warns).
        static_argnums: positions of arguments that are part of the program; they must be hashable.
        static_argnames: their names.
        donate_argnums: positions of arguments whose buffers may be used for results: arrays are deleted then, as by ``jax.jit``;
            Variables must be assigned to in the function.
        donate_argnames: their names.
        donate_state: use the old buffers of Variables and gradients that the function assigns; a buffer that somebody else refers to
            is copied.
        keep_unused: keep arguments in the program that it does not use.
        compiler_options: options for XLA.

    Returns:
        A function with ``fun``'s signature that returns what ``fun`` does.  Where a result is differentiable, a call is one op of the
        tape, and gradients flow through it.  ``explain()`` tells why it was traced, ``cache_info()`` how often, ``lower()`` gives the
        program.

    Raises:
        TapeTypeError: ``fun`` cannot be called, an option is not a number or name, or an argument is neither an array nor static.
        TapeValueError: an option names no parameter; or what is to be donated could still be reached.
        ConcretizationError: the function looks at a value (``float(v)``, ``if v > 0``).
        LeakedTracerError: a Variable that exists only while the function is traced would outlive it, or is used afterwards.
        TapeRuntimeError: ``backward()`` in it would go on in the graph outside of it.

    Example:
        >>> import tape
        >>> w = tape.Variable(3.0)
        >>> @tape.jit
        ... def step():
        ...     loss = w * w
        ...     loss.backward()
        ...     w.value = w.value - 0.25 * w.grad.value
        ...     w.grad = None
        ...     return loss
        >>> [float(step()) for _ in range(3)]
        [9.0, 2.25, 0.5625]

    """
    options: dict[str, Any] = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "donate_state": donate_state,
        "keep_unused": keep_unused,
        "compiler_options": compiler_options,
    }
    if fun is None:
        return functools.partial(jit, **options)
    check_callable("jit", fun)
    check_flag("jit", "donate_state", donate_state)
    check_flag("jit", "keep_unused", keep_unused)
    return Jitted(fun, options)
