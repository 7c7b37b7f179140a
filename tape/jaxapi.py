"""Every name that the project takes from JAX outside ``jax.numpy``, ``jax.lax``, ``jax.nn``, ``jax.scipy`` and ``jax.tree``.

All of them are public (``jax.core``, ``jax.extend.core``, ``jax.dtypes``, ``jax.custom_derivatives``).  When a JAX release moves or
renames one, this is the only module to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.errors
import jax.extend.core as extend
from jax.core import ShapedArray, Tracer, ensure_compile_time_eval, eval_jaxpr
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun, primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CALL_JAXPR_PARAMS",
    "CONCRETE_ERRORS",
    "X64",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "Var",
    "bind",
    "closed",
    "ensure_compile_time_eval",
    "eval_jaxpr",
    "float0",
    "hoist",
    "in_trace",
    "jaxpr_as_fun",
    "partial",
    "passed_on",
    "primitive",
    "primitives",
    "prune",
    "trace",
]


CONCRETE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


def primitive(name: str) -> Primitive | None:
    """Return the ``lax`` primitive called ``name`` (without ``_p``), or None where this JAX release has none."""
    found = getattr(primitives, f"{name}_p", None) or getattr(jax.lax, f"{name}_p", None)  # some are listed in jax.lax only
    return found if isinstance(found, Primitive) else None


class _Configured:
    """Whether 64-bit types are enabled, read from ``jax.config``."""

    @property
    def value(self) -> bool:
        return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _x64() -> Any:
    # The recorder asks at every entry: 24 ns where the public flag tells its value, 51 ns by way of jax.config.
    flag = getattr(jax, "enable_x64", None)
    return flag if isinstance(getattr(flag, "value", None), bool) else _Configured()


X64: Any = _x64()


def _trace_state() -> Any:
    found = getattr(extend, "get_opaque_trace_state", None)
    return None if found is None else found(convention="nnx")


_OUTSIDE = _trace_state()


def in_trace() -> bool:
    """Tell whether a JAX transformation is tracing right now (False where this release cannot tell)."""
    return bool(_trace_state() != _OUTSIDE)


def _calls() -> dict[Primitive, str]:
    """Primitives that merely call a jaxpr, with the parameter that holds it."""
    params = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr"}
    return {found: key for name, key in params.items() if (found := primitive(name)) is not None}


CALL_JAXPR_PARAMS: dict[Primitive, str] = _calls()


def closed(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Close an open jaxpr without constants; a closed one is returned as it is."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else extend.ClosedJaxpr(jaxpr, ())


def bind(primitive: Primitive, params: dict[str, Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Apply ``primitive`` to ``inputs`` under whatever JAX trace is running and return all outputs as a tuple."""
    bound: Any = primitive
    found = bound.get_bind_params(params)
    subfunctions, options = found if isinstance(found, tuple) else ((), found)  # older releases answer with both
    outputs = bound.bind(*subfunctions, *inputs, **options)
    return tuple(outputs) if primitive.multiple_results else (outputs,)


def trace(fun: Callable[..., Any], *avals: Any) -> tuple[ClosedJaxpr, Any]:
    """Trace ``fun`` on abstract inputs; return its jaxpr and the tree of its results' shapes and dtypes."""

    def fresh(*args: Any) -> Any:  # JAX keeps jaxprs by the identity of the function, also where it has captured another trace's values
        return fun(*args)

    jaxpr, shapes = jax.make_jaxpr(fresh, return_shape=True)(*avals)
    return jaxpr, shapes


def prune(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """Drop the equations that no output needs, and the inputs that none of the rest reads.

    Returns:
        The smaller jaxpr and the positions of the inputs that it kept.

    """
    jaxpr = closed.jaxpr
    needed = {v for v in jaxpr.outvars if isinstance(v, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, Var))
    sources = tuple(i for i, v in enumerate(jaxpr.invars) if v in needed)
    constants = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed]
    smaller = Jaxpr(
        [v for v, _ in constants],
        [jaxpr.invars[i] for i in sources],
        jaxpr.outvars,
        kept[::-1],
        jaxpr.effects,
        jaxpr.debug_info.with_unknown_names() if hasattr(jaxpr.debug_info, "with_unknown_names") else jaxpr.debug_info,
    )
    return ClosedJaxpr(smaller, [c for _, c in constants]), sources


def passed_on(closed: ClosedJaxpr) -> tuple[int, ...] | None:
    """Return which inputs the outputs are, for a jaxpr that computes nothing; None for any other."""
    jaxpr = closed.jaxpr
    positions = {v: i for i, v in enumerate(jaxpr.invars)}
    if jaxpr.eqns or not all(isinstance(v, Var) and v in positions for v in jaxpr.outvars):
        return None
    return tuple(positions[v] for v in jaxpr.outvars)


def hoist(closed: ClosedJaxpr, kept: Sequence[int]) -> ClosedJaxpr:
    """Make inputs of the constants, which come first, and drop the inputs that are not in ``kept`` (nothing may read them)."""
    jaxpr = closed.jaxpr
    info = jaxpr.debug_info
    inputs = [*jaxpr.constvars, *[jaxpr.invars[i] for i in kept]]
    info = info.with_unknown_names() if hasattr(info, "with_unknown_names") else info
    return ClosedJaxpr(Jaxpr([], inputs, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, info), [])


def partial(fun: Callable[..., Any], *arrays: Any) -> Any:
    """Bind arrays to a function as a pytree, so that they may pass a transformation's boundary with it."""
    make: Any = jax.tree_util.Partial
    return make(fun, *arrays)
