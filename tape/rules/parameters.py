"""What a rule may assume of a primitive's parameters, whichever JAX release traced it; the only module that knows how releases differ.

* They are JAX's own, by the names that they have in JAX 0.10: a rule names those that it needs and accepts all others (``**_``).
* A loop (``scan``) has ``jaxpr``, ``num_consts``, ``num_carry``, ``length``, ``reverse`` and ``unroll``; its inputs are constants, carries
  and what is scanned over, in that order, and its outputs carries and what is stacked.  Nothing else in it depends on these numbers.
* A jaxpr in ``scan``, ``while`` and ``cond`` is closed; any other may be open (:func:`tape.jaxapi.closed` closes it).
* What a rule was given, changed or not, it may bind with :func:`bind`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from tape import jaxapi

_SCAN = jaxapi.primitives.scan_p
# What releases keep beside the counts, or in place of them: one flag per input (older ones), trees of inputs and outputs (newer ones).
_LAYOUT = ("linear", "ft_in", "ft_out")

_IN_PYTHON = jaxapi.Setting("jax_disable_jit")


def assumed(primitive: jaxapi.Primitive, params: dict[str, Any]) -> dict[str, Any]:
    """Return an equation's parameters as rules may assume them."""
    if primitive is not _SCAN:
        return params
    known = {key: value for key, value in params.items() if key not in _LAYOUT}
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        known.update(num_consts=len(consts), num_carry=len(carry))
    return known


def native(primitive: jaxapi.Primitive, params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters that rules may assume as the JAX release at hand has them; such ones are returned as they are."""
    if primitive is not _SCAN or "num_carry" not in params:
        return params
    consts, carry, body = params["num_consts"], params["num_carry"], params["jaxpr"].jaxpr
    layout = _loop(consts, carry, len(body.invars) - consts - carry, len(body.outvars) - carry)
    return {key: params[key] if key in params and key not in _LAYOUT else value for key, value in layout.items()}


def bind(primitive: jaxapi.Primitive, params: dict[str, Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Apply ``primitive`` with parameters that rules may assume, under whatever JAX trace is running; return all outputs as a tuple."""
    return jaxapi.bind(primitive, native(primitive, params), inputs)


def apply(name: str, params: dict[str, Any], *inputs: Any) -> tuple[Any, ...]:
    """:func:`bind`, by the name of a primitive that this JAX release has."""
    primitive = jaxapi.primitive(name)
    assert primitive is not None
    return bind(primitive, params, inputs)


def partial(
    primitive: jaxapi.Primitive, params: dict[str, Any], inputs: Sequence[Any], chosen: Sequence[int]
) -> Callable[..., tuple[Any, ...]]:
    """Return ``primitive`` as a function of some of its inputs."""

    def fun(*varying: Any) -> tuple[Any, ...]:
        operands = list(inputs)
        for i, value in zip(chosen, varying, strict=True):
            operands[i] = value
        return bind(primitive, params, operands)

    return fun


@functools.cache
def _loop(consts: int, carry: int, xs: int, ys: int) -> dict[str, Any]:
    """Return the parameters that this release gives a loop with these numbers of constants, carries, inputs and stacked outputs."""

    def fun(consts: list[Any], carry: list[Any], xs: list[Any]) -> Any:
        def body(state: list[Any], x: list[Any]) -> Any:
            total = sum([*consts, *state, *x], 1.0)  # reads all of them, and hands on none: JAX would take it out of the loop
            return [s + total for s in state], [total + i for i in range(ys)]

        return lax.scan(body, carry, xs, length=1)

    number, line = jax.ShapeDtypeStruct((), "float32"), jax.ShapeDtypeStruct((1,), "float32")
    with jax.disable_jit(False) if _IN_PYTHON.value else contextlib.nullcontext():
        jaxpr, _ = jaxapi.trace(fun, [number] * consts, [number] * carry, [line] * xs)
    return next(eqn.params for eqn in jaxpr.jaxpr.eqns if eqn.primitive is _SCAN)
