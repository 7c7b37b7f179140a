"""Handing: numbers and values of NumPy become JAX's arrays, by a program of their shapes once these have come often."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import checks_results, configuration
from tape.graph.constants import known_array
from tape.graph.segment import Handle
from tape.ops.hosting import Host, owned
from tape.programs import background

_OFTEN = 64  # values, in calls with these shapes, at 20 to 100 us; then a program, compiled in 10 ms, will hand one on in 6 us, four in 16

_SEEN: Bounded[Any, int | background.Job] = Bounded("transfers", 4096)  # how many there were, or what compiles their program
_put = jax.jit(lambda *arrays: arrays)


def to_jax(values: Sequence[Any], avals: Sequence[Any]) -> Sequence[jax.Array]:
    """Return JAX's arrays of values that NumPy computed, which share no memory with them."""
    return _handed([owned(value, aval) for value, aval in zip(values, avals, strict=True)])


def hand_on(handles: Iterable[Handle | None]) -> None:
    """Have handles hold JAX's arrays where they hold values as NumPy has them, which only a sweep has seen so far."""
    inner = {id(h._cell): h for h in handles if h is not None and h._cell[0].__class__ is np.ndarray}
    if inner:
        with jaxapi.ensure_compile_time_eval() if jaxapi.in_trace() else contextlib.nullcontext():
            arrays = to_jax([h._cell[0] for h in inner.values()], [h._place.kind.aval for h in inner.values()])
        for handle, array in zip(inner.values(), arrays, strict=True):
            handle._cell[0] = array


_KINDS = frozenset("biufc")
_NUMBERS, _LISTS = frozenset({float, int, bool}), frozenset({list, tuple})


def array_of(value: object) -> jax.Array:
    """Return JAX's array of a number, a NumPy array or nested lists, which shares no memory with them."""
    if value.__class__ in _LISTS and _are_numbers(value):  # JAX looks at each of them for its dtype
        with contextlib.suppress(ValueError):  # of rows of several lengths
            listed = np.array(value)
            small = listed.dtype.kind == "i" and -(1 << 31) <= listed.min() <= listed.max() < 1 << 31
            value = listed if small or listed.dtype.kind in "bf" else value
    plain = value.__class__ is np.ndarray and value.dtype.kind in _KINDS and value.dtype.isnative
    if (plain or value.__class__ is float) and not (jaxapi.in_trace() or checks_results() or jax.config.jax_disable_jit):  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):  # as where transfers are guarded; should it not be that, the other way says what is wrong
            (array,) = _handed([np.array(value, order="C") if plain else value])  # type: ignore[list-item]
            if isinstance(array.sharding, jax.sharding.SingleDeviceSharding):  # inside of a mesh, programs spread what they return
                return array
    return known_array(value, copy=True)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Tell whether nested lists hold numbers of Python's and nothing else."""
    return bool(values) and all(x.__class__ in _NUMBERS or (x.__class__ in _LISTS and _are_numbers(x)) for x in values)


def foresee(avals: Sequence[Any]) -> None:
    """Have values like these handed on by a program, before anything else that the background is given from now on."""
    likes = [np.zeros((), a.dtype).item() if a.weak_type else jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    if likes and not isinstance(_SEEN.get(key := _key(likes)), background.Job):
        _SEEN[key] = background.compiling(_put, likes)


def _key(values: Sequence[Any]) -> tuple[Any, ...]:
    return (id(configuration()), *[(x.shape, x.dtype) if hasattr(x, "dtype") else x.__class__ for x in values])


def _handed(arrays: Sequence[Host | complex]) -> Sequence[jax.Array]:
    key = _key(arrays)
    seen = _SEEN.get(key, 0)
    if isinstance(seen, background.Job):
        if seen.made and not seen.lost:
            return _put(*arrays)  # type: ignore[no-any-return]
    elif seen < _OFTEN:
        _SEEN[key] = seen + len(arrays)
    else:  # not here: that would wait for what is being compiled there
        _SEEN[key] = background.hastened(background.compiling(_put, arrays))
    # To put one takes 29 us, one of several 18; jnp.asarray would take 17, once it has compiled a program for the shape.
    return jax.device_put(list(arrays))  # type: ignore[no-any-return]
