"""What every module of this tool needs: arrays become Variables, results are waited for, and become lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import tape
from benchmarks.gradbench.inputs import Data
from benchmarks.gradbench.protocol import Function

__all__ = ["function", "listed", "variables"]


def function(prepare: Callable[[Any], Any], compute: Callable[[Any], Any], finish: Callable[[Any, Any], Any]) -> Function:
    """Return a function whose run ends when its results are there."""
    return Function(prepare, lambda prepared: jax.block_until_ready(compute(prepared)), finish)


def variables(data: Data, *names: str) -> Data:
    """Return data with arrays of doubles as Variables, of which those named require gradients."""
    floating = {name: x for name, x in data.items() if isinstance(x, np.ndarray) and x.dtype == np.float64}
    return data | {name: tape.Variable(x, requires_grad=name in names) for name, x in floating.items()}


def listed(tree: Any, _raw: Any = None) -> Any:
    """Return Variables in nested dicts, lists and tuples as nested lists."""
    if isinstance(tree, dict):
        return {key: listed(x) for key, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [listed(x) for x in tree]
    return np.asarray(tape.stop_gradient(tree)).tolist()
