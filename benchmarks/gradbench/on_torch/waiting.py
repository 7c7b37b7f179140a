"""What every module of this tool needs: tensors of arrays, and lists of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.gradbench.inputs import Data

__all__ = ["leaf", "listed", "tensor", "tensors"]


def tensor(x: Any) -> Any:
    """Return an array as a tensor."""
    return torch.tensor(x)


def leaf(x: Any) -> Any:
    """Return an array as a tensor of doubles that requires a gradient."""
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def tensors(data: Data, *names: str) -> Data:
    """Return data with its arrays as tensors, of which those named require gradients."""
    return {name: leaf(x) if name in names else tensor(x) if isinstance(x, np.ndarray) else x for name, x in data.items()}


def listed(tree: Any, _raw: Any = None) -> Any:
    """Return tensors in nested dicts and tuples as nested lists."""
    if isinstance(tree, dict):
        return {key: listed(x) for key, x in tree.items()}
    return tree.tolist()
