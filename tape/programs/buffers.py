"""Buffers: small arrays of NumPy are handed to a program in one buffer for each dtype, and taken out of it inside.

To hand one over costs a call of XLA's as much as recording five entries, whatever its size, and to take it out of a buffer inside costs
next to nothing.  XLA is kept from fusing that with what reads it: results are the same to the last bit as those of separate arrays.
Which arguments come that way is settled when the program is made, so that it is never compiled again because of them: should an array of
JAX come in such a place, it is put into a buffer on its device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import layout
from tape.jaxapi import Tracer

SMALL = 1 << 13  # bytes, which are copied in less time than an argument takes
_FEW = 3  # of one dtype: fewer save no more than a microsecond, which an array of JAX in their place would cost ten times over


def jitted(fun: Callable[..., Any], leaves: Sequence[Any], chosen: Iterable[int], donated: Sequence[int] = (), **options: Any) -> Any:
    """Return ``jax.jit`` of a function for arguments like ``leaves``, with those ``chosen`` in buffers where that is worthwhile."""
    groups: dict[np.dtype[Any], list[int]] = {}
    if not any(isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 for x in leaves):
        for i in chosen:
            x = leaves[i]
            if x.__class__ is np.ndarray and 0 < x.nbytes <= SMALL and x.dtype.kind in "biufc":
                groups.setdefault(jax.dtypes.canonicalize_dtype(x.dtype), []).append(i)
    groups = {dtype: positions for dtype, positions in groups.items() if len(positions) >= _FEW}
    return Buffered(fun, leaves, groups, donated, options) if groups else jax.jit(fun, donate_argnums=donated, **options)


def copies(leaves: Sequence[Any]) -> list[int]:
    """Return the positions of the copies of operands, which nobody may write to; what NumPy computed will be an array of JAX next time."""
    return [i for i, x in enumerate(leaves) if x.__class__ is np.ndarray and x.base is None and not x.flags.writeable]


class Buffered(layout.Buffered):
    """A function of ``jax.jit`` that is given some of its arguments in buffers.

    The recorder in C fills them; what is no array of NumPy of the dtype, or lies in several pieces, is the business of :meth:`run`.
    ``_groups`` has for each buffer how it is made, its length and dtype, and the positions and bytes of its arguments; ``_others`` are the
    positions of the other arguments, which come first.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        leaves: Sequence[Any],
        groups: dict[np.dtype[Any], list[int]],
        donated: Sequence[int],
        options: dict[str, Any],
    ) -> None:
        inside = {i for positions in groups.values() for i in positions}
        self.__wrapped__ = fun
        self._others = tuple([i for i in range(len(leaves)) if i not in inside])
        shapes = {i: leaves[i].shape for i in inside}
        self._groups = tuple(
            [
                (np.empty, sum(leaves[i].size for i in at), dtype, tuple(at), tuple([leaves[i].size * dtype.itemsize for i in at]))
                for dtype, at in groups.items()
            ]
        )

        def program(*given: Any) -> Any:
            arguments = dict(zip(self._others, given, strict=False))
            for positions, buffer in zip(groups.values(), given[len(self._others) :], strict=True):
                start = 0
                for i in positions:
                    end = start + math.prod(shapes[i])
                    arguments[i] = lax.optimization_barrier(lax.reshape(lax.slice(buffer, (start,), (end,)), shapes[i]))
                    start = end
            return fun(*[arguments[i] for i in range(len(arguments))])

        program.__name__ = program.__qualname__ = fun.__name__
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
        for _, _, dtype, positions, _ in self._groups:
            arrays = [given[i] for i in positions]
            if all(x.__class__ is np.ndarray for x in arrays):
                with np.errstate(all="ignore"):  # a number that the dtype does not hold becomes infinite, as in JAX
                    there.append(np.concatenate(arrays, axis=None, dtype=dtype, casting="unsafe"))
            elif any(isinstance(x, jax.Array) and not isinstance(x, Tracer) and len(x.sharding.device_set) > 1 for x in arrays):
                return None
            else:
                there.append(_joined(*arrays))
        return there


@jax.jit
def _joined(*arrays: Any) -> Any:
    return jnp.concatenate([jnp.ravel(x) for x in arrays])
