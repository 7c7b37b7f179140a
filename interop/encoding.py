"""What a saved file holds: arrays of plain dtypes by name, and notes on what these stand for, with sums that show damage."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.errors import TapeTypeError, TapeValueError
from tape.jaxapi import words

SCALARS = (bool, int, float, complex, str)
_PLAIN = words("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64")
_VERSION = 1


def is_key(x: Any) -> bool:
    """Tell whether a value is a typed key of JAX's random numbers, or an array of them."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_scalar(x: object) -> bool:
    """Tell whether a value is a number or string of Python's; NumPy's scalars, some of which are floats too, are arrays."""
    return type(x) in SCALARS


def encoded(values: Mapping[str, Any]) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """Return arrays that every format can hold, by name, and notes on all values, as a text.

    Raises:
        TapeTypeError: a value is none that can be saved.
        TapeValueError: an array is in part on devices of other processes.

    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    notes: dict[str, dict[str, Any]] = {}
    value: Any
    for name, value in values.items():
        note: dict[str, Any] = {}
        if isinstance(value, np.random.Generator):
            note = {"generator": _listed(value.bit_generator.state)}
        elif is_scalar(value):
            plain = [value.real, value.imag] if isinstance(value, complex) else value
            note = {"scalar": type(value).__name__, "is": json.loads(json.dumps(plain))}
        elif isinstance(value, (jax.Array, np.ndarray, np.generic)):
            if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
                msg = f"save: {name} is in part on devices of other processes; gather it first, or have orbax save it by itself"
                raise TapeValueError(msg)
            if isinstance(value, jax.Array) and is_key(value):
                note = {"key": str(jax.random.key_impl(value))}
                value = jax.random.key_data(value)  # noqa: PLW2901 - what is saved of it
            elif getattr(value, "weak_type", False):
                note = {"weak": True}
            array = np.asarray(value)
            if array.dtype.byteorder == ">":
                array = array.astype(array.dtype.newbyteorder("="))
            if array.dtype.name not in _PLAIN or not array.size:  # complex128, float8, or what orbax has no file for
                note |= {"dtype": array.dtype.name, "shape": list(array.shape)}
                array = np.frombuffer(array.tobytes() or b"\0", np.uint8)
            arrays[name] = np.ascontiguousarray(array).reshape(array.shape)  # a scalar stays one
            note["sum"] = _sum(arrays[name])
        else:
            msg = f"save: {name} is a {type(value).__name__}, which cannot be saved"
            raise TapeTypeError(msg)
        notes[name] = note
    text = json.dumps(notes)
    return arrays, json.dumps({"version": _VERSION, "sum": zlib.crc32(text.encode()), "values": text})


def decoded(path: str, arrays: Mapping[str, Any], notes: str | None) -> dict[str, Any]:
    """Return the values that were encoded; without notes, the arrays as they are.

    Raises:
        TapeValueError: what is there is not what was saved, or was saved by a later version of this.

    """
    if notes is None:
        return {name: _held(np.asarray(array)) for name, array in arrays.items()}
    try:
        document = json.loads(notes)
        if document["version"] > _VERSION:
            msg = f"load: {path} is of version {document['version']}, and this library knows {_VERSION}; install a newer jax-tape"
            raise TapeValueError(msg)
        if zlib.crc32(document["values"].encode()) != document["sum"]:
            raise ValueError  # noqa: TRY301 - one message for all of that
        listed: dict[str, dict[str, Any]] = json.loads(document["values"])
    except (ValueError, KeyError, TypeError) as e:
        if isinstance(e, TapeValueError):
            raise
        msg = f"load: {path} is damaged: its notes are not those that were saved; take another copy"
        raise TapeValueError(msg) from e
    expected = {name for name, note in listed.items() if "sum" in note}
    given = {name: np.asarray(array) for name, array in arrays.items()}
    wrong = [f"{name!r} is missing" for name in expected if name not in given]
    wrong += [f"{name!r} was not saved" for name in given if name not in expected]
    wrong += [f"the bytes of {name!r} changed" for name in given if name in expected and _sum(given[name]) != listed[name]["sum"]]
    if wrong:
        msg = f"load: {path} is damaged: {'; '.join(wrong[:8])}; take another copy"
        raise TapeValueError(msg)
    return {name: _value(given.get(name), note) for name, note in listed.items()}


def _sum(array: np.ndarray[Any, Any]) -> int:
    """Return a number by which damage shows: of the shape, the dtype and the bytes."""
    head = f"{array.dtype.name}{array.shape}".encode()
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(head))


def _value(array: Any, note: Mapping[str, Any]) -> Any:
    if "generator" in note:
        state = _unlisted(note["generator"])
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
        return generator
    if "scalar" in note:
        kind = {t.__name__: t for t in SCALARS}[note["scalar"]]
        return complex(*note["is"]) if kind is complex else kind(note["is"])
    if "dtype" in note:
        dtype, shape = jnp.dtype(note["dtype"]), note["shape"]
        array = np.frombuffer(array.tobytes()[: dtype.itemsize * int(np.prod(shape))], dtype).reshape(shape)
    if "key" in note:
        return jax.random.wrap_key_data(jnp.array(array), impl=note["key"])
    held = _held(array)
    if note.get("weak") and isinstance(held, jax.Array):
        weak = jnp.broadcast_to(jnp.asarray(held.dtype.type(0).item()), held.shape)
        return weak.at[...].set(held) if weak.dtype == held.dtype else held
    return held


def _held(array: np.ndarray[Any, Any]) -> Any:
    """Return a copy: JAX's, or NumPy's where JAX would give it another dtype."""
    return jnp.array(array) if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype else np.array(array)


def _listed(state: Any) -> Any:
    """Return the state of a generator for JSON."""
    if isinstance(state, dict):
        return {name: _listed(x) for name, x in state.items()}
    return {"array": state.tolist(), "dtype": state.dtype.name} if isinstance(state, np.ndarray) else state


def _unlisted(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return np.array(state["array"], state["dtype"]) if set(state) == {"array", "dtype"} else {n: _unlisted(x) for n, x in state.items()}
