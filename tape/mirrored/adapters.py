"""Adapters: the counterparts of JAX functions that are more than one recorded entry, or none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from tape import jaxapi
from tape.bounded import Bounded
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.trees import leaves_of, variables_in
from tape.mirrored.composed import COMPOSED
from tape.mirrored.detachment import refuse_reinterpretation, stop_gradient
from tape.mirrored.mirror import call, describe, mirrored, on_values
from tape.mirrored.reduced import REDUCED
from tape.mirrored.selection import SELECTIONS, THROUGH, over_segments
from tape.programs.handing import array_of
from tape.recording import record
from tape.recording.template import Static


class UFunc:
    """A ``jax.numpy.ufunc`` that records: a function with ``reduce``, ``accumulate``, ``reduceat``, ``at`` and ``outer``."""

    __name__: str

    def __init__(self, ufunc: Any, module: str = "tape.numpy", recorded: Callable[..., Callable[..., Any]] | None = None) -> None:
        functools.update_wrapper(self, ufunc)
        name = ufunc.__name__
        self.__module__ = module
        self.nin, self.nout, self.nargs, self.identity = ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.identity
        own = COMPOSED["jax.numpy"].get(name)
        self._call = recorded() if recorded is not None else own(ufunc) if own else mirrored(ufunc, name, module=module)
        for method in ("reduce", "accumulate", "reduceat", "outer", "at"):
            recording = mirrored(getattr(ufunc, method), f"{name}.{method}", module=module) if recorded is None else recorded(method)
            setattr(self, method, recording)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Record it."""
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tape ufunc {self.__name__!r}>"

    def __reduce__(self) -> str:
        return self.__name__


class Indexer:
    """``r_``, ``c_``, ``mgrid`` and ``ogrid``: arrays written as an index."""

    def __init__(self, original: Any, name: str) -> None:
        self.__doc__ = original.__doc__
        self._original = original
        self._name = name

    def __getitem__(self, key: object) -> Any:
        return call(self._index, self._name, (key,), {})

    def _index(self, key: object) -> object:
        return self._original[key]


