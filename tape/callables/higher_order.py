"""Functions that take callables: control flow, ``vectorize`` and others, whose callables receive Variables.

A call is traced, with the Variables that its callables capture among the inputs (:mod:`tape.callables.captures`), and recorded as one op:
the traced program.  Equal programs are one op, so that a lambda made anew at each call does not make a new structure; and where the next
trace is known to write the same program, it is left out (:mod:`tape.callables.traces`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tape import errors, jaxapi
from tape.callables.captures import trace_capturing
from tape.callables.fingerprints import intern
from tape.callables.traces import TracedCall
from tape.errors import TapeError, check_callable
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.trees import mapped
from tape.graph.trie import RECORD
from tape.jaxapi import words
from tape.programs.handing import array_of
from tape.programs.program import look
from tape.recording import record

ARRAYS = (jax.Array, np.ndarray)
NUMBERS = (bool, int, float, complex)

# Parameters whose numbers are part of the program and not inputs: sizes, axes, bounds of counted loops.
_STATIC = words(
    "axis axes base_dilation batch_size dimensions dimension_numbers dtype has_aux indices_are_sorted init_value init_values "
    "length lower maxiter method mode options padding restart reverse shape symmetric unique_indices unroll upper window_dilation "
    "window_dimensions window_strides"
)
_FUNCTIONS = words("f fn func func1d function body_fun cond_fun computation matvec solve tangent_solve")
# Functions that hand further arguments to the callable as they are.
_HAND_ON = {"apply_along_axis": "args", "piecewise": "args"}


def invoke(fun: Callable[..., Any], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """Record ``fun(*args, **kwargs)`` as one entry; callables among the arguments receive and return Variables."""
    variables: list[Any] = []
    template: list[Any] = []
    callables: list[Any] = []
    leaves, tree = jax.tree.flatten((list(args), kwargs), is_leaf=_is_leaf)
    try:
        for x, static in zip(leaves, _static_flags(fun, name, args, kwargs), strict=True):
            if isinstance(x, Handle):
                variables.append(x)
            elif isinstance(x, (*ARRAYS, np.generic, *NUMBERS)) and not (static and not isinstance(x, jaxapi.Tracer) and np.ndim(x) == 0):
                variables.append(_constant(x))
            else:
                template.append(x)
                if _takes_variables(x):
                    callables.append(x)
                continue
            template.append(_INPUT)
        inputs = tuple([x is _INPUT for x in template]), tuple([v._place.kind for v in variables])
        call = TracedCall((name, *inputs), tree, [fun, *[x for x in template if x is not _INPUT]])
        known = call.known(_constant)
        if known is None:
            traced = trace_capturing(_applied(fun, tree, template), [v._place.kind.aval for v in variables], callables)
    except (TapeError, *jaxapi.CONCRETE_ERRORS):
        raise
    except (TypeError, ValueError, IndexError, OverflowError) as e:
        if type(e) not in (TypeError, ValueError, IndexError, OverflowError):
            raise
        raise (errors.wrap(e, name, [v._place.kind.aval for v in variables]) or e) from e
    if known is not None:
        op, before, after = known
        return record.record(op, [*before, *variables, *after])
    constants = [_constant(c) for c in traced.jaxpr.consts]
    op = intern(name, jaxapi.hoist(traced.jaxpr, traced.used), jax.tree.structure(traced.shapes))
    if traced.repeatable:
        call.learn(op, traced.jaxpr.consts, constants, traced.captured)
    return record.record(op, [*constants, *variables, *traced.captured])


_INPUT = object()


def _applied(fun: Callable[..., Any], tree: object, template: Sequence[Any]) -> Callable[..., Any]:
    """Return the JAX function with arrays in the places of the inputs, and with callables that hand Variables to the user's."""

    def applied(*arrays: jax.Array) -> object:
        it = iter(arrays)
        met: dict[int, Any] = {}  # one wrapper for one callable: JAX compares functions by identity
        leaves: list[object] = []
        for x in template:
            if x is _INPUT:
                leaves.append(next(it))
            elif _takes_variables(x):
                leaves.append(met.setdefault(id(x), _handing_variables(x)))
            else:
                leaves.append(_counterpart(x))
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return fun(*args, **kwargs)

    return applied


def _is_leaf(x: object) -> bool:
    return isinstance(x, Handle) or (callable(x) and not isinstance(x, type))


