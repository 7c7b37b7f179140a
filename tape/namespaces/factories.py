"""JAX functions of functions that return functions (``vectorize``, ``composite``, ``frompyfunc``), which are made anew at every trace."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.callables.higher_order import invoke
from tape.mirrored.adapters import UFunc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def _recorded(make: Callable[..., Any], name: str, fun: Callable[..., Any], method: str | None = None) -> Callable[..., Any]:
    """Return what a JAX function makes of a function, or a method of that, recorded at every call."""

    def apply(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        made = make(fun)
        return (made if method is None else getattr(made, method))(*args, **kwargs)

    def function(*args: object, **kwargs: object) -> object:
        return invoke(apply, name if method is None else f"{name}.{method}", (fun, args, kwargs), {})

    return function


def _function(make: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(fun)(_recorded(make, getattr(fun, "__name__", type(fun).__name__), fun))


def _vectorize(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def vectorized(
        pyfunc: Callable[..., Any], *, excluded: Iterable[int | str] = frozenset(), signature: str | None = None
    ) -> Callable[..., Any]:
        original(lambda *arrays: arrays, excluded=excluded, signature=signature)  # it checks its options
        return _function(functools.partial(original, excluded=excluded, signature=signature), pyfunc)

    return vectorized


def _composite(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(name: str, version: int, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Give a composite op what its decomposition captures: JAX has it close over nothing that is traced."""

        def call(*args: object, **kwargs: object) -> object:
            jaxpr, shapes = jaxapi.trace(functools.partial(fun, **kwargs), *args)

            def decomposition(consts: Sequence[jax.Array], *args: object, **_: object) -> object:
                return jax.tree.unflatten(jax.tree.structure(shapes), jaxapi.eval_jaxpr(jaxpr.jaxpr, consts, *jax.tree.leaves(args)))

            return original(decomposition, name, version)(jaxpr.consts, *args, **kwargs)

        return call

    @functools.wraps(original)
    def composed(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
        original(lambda *arrays: arrays, name, version)  # it checks its options
        return _function(functools.partial(make, name, version), decomposition)

    return composed


def _frompyfunc(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_function(func: Callable[..., Any], /, nin: int, nout: int, *, identity: object = None) -> UFunc:
        make = functools.partial(original, nin=nin, nout=nout, identity=identity)
        plain = make(func)
        return UFunc(plain, recorded=functools.partial(_recorded, make, plain.__name__, func))

    return from_function


FACTORIES: dict[str, Callable[..., Any]] = {"vectorize": _vectorize, "composite": _composite, "frompyfunc": _frompyfunc}
