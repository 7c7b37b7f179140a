"""What every module of this tool needs: functions are jitted, results are waited for, and become lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.gradbench.protocol import Function

__all__ = ["function", "listed"]


def function(prepare: Callable[[Any], Any], compute: Callable[..., Any], finish: Callable[[Any, Any], Any], *, static: int = 0) -> Function:
    """Return a jitted function of what ``prepare`` returns, a tuple, whose last ``static`` items are no arrays."""

    def prepared(raw: Any) -> Any:
        args = prepare(raw)
        count = len(args) - static
        return (*(jax.tree.map(jax.numpy.asarray, a) for a in args[:count]), *args[count:])

    jitted: dict[int, Callable[..., Any]] = {}

    def run(args: Any) -> Any:
        step = jitted.get(len(args))
        if step is None:
            step = jitted[len(args)] = jax.jit(compute, static_argnums=tuple(range(len(args) - static, len(args))))
        return jax.block_until_ready(step(*args))

    return Function(prepared, run, finish)


def listed(tree: Any, _raw: Any = None) -> Any:
    """Return arrays in nested dicts and tuples as nested lists."""
    if isinstance(tree, dict):
        return {key: listed(x) for key, x in tree.items()}
    return np.asarray(tree).tolist()
