"""The mirrored namespaces: every public name of a JAX module, made at its first use.

What a name becomes is decided here, in tables, once: a function that records unless a table says otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tape import jaxapi
from tape.callables.higher_order import calling, invoke
from tape.errors import saying
from tape.jaxapi import words
from tape.mirrored.absent import missing_function
from tape.mirrored.adapters import SPECIAL, Indexer, UFunc, initializer_factory, looking, metadata
from tape.mirrored.mirror import mirrored
from tape.mirrored.structures import MIRRORED_CLASSES, mirrored_class
from tape.recording import record
from tape.variables.variable import Variable


def _recorded(make: Callable[..., Any], name: str, fun: Callable[..., Any], method: str | None = None) -> Callable[..., Any]:
    """Return what a JAX function makes of a function, or a method of that, recorded at every call."""

    def apply(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        recording = make(fun)
        return (recording if method is None else getattr(recording, method))(*args, **kwargs)

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


# Functions of functions: they need Variables inside the callable, and its captures found.
CALLABLES: dict[str, frozenset[str]] = {
    "jax.numpy": words("apply_along_axis apply_over_axes fromfunction frompyfunc piecewise vectorize"),
    "jax.lax": words(
        "associative_scan composite cond custom_linear_solve custom_root fori_loop map platform_dependent reduce reduce_window scan "
        "scatter_apply switch while_loop"
    ),
    "jax.scipy.linalg": words("funm"),
    "jax.scipy.optimize": words("minimize"),
    "jax.scipy.sparse.linalg": words("bicgstab cg gmres"),
}

# Functions of shapes and dtypes: they return plain Python values and record nothing.
METADATA: dict[str, frozenset[str]] = {
    "jax.numpy": words(
        "broadcast_shapes can_cast einsum_path get_printoptions iscomplexobj isdtype isrealobj isscalar issubdtype iterable ndim "
        "promote_types result_type shape size"
    ),
    "jax.nn": words("get_scaled_dot_general_config"),
    "jax.lax": words(
        "axis_size broadcast_shapes conv_dimension_numbers conv_general_permutations conv_general_shape_tuple conv_shape_tuple "
        "conv_transpose_shape_tuple dtype padtype_to_pads reduce_window_shape_tuple"
    ),
    "jax.random": words("key_dtype key_impl"),
}

# Functions that read or write something outside, or look at values to make text.
ON_VALUES: dict[str, frozenset[str]] = {
    "jax.numpy": words("array_repr array_str from_dlpack frombuffer fromfile fromiter fromstring load save savez"),
}

# Functions without arrays, and types that stand for something: taken over as they are.
PASSED: dict[str, frozenset[str]] = {
    "jax.numpy": words("get_printoptions printoptions set_printoptions"),
    "jax.lax": words("ConvGeneralDilatedDimensionNumbers DotDimensionNumbers PrecisionLike after_all create_token"),
}


class Namespace:
    """The mirror of one JAX module.

    Args:
        name: the module that this is the namespace of (``tape.numpy``).
        source: the JAX module (``jax.numpy``).

    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    @functools.cached_property
    def module(self) -> types.ModuleType:
        """The JAX module, imported at the first use."""
        return importlib.import_module(self.source)

    @functools.cached_property
    def names(self) -> list[str]:
        """Every public name."""
        return sorted(n for n in {*dir(self.module), *_submodules(self.module)} if not n.startswith("_") and self.category(n) != "hidden")

    def face(self) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
        """Return the ``__all__``, ``__getattr__`` and ``__dir__`` of the module."""
        return self.names, self.get, lambda: self.names

    def category(self, name: str) -> str:
        """Say what becomes of a name: mirrored, special, selection, metadata, on values, callables, passed, module or hidden."""
        for category, table in (("callables", CALLABLES), ("passed", PASSED), ("metadata", METADATA), ("on values", ON_VALUES)):
            if name in table.get(self.source, ()):
                return category
        if name in SPECIAL.get(self.source, {}):
            return "special"
        if name in _submodules(self.module):
            return "module"
        value = getattr(self.module, name)
        if isinstance(value, types.ModuleType):
            return "module" if value.__name__.startswith(self.source) else "hidden"
        if isinstance(value, jaxapi.Primitive) or name == "annotations":
            return "hidden"
        if isinstance(value, type) or not callable(value):
            return "passed"
        return "mirrored"

    def get(self, name: str) -> Any:
        """Make (once) and return the counterpart of a name; a module's ``__getattr__``."""
        if name.startswith("_") or (not hasattr(self.module, name) and name not in _submodules(self.module)):
            raise missing_function(self.name, name)
        category = self.category(name)
        if category == "hidden":
            raise missing_function(self.name, name)
        counterpart = self._make(name, category)
        setattr(sys.modules[self.name], name, counterpart)
        return counterpart

    def _make(self, name: str, category: str) -> object:
        if category == "module":
            return importlib.import_module(f"{self.name}.{name}")
        value = getattr(self.module, name)
        if category == "passed":
            return self._passed(value, name)
        if category == "callables":
            if name not in FACTORIES:
                return calling(value, name, self.name)
            counterpart = FACTORIES[name](value)
        elif category == "metadata":
            counterpart = metadata(value)
        elif category == "on values":
            counterpart = looking(value)
        elif category == "special":
            counterpart = SPECIAL[self.source][name](value)
        elif isinstance(value, jnp.ufunc):
            return UFunc(value, self.name)
        elif self.source == "jax.nn.initializers" and "key" not in inspect.signature(value).parameters:
            counterpart = initializer_factory(value)
        else:
            return mirrored(value, name, module=self.name)
        through = getattr(counterpart, "through", None)  # what knows all calls that it was met with
        counterpart = saying(counterpart, name)
        if through is not None and (front := record.quick(counterpart, through=through)) is not counterpart:
            counterpart = functools.update_wrapper(front, counterpart)
        counterpart.__module__ = self.name
        counterpart.__name__ = counterpart.__qualname__ = name
        return counterpart

    def _passed(self, value: Any, name: str) -> object:
        if value is jax.Array:
            return Variable
        if value is jnp.ufunc:
            return UFunc
        if name in MIRRORED_CLASSES:
            return mirrored_class(value, self.name)
        if name in {"r_", "c_", "mgrid", "ogrid"}:
            return Indexer(value, name)
        return value


@functools.cache
def _submodules(module: types.ModuleType) -> frozenset[str]:
    """Names of the public modules in a package."""
    return frozenset(m.name for m in pkgutil.iter_modules(getattr(module, "__path__", ())) if not m.name.startswith("_"))


class _LazyModule(types.ModuleType):
    """A mirrored module without a file of its own."""

    _namespace: Namespace

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._namespace.names
        return self._namespace.get(name)

    def __dir__(self) -> list[str]:
        return self._namespace.names


def install(name: str, source: str) -> None:
    """Make the mirrors of all modules below the JAX package ``source`` importable below ``name``; they are filled at first use."""
    spec = importlib.util.find_spec(source)
    for info in pkgutil.iter_modules((spec and spec.submodule_search_locations) or ()):
        if info.name.startswith("_"):
            continue
        module = _LazyModule(f"{name}.{info.name}", f"The mirror of :mod:`{source}.{info.name}`: its functions, recorded.")
        module._namespace = Namespace(f"{name}.{info.name}", f"{source}.{info.name}")
        module.__path__ = []
        sys.modules[f"{name}.{info.name}"] = module
        if info.ispkg:
            install(f"{name}.{info.name}", f"{source}.{info.name}")
