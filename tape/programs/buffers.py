"""Buffers: small arrays of NumPy, and numbers, are handed to a program in one buffer for each dtype, and taken out of it inside.

To hand one over costs a call of XLA's as much as recording five entries, whatever its size, and to take it out of a buffer inside costs
next to nothing.  XLA is kept from fusing that with what reads it: results are the same to the last bit as those of separate arguments.
Which arguments come that way is settled when the program is made, so that it is never compiled again because of them: should an array of
JAX come in such a place, it is put into a buffer on its device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import layout
from tape.graph.kinds import is_scalar
from tape.programs.devices import spread
from tape.programs.scans import fitted

SMALL = 1 << 13  # bytes, which are copied in less time than an argument takes
_FEW = 3  # of one dtype: fewer save no more than a microsecond, which an array of JAX in their place would cost ten times over


def jitted(fun: Callable[..., Any], leaves: Sequence[Any], chosen: Iterable[int], donated: Sequence[int] = (), **options: Any) -> Any:
    """Return ``jax.jit`` of a function for arguments like ``leaves``, with those ``chosen`` in buffers where that is worthwhile."""
    groups: dict[_Group, list[int]] = {}
    if not any(map(spread, leaves)):
        for i in chosen:
            x = leaves[i]
            if x.__class__ is np.ndarray and 0 < x.nbytes <= SMALL and x.dtype.kind in "biufc":
                groups.setdefault(_Group(jax.dtypes.canonicalize_dtype(x.dtype), numbers=False), []).append(i)
            elif is_scalar(x):
                groups.setdefault(_Group(jax.typeof(x).dtype, numbers=True), []).append(i)
    groups = {group: positions for group, positions in groups.items() if len(positions) >= _FEW}
    return Buffered(fun, leaves, groups, donated, options) if groups else jax.jit(fun, donate_argnums=donated, **options)


def copies(leaves: Sequence[Any]) -> list[int]:
    """Return the positions of the copies of operands, which nobody may write to; what NumPy computed will be an array of JAX next time."""
    return [i for i, x in enumerate(leaves) if x.__class__ is np.ndarray and x.base is None and not x.flags.writeable]


class _Group(NamedTuple):
    """What comes in one buffer: arrays or numbers of one dtype; these would take the way of :func:`_joined` where one of those does."""

    dtype: np.dtype[Any]
    numbers: bool

    @property
    def code(self) -> str:
        """How the recorder in C writes a number, by the letters of :mod:`struct`; of other dtypes :meth:`Buffered.run` does."""
        return self.dtype.char if self.numbers and self.dtype.char in "fdilq?" else ""

    def described(self, positions: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
        """Return how its buffer is made, of the arguments in these positions."""
        return np.empty, sum(sizes), self.dtype, tuple(positions), tuple([size * self.dtype.itemsize for size in sizes]), self.code


class Buffered(layout.Buffered):
    """A function of ``jax.jit`` that is given some of its arguments in buffers.

    The recorder in C fills them; what is no array of NumPy of the dtype, or lies in several pieces, is the business of :meth:`run`.
    ``_groups`` has for each buffer how it is made, its length and dtype, the positions and bytes of its arguments, and how numbers are
    written; ``inside`` are the positions of these, ``_others`` those of the other arguments, which come first.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        leaves: Sequence[Any],
        groups: dict[_Group, list[int]],
        donated: Sequence[int],
        options: dict[str, Any],
    ) -> None:
        self.inside = {i for positions in groups.values() for i in positions}
        self.__wrapped__, self.__name__ = fun, fun.__name__
        self._others = tuple([i for i in range(len(leaves)) if i not in self.inside])
        avals = {i: jax.typeof(leaves[i]) for i in self.inside}
        self._groups = tuple([group.described(at, [avals[i].size for i in at]) for group, at in groups.items()])

        def program(*given: Any) -> Any:
            arguments = dict(zip(self._others, given, strict=False))
            for positions, buffer in zip(groups.values(), given[len(self._others) :], strict=True):
                pieces = lax.split(buffer, [avals[i].size for i in positions])
                pieces = lax.optimization_barrier([lax.reshape(x, avals[i].shape) for i, x in zip(positions, pieces, strict=True)])
                arguments.update((i, fitted(x, avals[i])) for i, x in zip(positions, pieces, strict=True))
            return fun(*[arguments[i] for i in range(len(arguments))])

        program.__name__ = program.__qualname__ = self.__name__
        self._program = jax.jit(program, donate_argnums=[self._others.index(i) for i in donated], **options)
        self._alone = jax.jit(fun, donate_argnums=donated, **options)  # where arrays are spread over devices; compiled when one comes

    def run(self, *given: Any) -> Any:
        """Run it."""
        there = self._filled(given)
        return self._alone(*given) if there is None else self._program(*there)

    def lower(self, *given: Any) -> Any:
        """Lower it for arguments like these, as functions of ``jax.jit`` do."""
        there = self._filled(given)
        return self._alone.lower(*given) if there is None else self._program.lower(*there)

    def _filled(self, given: Sequence[Any]) -> list[Any] | None:
        """Return the other arguments and the buffers; None where an argument that belongs in one is spread over devices."""
        there = [given[i] for i in self._others]
        for _, _, dtype, positions, _, _ in self._groups:
            values = [given[i] for i in positions]
            buffer = _buffer(values, dtype)
            if buffer is None:
                if any(map(spread, values)):
                    return None
                buffer = _joined(*values)
            there.append(buffer)
        return there


def _buffer(values: Sequence[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Return one array of arrays of NumPy, or of numbers; None where there are others, or JAX refuses one of these."""
    with np.errstate(all="ignore"):  # a number that the dtype does not hold becomes infinite, as in JAX
        if all(x.__class__ is np.ndarray for x in values):
            return np.concatenate(values, axis=None, dtype=dtype, casting="unsafe")
        with contextlib.suppress(OverflowError):
            return np.array(values, dtype) if all(map(is_scalar, values)) else None
    return None


@jax.jit
def _joined(*arrays: Any) -> Any:
    return jnp.concatenate([jnp.ravel(x) for x in arrays])
