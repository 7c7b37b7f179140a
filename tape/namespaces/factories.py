"""JAX functions of functions that return functions: ``vectorize``, ``composite``, ``frompyfunc``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.callables.higher_order import calling, invoke
from tape.mirrored.adapters import UFunc

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FACTORIES", "counterpart"]


class _Made:
    """A JAX function of functions that returns a function: its recording counterpart is applied at every call."""

    def __init__(
        self, make: Callable[..., Any], name: str, fun: Callable[..., Any], options: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._make = make
        self._name = name
        self._fun = fun
        self._options = options
        self._keywords = keywords

    def call(self, method: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one call of the function made, or of one of its methods."""

        def apply(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            made = self._make(fun, *self._options, **self._keywords)
            return (made if method is None else getattr(made, method))(*args, **kwargs)

        return invoke(apply, self._name if method is None else f"{self._name}.{method}", (self._fun, args, kwargs), {})


def vectorize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``tape.numpy.vectorize``."""

    @functools.wraps(original)
    def vectorized(pyfunc: Any, *, excluded: Any = frozenset(), signature: str | None = None) -> Any:
        return _function(original, pyfunc, (), {"excluded": excluded, "signature": signature})

    return vectorized


def composite(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``tape.lax.composite``."""

    @functools.wraps(original)
    def composed(decomposition: Any, name: str, version: int = 0) -> Any:
        return _function(functools.partial(_compose, original), decomposition, (name, version), {})

    return composed


def _compose(original: Callable[..., Any], fun: Callable[..., Any], name: str, version: int) -> Callable[..., Any]:
    """Return a composite op that is given what its decomposition captures: JAX has it close over nothing that is traced."""

    def call(*args: Any, **kwargs: Any) -> Any:
        jaxpr, shapes = jaxapi.trace(functools.partial(fun, **kwargs), *args)

        def decomposition(consts: Any, *args: Any, **_: Any) -> Any:
            results = jaxapi.eval_jaxpr(jaxpr.jaxpr, consts, *jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        return original(decomposition, name, version)(jaxpr.consts, *args, **kwargs)

    return call


def _function(original: Callable[..., Any], fun: Any, options: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[..., Any]:
    name = getattr(fun, "__name__", type(fun).__name__)
    original(lambda *arrays: arrays, *options, **keywords)  # it checks its options
    made = _Made(original, name, fun, options, keywords)

    def function(*args: Any, **kwargs: Any) -> Any:
        return made.call(None, args, kwargs)

    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(fun, attribute):
            setattr(function, attribute, getattr(fun, attribute))
    return function


def frompyfunc(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``tape.numpy.frompyfunc``."""

    @functools.wraps(original)
    def from_function(func: Any, /, nin: int, nout: int, *, identity: Any = None) -> Any:
        plain = original(func, nin, nout, identity=identity)
        made = UFunc(plain)
        recorded = _Made(original, plain.__name__, func, (nin, nout), {"identity": identity})
        made._call = lambda *args, **kwargs: recorded.call(None, args, kwargs)
        for method in ("reduce", "accumulate", "reduceat", "outer", "at"):
            setattr(made, method, functools.partial(_method, recorded, method))
        return made

    return from_function


def _method(made: _Made, name: str, *args: Any, **kwargs: Any) -> Any:
    return made.call(name, args, kwargs)


FACTORIES: dict[str, Callable[..., Any]] = {"vectorize": vectorize, "composite": composite, "frompyfunc": frompyfunc}


def counterpart(fun: Callable[..., Any], name: str, module: str) -> Callable[..., Any]:
    """Return what a namespace offers in the place of a JAX function that takes callables."""
    factory = FACTORIES.get(name)
    if factory is None:
        return calling(fun, name, module)
    made = factory(fun)
    made.__module__ = module
    return made  # type: ignore[no-any-return]