def _constant(value: object) -> Any:
    if isinstance(value, np.ndarray):
        value = array_of(value)
    variable = record.constant(np.asarray(value) if isinstance(value, np.generic) else value)
    if not isinstance(variable._cell[0], NUMBERS):
        LOCAL.scope.trace.adopt(variable._cell)
    return variable


def _static_flags(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
    """Tell for each leaf of the arguments whether a number there is static."""
    positions, rest, named = _parameters(fun)
    given = [
        (positions[i] if i < len(positions) else rest, i < len(positions) or rest != _HAND_ON.get(name), a) for i, a in enumerate(args)
    ]
    given += [(key, key in named or name in {"cond", "switch"}, kwargs[key]) for key in sorted(kwargs)]
    flags: list[bool] = []
    for parameter, known, value in given:
        if parameter in _FUNCTIONS:
            check_callable(name, value, f"{parameter} must be a function")
        flags.extend([parameter in _STATIC or not known] * len(jax.tree.leaves(value, is_leaf=_is_leaf)))
    return flags


def _parameters(fun: Callable[..., Any]) -> tuple[tuple[str, ...], str | None, frozenset[str]]:
    """Names of the positional parameters, of the one that takes the rest, and of all."""
    made_anew = isinstance(fun, types.FunctionType) and not fun.__dict__  # at every call, some of them: none is held
    code = getattr(fun if made_anew else _unwrapped(fun), "__code__", None)
    if code is None:
        return (), None, frozenset()
    named = code.co_argcount + code.co_kwonlyargcount
    rest = code.co_varnames[named] if code.co_flags & inspect.CO_VARARGS else None
    return code.co_varnames[: code.co_argcount], rest, frozenset(code.co_varnames[:named])


_unwrapped = functools.lru_cache(maxsize=256)(inspect.unwrap)


def _counterpart(x: object) -> object:
    """Return the JAX function that a function of a mirrored namespace records; anything else as it is."""
    module = str(getattr(x, "__module__", ""))
    if module.startswith("tape.") and getattr(sys.modules.get(module), getattr(x, "__name__", ""), None) is x and callable(x):
        return inspect.unwrap(x)
    return x


def _takes_variables(x: object) -> bool:
    """Tell whether a leaf is a function of Variables: any callable but a type, a function of JAX, or the mirror of one."""
    if not callable(x) or isinstance(x, (type, Handle)):
        return False
    if isinstance(x, functools.partial):
        return _takes_variables(x.func)
    original = _counterpart(x)
    module = getattr(original, "__module__", None) or type(original).__module__
    return str(module).split(".")[0] not in ("jax", "jaxlib")


def _handing_variables(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays that calls a function of Variables."""

    def handing(*args: object, **kwargs: object) -> object:
        with LOCAL.scope.trace.part():
            result = fun(*_enter(args), **_enter(kwargs))
            return mapped(lambda x: look(x) if isinstance(x, Handle) else x, result)

    handing.__name__ = handing.__qualname__ = getattr(fun, "__name__", type(fun).__name__)
    vars(handing)["__wrapped__"] = fun  # JAX's messages name it
    vars(handing)["of_variables"] = fun
    return handing


def _enter(tree: object) -> Any:
    """Make Variables of the arrays that JAX hands to a callable; its functions become functions of Variables."""
    return jax.tree.map(_entering, tree, is_leaf=_is_leaf)


def _entering(x: object) -> object:
    if isinstance(x, ARRAYS):
        requires_grad = LOCAL.scope.mode == RECORD and differentiable(x)
        leaf = record.leaf(x, requires_grad=requires_grad)
        LOCAL.scope.trace.adopt(leaf._cell)
        return leaf
    if callable(x) and not isinstance(x, (type, Handle)):
        return getattr(x, "of_variables", None) or calling(x)
    return x


def calling(fun: Callable[..., Any], name: str | None = None, module: str | None = None) -> Callable[..., Any]:
    """Return the recording counterpart of a JAX function that takes callables."""
    called = name or str(getattr(fun, "__name__", type(fun).__name__))

    def wrapper(*args: object, **kwargs: object) -> object:
        return invoke(fun, called, args, kwargs)

    if module is not None:
        functools.update_wrapper(wrapper, fun)
        wrapper.__module__ = module
    wrapper.__name__ = wrapper.__qualname__ = called
    return wrapper
