"""Tensors and arrays: which become which, and what is copied on the way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tape import jaxapi
from tape.errors import TapeOverflowError, TapeTypeError
from tape.graph import boundary
from tape.graph.constants import handle, known_array
from tape.graph.kinds import Place, kind_of

_DTYPES = {
    getattr(torch, name): jnp.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
}
_OF_NUMPY = {np.dtype(d): t for t, d in _DTYPES.items() if d.kind in "biufc"}  # what both know without DLPack
_NARROW = {torch.int64: torch.int32, torch.uint64: torch.uint32}
_WIDE = (torch.float64, torch.complex128)
_SMALL = 1 << 16  # bytes that are copied in less time than DLPack takes


def own(value: Any) -> torch.Tensor:
    """Return a tensor of its own memory with an array's value, which torch code may write to."""
    return shared(value) if _apart(value) else _widened(_by_numpy(value) if _on_host(value) else _by_dlpack(value).clone())


def shared(value: Any) -> torch.Tensor:
    """Return a tensor of an array's value, without a copy where there can be one; nobody may write to it."""
    if _apart(value):
        return torch.zeros(value.shape, dtype=_of(value.dtype))
    if isinstance(value, jax.Array) and value.nbytes > _SMALL or not _on_host(value):  # noqa: RUF021 - read from the left
        return _widened(_by_dlpack(value))
    return _widened(_by_numpy(value))


def _apart(value: Any) -> bool:
    return not value.size


def _of(dtype: Any) -> torch.dtype:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        msg = "from_torch: a typed random key of JAX is not a tensor; torch has random numbers of its own (torch.manual_seed)"
        raise TapeTypeError(msg)
    torch_dtype = next((t for t, d in _DTYPES.items() if d == dtype), None)
    if torch_dtype is None:
        msg = f"from_torch: torch has no dtype {dtype}; convert the array with .astype"
        raise TapeTypeError(msg)
    return torch.int64 if torch_dtype is torch.int32 and not jaxapi.X64.value else torch_dtype


def _on_host(value: Any) -> bool:
    if value.dtype not in _OF_NUMPY:
        return False
    return isinstance(value, (np.ndarray, np.generic)) or _is_host(value.sharding)


@functools.lru_cache(maxsize=256)
def _is_host(sharding: jax.sharding.Sharding) -> bool:
    devices: set[Any] = sharding.device_set
    return all(d.platform == "cpu" for d in devices)


@functools.lru_cache(maxsize=4096)
def _kind(dtype: torch.dtype, shape: tuple[int, ...], wide: bool) -> Any:
    narrow = dtype if wide else _NARROW.get(dtype, dtype)
    return kind_of(jaxapi.ShapedArray(tuple(shape), _DTYPES[narrow]))


def _by_numpy(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C"))


def _by_dlpack(value: Any) -> torch.Tensor:
    _of(value.dtype)
    array = value if isinstance(value, jax.Array) else jax.device_put(value)
    array.block_until_ready()  # torch reads the memory at once
    tensor: torch.Tensor = torch.from_dlpack(array)
    return tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.long() if tensor.dtype is torch.int32 and not jaxapi.X64.value else tensor


def check_dtype(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor that JAX would round, or has no array for.

    Raises:
        TapeTypeError: x64 mode is off and it is float64 or complex128; it is sparse or quantized, or JAX has no such dtype.

    """
    if tensor.dtype in _WIDE and not jaxapi.X64.value:
        msg = (
            f"{what} is {tensor.dtype}, of which JAX would drop half the digits, as its x64 mode is off; call "
            "jax.config.update('jax_enable_x64', True) first, or make the torch side float32 (.float())"
        )
        raise TapeTypeError(msg)
    if tensor.layout is not torch.strided or tensor.dtype not in _DTYPES:
        msg = (
            f"{what} is a tensor of {tensor.layout}, {tensor.dtype}, for which JAX has no array; return tensor.to_dense() of a usual dtype"
        )
        raise TapeTypeError(msg)


def aval_of(tensor: torch.Tensor) -> Any:
    """Return the shape and dtype of the array that a tensor becomes."""
    return _kind(tensor.dtype, tensor.shape, jaxapi.X64.value).aval


def _plain(tensor: torch.Tensor, what: str) -> torch.Tensor:
    check_dtype(tensor, what)
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    narrow = None if jaxapi.X64.value else _NARROW.get(plain.dtype)
    if narrow is None:
        return plain
    narrowed = plain.to(narrow)
    if not torch.equal(narrowed.to(plain.dtype), plain):
        msg = f"{what} has integers that need 64 bits, and JAX's x64 mode is off; call jax.config.update('jax_enable_x64', True) first"
        raise TapeOverflowError(msg)
    return narrowed


def to_array(tensor: torch.Tensor, what: str, *, copy: bool = True) -> Any:
    """Return the array of a tensor: one of NumPy that cannot be written to, or where the tensor is on another device, one of JAX.

    Args:
        tensor: any dense tensor; its strides do not matter.
        what: what it is, for messages.
        copy: False for a tensor that nobody will write to: its memory is used where it can be.

    Raises:
        TapeTypeError, TapeOverflowError: as :func:`check_dtype`; integers do not fit.

    """
    plain = _plain(tensor, what)
    if copy or not plain.is_contiguous():
        plain = plain.clone(memory_format=torch.contiguous_format)
    dtype = _DTYPES[plain.dtype]
    if plain.device.type == "cpu":
        bits = None if dtype in _OF_NUMPY else getattr(torch, f"uint{8 * dtype.itemsize}")
        host: np.ndarray[Any, Any] = plain.numpy() if bits is None else plain.view(bits).numpy().view(dtype)
        host.flags.writeable = False
        return known_array(host) if jaxapi.in_trace() else host
    with jaxapi.ensure_compile_time_eval():
        return jnp.zeros(tuple(plain.shape), dtype) if plain.numel() == 0 else jax.dlpack.from_dlpack(plain)


def to_variable(tensor: torch.Tensor, what: str, *, copy: bool = True) -> Any:
    """Return a constant Variable of a tensor; arguments as for :func:`to_array`."""
    value = to_array(tensor, what, copy=copy)
    kind = _kind(tensor.dtype, tensor.shape, jaxapi.X64.value) if isinstance(value, np.ndarray) else kind_of(jax.typeof(value))
    variable = handle(None, Place(-1, kind), [value])
    boundary.made(variable)
    return variable


def conjugated(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients of torch's as those of JAX, or the other way round: the conjugates of complex ones."""
    return [t.conj() if t.is_complex() else t for t in tensors]
