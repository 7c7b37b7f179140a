"""Backwards of the user's in a sweep: each is one call there, by which what it makes of zeros is told from what is linear in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from tape import jaxapi
from tape.ops.building import rebuilt
from tape.ops.linear import BACKWARD
from tape.ops.residuals import pruned


def apart(backward: Callable[[list[Any]], Iterable[Any]], cotangents: Sequence[Any]) -> list[Any]:
    """Call a backward as one equation, which reads what it needs, and then the cotangents; of these and of its results some may be None."""
    given = list(cotangents)
    there = [i for i, ct in enumerate(given) if ct is not None]
    flows: list[bool] = []

    def run(*some: Any) -> list[Any]:
        for i, ct in zip(there, some, strict=True):
            given[i] = ct
        gradients = list(backward(given))
        flows[:] = [g is not None for g in gradients]
        return [g for g in gradients if g is not None]

    traced, _ = jaxapi.trace(run, *[jax.typeof(cotangents[i]) for i in there])
    listed, read = pruned(jaxapi.hoist(traced, range(len(there))), [True] * len(traced.jaxpr.outvars))
    saved = len(traced.consts)
    kept = [i for i, flag in enumerate(read) if flag or i >= saved]
    operands = [*traced.consts, *[cotangents[i] for i in there]]
    called = jaxapi.call(f"{BACKWARD}{len(there)}", rebuilt(listed, listed.outputs, kept), [operands[i] for i in kept])
    results = iter(called)
    return [next(results) if flag else None for flag in flows]
