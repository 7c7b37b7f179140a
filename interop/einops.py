"""Einops on Variables: once this is imported, ``einops.rearrange``, ``reduce``, ``repeat``, ``einsum``, ``pack`` and ``unpack`` record.

``import interop`` sees to that when einops is imported.
"""

from __future__ import annotations

from typing import Any

from interop.arrival import needing

with needing("einops", "einops"):
    from einops import _backends as backends  # where einops finds the backends of other libraries: the subclasses of its class

from collections.abc import Sequence

import numpy as np

import tape
import tape.numpy as tnp

__all__ = ["Backend"]


class Backend(backends.AbstractBackend):  # type: ignore[misc]
    """What einops does with Variables.

    Example:
        >>> import einops, interop.einops, tape
        >>> x = tape.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> einops.reduce(x, "a b -> a", "mean").sum().backward()
        >>> x.grad.shape, einops.rearrange(x, "a (b c) -> b a c", b=3).shape
        ((2, 3), (3, 2, 1))

    """

    framework_name = "tape"

    def is_appropriate_type(self, tensor: object) -> bool:
        """Tell whether it is a Variable."""
        return isinstance(tensor, tape.Variable)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tape.Variable:
        """Return a constant."""
        return tape.constant(x)

    def to_numpy(self, x: tape.Variable) -> np.ndarray[Any, Any]:
        """Return the values; refused where a gradient would be lost."""
        return x.__array__()

    def arange(self, start: int, stop: int) -> tape.Variable:
        """Return numbers in a row."""
        return tnp.arange(start, stop)

    def stack_on_zeroth_dimension(self, tensors: Sequence[Any]) -> tape.Variable:
        """Return one Variable of several."""
        return tnp.stack(tensors)

    def add_axis(self, x: tape.Variable, new_position: int) -> tape.Variable:
        """Return it with an axis of length 1."""
        return tnp.expand_dims(x, new_position)

    def tile(self, x: tape.Variable, repeats: Sequence[int]) -> tape.Variable:
        """Return it repeated along its axes."""
        return tnp.tile(x, repeats)

    def concat(self, tensors: Sequence[Any], axis: int) -> tape.Variable:
        """Return one Variable of several, along an axis."""
        return tnp.concatenate(tensors, axis=axis)

    def is_float_type(self, x: tape.Variable) -> bool:
        """Tell whether it has a mean."""
        return bool(tnp.issubdtype(x.dtype, tnp.inexact))

    def einsum(self, pattern: str, *x: Any) -> tape.Variable:
        """Return a sum of products."""
        return tnp.einsum(pattern, *x)