def like(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the shape and dtype of its first argument: no gradient flows from it."""
    name = original.__name__
    parameter = next(iter(inspect.signature(original).parameters))

    @functools.wraps(original)
    def _made_like(*args: object, **kwargs: object) -> object:
        first = args[0] if args else kwargs.pop(parameter, None)
        if isinstance(first, (Handle, jax.Array, np.ndarray)):
            aval: Any = first._place.kind.aval if isinstance(first, Handle) else first
            first = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
        return call(original, name, (first, *args[1:]), kwargs)

    return _made_like


def array(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``array`` or ``asarray``: data without Variables become a constant at once, Variables are recorded (and stacked)."""
    name = original.__name__
    recording = mirrored(original, name)

    @functools.wraps(original)
    def _array(*args: object, **kwargs: object) -> object:
        leaves = leaves_of((args, kwargs))
        if any(isinstance(x, (Handle, jaxapi.Tracer)) for x in leaves):
            return recording(*args, **kwargs)
        with jaxapi.ensure_compile_time_eval():
            if len(args) == 1 and not kwargs and not isinstance(args[0], jax.Array):
                value = array_of(args[0])
            else:
                value = original(*args, **kwargs)
                if name == "asarray" and any(isinstance(x, np.ndarray) for x in leaves):
                    value = jnp.array(value, copy=True)
        held = any(isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves)
        return record.leaf(value, unrecorded=held and LOCAL.scope.caller.bring(value))

    return _array


def metadata(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers from shapes and dtypes alone."""

    @functools.wraps(original)
    def _answer(*args: object, **kwargs: object) -> object:
        if variables_in((args, kwargs)):
            return describe(original, original.__name__, args, kwargs)
        return original(*args, **kwargs)

    return _answer


def looking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that looks at its arguments and runs at every call."""
    return functools.wraps(original)(lambda *args, **kwargs: on_values(original, original.__name__, args, kwargs))


def other(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes, of any function, another one."""
    through = THROUGH.get(function)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        wrapped: Any = functools.wraps(original)(functools.partial(function))
        if through is not None:
            wrapped.through = through
        return wrapped  # type: ignore[no-any-return]

    return make


def bitcast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reinterprets constants, and refuses what has a gradient."""
    recording = mirrored(original, module="tape.lax")

    @functools.wraps(original)
    def bitcast_convert_type(operand: object, new_dtype: DTypeLike) -> object:
        if isinstance(operand, Handle) and jnp.dtype(new_dtype) != operand._place.kind.aval.dtype:
            refuse_reinterpretation(operand, "bitcast_convert_type")
        return recording(operand, new_dtype)

    return bitcast_convert_type


def attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``dot_product_attention`` that takes float16 where XLA has no product of such numbers with sums in float32.

    JAX asks for one, and does without where it is called outside ``jax.jit``; in a program it is too late for that.
    """
    recording = mirrored(original, module="tape.nn")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def select(*args: object, **kwargs: object) -> object:
        given = signature.bind_partial(*args, **kwargs).arguments
        halves = [k for k in ("query", "key", "value") if _dtype(given.get(k)) == np.float16]
        if "query" not in halves or _sums_halves(jax.default_backend()):
            return recording(*args, **kwargs)
        given.update({k: call(_as, "astype", (given[k], np.float32), {}) for k in halves})
        result = recording(**given)
        if isinstance(result, tuple):
            return (call(_as, "astype", (result[0], np.float16), {}), *result[1:])
        return call(_as, "astype", (result, np.float16), {})

    return select


def _dtype(x: object) -> object:
    return x._place.kind.aval.dtype if isinstance(x, Handle) else getattr(x, "dtype", None)


def _as(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    return x.astype(dtype)


@functools.cache
def _sums_halves(_platform: str) -> bool:
    """Tell whether products of float16 that are summed in float32 compile."""
    half = jax.ShapeDtypeStruct((1, 1), np.float16)
    precision = jax.lax.DotAlgorithmPreset.F16_F16_F32
    with jaxapi.ensure_compile_time_eval():
        try:
            jax.jit(functools.partial(jnp.dot, precision=precision, preferred_element_type=np.float32)).lower(half, half)
        except Exception:  # noqa: BLE001 - whatever says that they do not
            return False
    return True


def initializer_factory(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns recording initializers, the same one for the same arguments; Variables among them are inputs."""
    known: Bounded[Any, Callable[..., Any]] = Bounded("initializers", 512)
    name = original.__name__

    def initialized(given: tuple[Any, dict[str, Any]], args: Any, kwargs: dict[str, Any]) -> object:
        return original(*given[0], **given[1])(*args, **kwargs)

    @functools.wraps(original)
    def factory(*args: object, **kwargs: object) -> object:
        given = args, kwargs
        if variables_in(given):
            return lambda *args, **kwargs: call(initialized, name, (given, args, kwargs), {})

        def make() -> Callable[..., Any]:
            return mirrored(original(*args, **kwargs), name, module="tape.nn.initializers")

        try:
            return known.cached(jax.tree.map(Static, (args, tuple(sorted(kwargs.items())))), make)
        except TypeError:
            return make()

    return factory


SPECIAL: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "jax.numpy": {
        **{name: other(selection) for name, selection in SELECTIONS.items()},
        **{name: mirror for name, mirror in COMPOSED["jax.numpy"].items() if not isinstance(getattr(jnp, name), jnp.ufunc)},
        **REDUCED["jax.numpy"],
        **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "full_like"), like),
        "array": array,
        "asarray": array,
    },
    "jax.numpy.linalg": REDUCED["jax.numpy.linalg"],
    "jax.scipy.special": {**COMPOSED["jax.scipy.special"], **REDUCED["jax.scipy.special"]},
    "jax.nn": {**COMPOSED["jax.nn"], **REDUCED["jax.nn"], "dot_product_attention": attention},
    "jax.lax": {"stop_gradient": other(stop_gradient), "bitcast_convert_type": bitcast, "full_like": like},
    "jax.ops": dict.fromkeys(("segment_sum", "segment_prod", "segment_min", "segment_max"), over_segments),
}
