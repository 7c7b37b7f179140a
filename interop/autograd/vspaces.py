"""Vector spaces of arguments: what checks of gradients compute with, for arrays, numbers and containers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from interop.autograd.trees import is_variable
from tape import numpy as tnp
from tape.errors import TapeTypeError

__all__ = ["VSpace", "vspace"]


class VSpace:
    """The space in which a value lies: a pytree of shapes and dtypes.

    Args:
        value: a number, an array, or a pytree of them.

    Example:
        >>> from interop.autograd.extend import vspace
        >>> space = vspace([1.0, (2.0, 3.0)])
        >>> space.size, space.zeros() == [0.0, (0.0, 0.0)]
        (3, True)

    """

    def __init__(self, value: Any) -> None:
        self._tree: Any
        leaves, self._tree = jax.tree.flatten(value, is_leaf=is_variable)
        self._arrays = [_described(x) for x in leaves]
        self._value = value

    @property
    def shape(self) -> Any:
        """The shape of an array."""
        return self._one()[0]

    @property
    def dtype(self) -> Any:
        """The dtype of an array."""
        return self._one()[1]

    @property
    def ndim(self) -> int:
        """The number of axes of an array."""
        return len(self.shape)

    def _one(self) -> tuple[tuple[int, ...], Any]:
        if len(self._arrays) != 1:
            msg = f"a space of {len(self._arrays)} arrays has no single shape or dtype"
            raise TapeTypeError(msg)
        return self._arrays[0]

    @property
    def iscomplex(self) -> bool:
        """Whether an array is complex."""
        return any(dtype.kind == "c" for _, dtype in self._arrays)

    @property
    def size(self) -> int:
        """Number of real dimensions."""
        return int(sum(np.prod(shape, dtype=int) * (2 if dtype.kind == "c" else 1) for shape, dtype in self._arrays))

    def _make(self, make: Callable[[tuple[int, ...], Any], Any]) -> Any:
        return jax.tree.unflatten(self._tree, [make(shape, dtype) for shape, dtype in self._arrays])

    def _map(self, function: Callable[..., Any], *trees: Any) -> Any:
        leaves = [self._tree.flatten_up_to(tree) for tree in trees]
        return jax.tree.unflatten(self._tree, [function(*x) for x in zip(*leaves, strict=True)])

    def zeros(self) -> Any:
        """Return the zero."""
        return self._make(lambda shape, dtype: np.zeros(shape, dtype)[()])

    def ones(self) -> Any:
        """Return ones; of a complex array, 1 + 1j."""
        return self._make(lambda shape, dtype: np.full(shape, 1 + 1j if dtype.kind == "c" else 1, dtype)[()])

    def randn(self) -> Any:
        """Return normally distributed numbers, of NumPy's global generator."""
        return self._make(_random)

    def standard_basis(self) -> Iterator[Any]:
        """Yield the vectors of the standard basis; those of a complex array are real, then imaginary, in turns."""
        for i, (shape, dtype) in enumerate(self._arrays):
            for index in np.ndindex(*shape):
                for one in (1.0, 1.0j) if dtype.kind == "c" else (1.0,):
                    parts = [np.zeros(s, d) for s, d in self._arrays]
                    parts[i][index] = one
                    yield jax.tree.unflatten(self._tree, [p[()] for p in parts])

    def add(self, x: Any, y: Any) -> Any:
        """Return the sum."""
        return self._map(lambda a, b: a + b, x, y)

    def mut_add(self, x: Any, y: Any) -> Any:
        """Return the sum; None stands for zero."""
        return self.add(self.zeros() if x is None else x, y)

    def scalar_mul(self, x: Any, a: Any) -> Any:
        """Return a multiple."""
        return self._map(lambda b: b * a, x)

    def inner_prod(self, x: Any, y: Any) -> Any:
        """Return the inner product, a real number."""
        total: Any = 0.0
        for a, b in zip(self._tree.flatten_up_to(x), self._tree.flatten_up_to(y), strict=True):
            xp: Any = tnp if is_variable(a) or is_variable(b) else np
            total = total + xp.sum(xp.real(xp.conj(a) * b))
        return total

    def covector(self, x: Any) -> Any:
        """Return the cotangent that an inner product with ``x`` is: the conjugate."""
        return self._map(lambda a: (tnp if is_variable(a) else np).conj(a), x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VSpace) and self._tree == other._tree and self._arrays == other._arrays

    def __hash__(self) -> int:
        return hash((self._tree, tuple(self._arrays)))

    def __repr__(self) -> str:
        return f"VSpace({jax.tree.unflatten(self._tree, [f'{d}{list(s)}' for s, d in self._arrays])})"

    mappings: ClassVar[dict[type, Callable[[Any], Any]]] = {}

    @classmethod
    def register(cls, value_type: type, vspace_maker: Callable[[Any], Any] | None = None) -> None:
        """Say what the space of a type's values is."""
        VSpace.mappings[value_type] = vspace_maker or cls


def vspace(value: Any) -> Any:
    """Return the space in which a value lies; of a type that is registered, what its maker says."""
    return VSpace.mappings.get(type(value), VSpace)(value)


def _described(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if isinstance(x, (bool, int, np.integer, np.bool_)) or not (hasattr(x, "dtype") or isinstance(x, (float, complex))):
        msg = f"only floats, arrays and containers of them have a vector space, not {x!r} ({type(x).__name__})"
        raise TapeTypeError(msg)
    return (tuple(x.shape), np.dtype(x.dtype)) if hasattr(x, "dtype") else ((), np.asarray(x).dtype)


def _random(shape: tuple[int, ...], dtype: Any) -> Any:
    real = np.random.randn(*shape)  # noqa: NPY002 - the generator that users of that library seed
    drawn = real + 1j * np.random.randn(*shape) if dtype.kind == "c" else real  # noqa: NPY002
    return np.asarray(drawn).astype(dtype)[()]
