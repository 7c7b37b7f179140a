"""Array methods of Variables: each records the method of ``jax.Array`` that it stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

import jax
import jax.numpy as jnp

from tape.errors import TapeTypeError, TapeValueError, saying
from tape.graph.segment import Handle
from tape.graph.trie import State
from tape.jaxapi import words
from tape.mirrored import selection
from tape.mirrored.detachment import refuse_reinterpretation
from tape.mirrored.mirror import call, mirrored
from tape.ops.kernel import Kernel, Op
from tape.recording import record
from tape.variables import indexing, interception, updates
from tape.variables.operators import Operators


def producer(state: State, slot: int) -> Op | Kernel | None:
    """Return the op whose entry made ``slot``."""
    step: State | None = state
    while step is not None:
        if slot in step.slots:
            return step.op if step.kernel is not None else None
        for line in step.lines or ():
            if slot in line.slots:
                return line.kernel  # type: ignore[no-any-return]
        step = step.parent
    return None


def _calling(name: str) -> Callable[..., Any]:
    def method(self: object, *args: object, **kwargs: object) -> object:
        return getattr(self, name)(*args, **kwargs)

    return method


def _method(name: str) -> Callable[..., Any]:
    """Return the recording counterpart of a method of ``jax.Array``."""
    return _named(mirrored(functools.update_wrapper(_calling(name), getattr(jax.Array, name)), name, module="tape"), name)


def _property(name: str) -> property:
    """Return the recording counterpart of a property of ``jax.Array``."""
    op = Op(name, lambda x: getattr(x, name))

    def get(self: Handle) -> object:
        return record.record_one(op, self)

    return property(record.quick(get, one=op), doc=getattr(jax.Array, name).__doc__)


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__, method.__qualname__, method.__module__ = name, f"Variable.{name}", "tape"
    return method


def _compress(self: object, condition: object, *args: object, **kwargs: object) -> object:
    return selection.compress(condition, self, *args, **kwargs)


_PROPERTIES = ("T", "mT", "real", "imag")
_METHODS = words(
    "all any argmax argmin argpartition argsort astype clip conj conjugate copy cumprod cumsum diagonal dot flatten max mean min prod ptp "
    "ravel reshape round searchsorted sort squeeze std sum swapaxes take trace transpose var"
)
# Methods whose results' shapes depend on values.
_SELECTING: dict[str, Callable[..., Any]] = {"repeat": selection.repeat, "compress": _compress, "choose": selection.choose}
_view, _byteswap = mirrored(_calling("view"), "view"), mirrored(_calling("byteswap"), "byteswap")  # which not every release has


class ArrayMethods(Operators):
    """What a Variable shares with arrays beside operators: methods, indexing, and the protocols of NumPy and the Array API."""

    __slots__ = ()

    __array_ufunc__ = interception.array_ufunc
    __array_function__ = interception.array_function
    __torch_function__ = interception.torch_function

    @property
    def at(self) -> updates.At[Self]:
        """Updated copies: ``v.at[index].set(y)``, ``add``, ``multiply`` and so on, as ``jax.Array.at``."""
        return updates.At(self)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return :mod:`tape.numpy`, an Array API namespace."""
        namespace = interception.namespace("tape.numpy")
        if api_version is not None and not (isinstance(api_version, str) and api_version <= namespace.__array_api_version__):
            msg = f"__array_namespace__: api_version {api_version!r} is not supported; the newest is {namespace.__array_api_version__!r}"
            raise TapeTypeError(msg)
        return namespace

    def view(self, dtype: Any = None, *shape: int) -> Self:
        """Return the same bits read as another dtype; a Variable that requires grad is refused, because its gradient would be lost."""
        if shape or isinstance(dtype, (int, tuple, list)):  # PyTorch's view
            given = ", ".join(map(str, (dtype, *shape)))
            msg = (
                f"view: reads the bits of a Variable (shape {self._place.kind.aval.shape}) as another dtype, got {given}; "
                f"use x.reshape({given})"
            )
            raise TapeTypeError(msg)
        if dtype is None or saying(jnp.dtype, "view")(dtype) == self._place.kind.aval.dtype:
            return call(jnp.asarray, "view", (self,), {})  # type: ignore[no-any-return]
        refuse_reinterpretation(self, "view")
        return _view(self, dtype)  # type: ignore[no-any-return]

    def byteswap(self) -> Self:
        """Return the elements with their bytes reversed."""
        refuse_reinterpretation(self, "byteswap")
        return _byteswap(self)  # type: ignore[no-any-return]

    def to_device(self, device: object, *, stream: object = None) -> Self:
        """Return a copy on another device; gradients flow back through it."""
        if stream is not None:
            msg = f"to_device: JAX has no streams, got stream={stream!r}; leave it out"
            raise TapeTypeError(msg)
        if isinstance(device, str):
            msg = f"to_device: got {device!r}, which is no device; pass jax.devices({device.partition(':')[0]!r})[0]"
            raise TapeValueError(msg)
        return call(jax.device_put, "to_device", (self, device), {})  # type: ignore[no-any-return]

    def nonzero(self, *, fill_value: object = None, size: int | None = None) -> tuple[Self, ...]:
        """Return the indices of the elements that are not zero, looking at the values unless ``size`` is given."""
        return selection.nonzero(self, **({} if size is None else {"size": size, "fill_value": fill_value}))  # type: ignore[no-any-return]


def _install() -> None:
    methods: dict[str, Any] = {"__getitem__": indexing.quick, "__setitem__": updates.setitem, "__delitem__": updates.delitem}
    for name, select in _SELECTING.items():
        methods[name] = _named(functools.update_wrapper(saying(select, name), getattr(jax.Array, name)), name)
    methods |= {name: _method(name) for name in _METHODS}
    for name, method in methods.items():
        setattr(ArrayMethods, name, method)
    for name in _PROPERTIES:
        setattr(ArrayMethods, name, _property(name))


_install()
