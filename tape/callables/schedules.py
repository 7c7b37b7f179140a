"""Schedules: long loops of which a sweep keeps few states, and computes the others again from them.

A loop of n steps becomes a tree: a loop of segments, each a checkpoint, whose steps are loops of segments again.  With factors
r1 * r2 * ... * rk = n a sweep holds at most r1 + r2 + ... + rk states at a time, and runs a step forward at most k times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.callables.checkpoint import checkpoint
from tape.callables.higher_order import invoke
from tape.errors import TapeTypeError, TapeValueError, check_callable

_ARITY = 4  # segments per level of "log": 4 * log4(n) states, as for 2, and half as many steps again
_WIDEST = 6


def factors(length: int, schedule: str | int) -> list[tuple[int, ...]]:
    """Split a loop into parts, one after the other, each with the factors of its levels, the outermost first."""
    levels: tuple[int, ...]
    if isinstance(schedule, int):
        levels = (length // schedule, schedule)
    elif schedule == "root":
        levels = (math.isqrt(length), length // max(math.isqrt(length), 1))
    else:
        depth = max(1, math.ceil(math.log(max(length, 1), _ARITY) - 1e-9))
        choices = itertools.combinations_with_replacement(range(_WIDEST, 1, -1), depth)
        levels = max((c for c in choices if math.prod(c) <= length), key=lambda c: (math.prod(c), -sum(c)), default=(length,))
    if levels[0] < 2 or levels[-1] < 2:  # a level of one step is none
        return [(length,)]
    rest = length - math.prod(levels)
    return [levels, *(factors(rest, schedule) if rest else [])]


def _check(name: str, schedule: object) -> None:
    if isinstance(schedule, int) and not isinstance(schedule, bool) and schedule > 0:
        return
    if schedule not in ("log", "root"):
        msg = f"{name}: schedule must be 'log', 'root', or the number of steps in a segment (a positive int), got {schedule!r}"
        raise TapeValueError(msg)


def checkpoint_scan(
    f: Callable[..., Any],
    init: object,
    xs: object = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    schedule: str | int = "log",
) -> Any:
    """``tape.lax.scan`` whose sweep keeps few of the carries, and computes the steps in between again.

    Args:
        f: the step, ``f(carry, x) -> (carry, y)``, over pytrees of Variables; what it captures gets gradients.
        init: the first carry.
        xs: what is scanned over, along first axes; None for nothing.
        length: the number of steps n, needed where ``xs`` has no arrays.
        reverse: go through ``xs`` from its end.
        unroll: as for ``jax.lax.scan``, for the innermost loop.
        schedule: ``"log"`` keeps about 4 log4(n) carries and runs each step forward at most 1 + log4(n) times; ``"root"`` keeps about
            2 sqrt(n), and an int s keeps n / s + s, both for one further run of each step.

    Returns:
        The last carry and the stacked ``y``, as ``jax.lax.scan``.

    Raises:
        TapeTypeError: what ``f`` takes and returns does not fit (JAX's message).
        TapeValueError: there is no such schedule, or lengths differ (JAX's message).

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable(0.5)
        >>> last, _ = tape.checkpoint_scan(lambda c, _: (tnp.sin(c), None), x, length=1000)
        >>> last.backward()

    """
    _check("checkpoint_scan", schedule)
    if length is not None and not isinstance(length, (int, np.integer)):
        msg = f"checkpoint_scan: length must be an int, got {type(length).__name__}"
        raise TapeTypeError(msg)
    if length is not None and length < 0:
        msg = f"checkpoint_scan: length must be 0 or more, got {length}"
        raise TapeValueError(msg)

    def apply(f: Callable[..., object], init: object, xs: object) -> object:
        return _scan(f, init, xs, length, reverse, unroll, schedule)

    return invoke(apply, "checkpoint_scan", (f, init, xs), {})


def _scan(
    f: Callable[..., object], init: object, xs: object, length: int | None, reverse: bool, unroll: object, schedule: str | int
) -> Any:
    """Scan over arrays in the parts and levels of a schedule."""
    scan: Any = lax.scan
    last, ys = jax.eval_shape(lambda *a: scan(f, *a, length=length, reverse=reverse, unroll=unroll), init, xs)  # it checks the arguments
    steps = [leaf.shape[0] for leaf in jax.tree.leaves((xs, ys))][:1]
    n = steps[0] if steps else int(length or 0)
    init = jax.tree.map(_as, init, last)
    element = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    traced, shapes = jaxapi.trace(f, init, element)  # once for all levels
    tree = jax.tree.structure(shapes)

    def step(carry: object, x: object) -> object:
        return jax.tree.unflatten(tree, jaxapi.eval_jaxpr(traced.jaxpr, traced.consts, *jax.tree.leaves((carry, x))))

    def level(carry: object, xs: object, levels: tuple[int, ...]) -> Any:
        if len(levels) == 1:
            return scan(step, carry, xs, length=levels[0], reverse=reverse, unroll=unroll)
        inner = jax.checkpoint(lambda c, x: level(c, x, levels[1:]), prevent_cse=False)  # the loops keep the computations apart
        return scan(inner, carry, xs, length=levels[0], reverse=reverse)

    carry, parts, start = init, [], 0
    for levels in factors(n, schedule):
        size = math.prod(levels)
        first = n - start - size if reverse else start
        part = jax.tree.map(lambda x: x[first : first + size].reshape(*levels, *x.shape[1:]), xs)  # noqa: B023 - called at once
        carry, stacked = level(carry, part, levels)
        parts.append(jax.tree.map(lambda y: y.reshape(size, *y.shape[len(levels) :]), stacked))  # noqa: B023
        start += size
    return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys) if len(ys) > 1 else ys[0], *(parts[::-1] if reverse else parts))


def _as(value: jax.Array, aval: jax.ShapeDtypeStruct) -> jax.Array:
    """Give the first carry the dtype that the loop carries."""
    return value if jnp.issubdtype(aval.dtype, jax.dtypes.extended) else lax.convert_element_type(value, aval.dtype)


def checkpoint_sequential(functions: Sequence[Callable[..., Any]], state: object, *, schedule: str | int = "root") -> Any:
    """Apply functions one after the other, keeping few of the states in between for the sweep.

    For Python loops whose steps differ; equal steps are quicker compiled by :func:`checkpoint_scan`.

    Args:
        functions: each takes what the one before returned, a pytree of Variables; what they capture gets gradients.
        state: what the first one takes.
        schedule: ``"root"``, ``"log"`` or the number of functions in a segment, as for :func:`checkpoint_scan`.  The functions of a segment
            are traced into one program.

    Returns:
        What the last function returned.

    Raises:
        TapeTypeError: something in ``functions`` cannot be called.
        TapeValueError: there is no such schedule.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable(0.5)
        >>> tape.checkpoint_sequential([tnp.sin, tnp.exp] * 8, x).backward()

    """
    _check("checkpoint_sequential", schedule)
    if not hasattr(functions, "__iter__"):
        msg = f"checkpoint_sequential: functions must be a sequence of functions, got {type(functions).__name__}"
        raise TapeTypeError(msg)
    functions = list(functions)
    for i, function in enumerate(functions):
        check_callable("checkpoint_sequential", function, f"functions[{i}] must be callable")
    for levels in factors(len(functions), schedule):
        part, functions = functions[: math.prod(levels)], functions[math.prod(levels) :]
        state = _apply(part, state, levels)
    return state


def _apply(functions: Sequence[Callable[..., object]], state: object, levels: tuple[int, ...]) -> object:
    if len(levels) == 1:
        for function in functions:
            state = function(state)
        return state
    size = math.prod(levels[1:])
    for start in range(0, len(functions), size):

        def segment(state: object, part: Sequence[Callable[..., object]] = functions[start : start + size]) -> object:
            return _apply(part, state, levels[1:])

        state = checkpoint(segment)(state)
    return state
