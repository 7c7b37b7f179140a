"""Tensors and arrays: which become which, on which device, and what is copied on the way.

Each library orders its own work on an accelerator, and knows nothing of the other's.  So whoever hands memory over waits for its own work.
"""

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
_ALIGNED = 64  # bytes, of XLA's arrays


CPU = torch.device("cpu")


# -- devices ----------------------------------------------------------------------------------------------------------


@functools.cache
def _is_accelerated() -> bool:
    """Tell whether torch has devices that JAX may have, too."""
    return bool(torch.cuda.is_available())


def _twin(device: Any) -> torch.device:
    """Return the device of torch's that is a device of JAX's; the host's where torch has none."""
    shared_too = device.platform in ("gpu", "cuda", "rocm") and _is_accelerated()
    return torch.device("cuda", device.local_hardware_id) if shared_too else CPU


@functools.lru_cache(maxsize=256)
def _is_at(sharding: jax.sharding.Sharding) -> torch.device | None:
    devices: list[Any] = list(sharding.device_set)
    return _twin(devices[0]) if len(devices) == 1 else None


def _device_of(value: Any) -> torch.device | None:
    """Return on which device of torch's an array is; None where it is on several of JAX's."""
    return _is_at(value.sharding) if isinstance(value, jax.Array) else CPU


def home(values: Sequence[Any] = ()) -> torch.device:
    """Return where JAX computes with values: on the device that the first of them is bound to, or by default."""
    if not _is_accelerated():
        return CPU
    for value in values:
        if isinstance(value, jax.Array) and not isinstance(value, jaxapi.Tracer) and value.committed:
            return _device_of(value) or CPU
    config: Any = jax.config
    default = config.jax_default_device
    return _twin(default if isinstance(default, jax.Device) else jax.local_devices(backend=default)[0])


def _wait(device: torch.device) -> None:
    """Wait for what torch does on a device: JAX knows nothing of it, and writes to the memory of an array as soon as that is gone."""
    torch.cuda.current_stream(device).synchronize()


# -- from arrays to tensors -------------------------------------------------------------------------------------------


def own(value: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor of its own memory with an array's value, which torch code may write to."""
    return _tensor(value, device, copy=True)


def shared(value: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor of an array's value, without a copy where the array is on that device; nobody may write to it."""
    return _tensor(value, device, copy=False)


def _tensor(value: Any, device: torch.device, *, copy: bool) -> torch.Tensor:
    if not value.size:
        return torch.zeros(value.shape, dtype=_of(value.dtype), device=device)
    there = _device_of(value)
    seen = not copy and value.nbytes > _SMALL and isinstance(value, jax.Array) and there == device
    if there is None or (CPU in (there, device) and not seen):
        tensor = _widened(by_numpy(value))
        return tensor.to(device) if device != CPU else tensor
    view = _by_dlpack(value)
    tensor = _widened(view)
    if tensor.device != device or (copy and tensor is view):
        tensor = tensor.to(device, copy=True)
    if tensor is not view and view.is_cuda:
        _wait(view.device)
    return tensor


def _of(dtype: Any) -> torch.dtype:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        msg = "from_torch: a typed random key of JAX is not a tensor; torch has random numbers of its own (torch.manual_seed)"
        raise TapeTypeError(msg)
    torch_dtype = next((t for t, d in _DTYPES.items() if d == dtype), None)
    if torch_dtype is None:
        msg = f"from_torch: torch has no dtype {dtype}; convert the array with .astype"
        raise TapeTypeError(msg)
    return torch.int64 if torch_dtype is torch.int32 and not jaxapi.X64.value else torch_dtype


def by_numpy(value: Any) -> torch.Tensor:
    """Return a tensor of its own memory on the host; of an array of NumPy without JAX."""
    if value.dtype in _OF_NUMPY:
        return torch.from_numpy(np.array(value, order="C"))
    dtype = _of(value.dtype)  # bfloat16 and its like
    return torch.from_numpy(np.array(value, order="C").view(f"u{dtype.itemsize}")).view(dtype)


def _by_dlpack(array: jax.Array) -> torch.Tensor:
    _of(array.dtype)
    array.block_until_ready()  # torch reads the memory at once
    tensor: torch.Tensor = torch.from_dlpack(array)
    return tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.long() if tensor.dtype is torch.int32 and not jaxapi.X64.value else tensor


# -- from tensors to arrays -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _kind(dtype: torch.dtype, shape: tuple[int, ...], wide: bool) -> Any:
    narrow = dtype if wide else _NARROW.get(dtype, dtype)
    return kind_of(jaxapi.ShapedArray(tuple(shape), _DTYPES[narrow]))


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


def to_array(tensor: torch.Tensor, what: str, device: torch.device, *, copy: bool = True) -> Any:
    """Return the array of a tensor: one of NumPy that cannot be written to, or where both are on one accelerator, one of JAX.

    Args:
        tensor: any dense tensor; its strides do not matter.
        what: what it is, for messages.
        device: where the array is to be, if not on the host; what comes from there is JAX's to put where it is used.
        copy: False for a tensor that nobody will write to: its memory is used where it can be.

    Raises:
        TapeTypeError, TapeOverflowError: as :func:`check_dtype`; integers do not fit.

    """
    plain = _plain(tensor, what)
    if not plain.is_cpu:
        if device != CPU and plain.numel():
            return _to_jax(plain.to(device))
        plain = plain.cpu()
    if copy or not plain.is_contiguous():
        plain = plain.clone(memory_format=torch.contiguous_format)
    host = to_numpy(plain)
    host.flags.writeable = False
    away = device != CPU and host.nbytes > _SMALL  # once, and not with each program that reads it
    return known_array(host) if away or jaxapi.in_trace() else host


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array of NumPy in the memory of a tensor that is on the host, in one piece."""
    dtype = _DTYPES[tensor.dtype]
    bits = None if dtype in _OF_NUMPY else getattr(torch, f"uint{8 * dtype.itemsize}")
    host: np.ndarray[Any, Any] = tensor.numpy() if bits is None else tensor.view(bits).numpy().view(dtype)
    return host


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return an array of JAX's own memory: torch, which knows nothing of JAX's work, writes to its own as soon as that is free."""
    if not tensor.is_contiguous() or tensor.data_ptr() % _ALIGNED:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    _wait(tensor.device)  # also for what torch still reads of JAX's
    with jaxapi.ensure_compile_time_eval(), torch.cuda.device(tensor.device):
        array = jnp.array(jax.dlpack.from_dlpack(tensor), copy=True)
    array.block_until_ready()
    return array


def to_variable(tensor: torch.Tensor, what: str, device: torch.device = CPU, *, copy: bool = True) -> Any:
    """Return a constant Variable of a tensor; arguments as for :func:`to_array`."""
    value = to_array(tensor, what, device, copy=copy)
    kind = _kind(tensor.dtype, tensor.shape, jaxapi.X64.value) if isinstance(value, np.ndarray) else kind_of(jax.typeof(value))
    variable = handle(None, Place(-1, kind), [value])
    boundary.made(variable)
    return variable


def conjugated(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients of torch's as those of JAX, or the other way round: the conjugates of complex ones."""
    return [t.conj() if t.is_complex() else t for t in tensors]
