"""Runs: entries of the tape, and their VJPs, computed once more, by NumPy where that is what would run them anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.programs.interpretation import at_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tape.ops.kernel import Kernel


class Runs:
    """What runs single entries; one of JAX's primitives takes a hundred times as long to call as one of NumPy's on a small array.

    Args:
        constants: the values of the leaves; where they are not in the host's memory, JAX runs everything.

    """

    def __init__(self, constants: Iterable[Any]) -> None:
        known = list(constants)
        self._home = not any(isinstance(x, jaxapi.Tracer) for x in known) and at_home(known)

    def forward(self, kernel: Kernel, operands: Sequence[Any], call: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """Return the results of an entry, which JAX gets by ``call``."""
        found = self._hosted(kernel, operands)
        return call(*[jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in operands]) if found is None else found

    def backward(
        self, kernel: Kernel, operands: Sequence[Any], results: Sequence[Any], cts: Sequence[Any], wanted: Sequence[bool]
    ) -> Sequence[Any]:
        """Return what an entry gives to its inputs, None where that is nothing."""
        if self._home and not kernel.transient:
            vjp = kernel.vjp(tuple([ct is not None for ct in cts]), tuple(wanted))
            given = [*operands, *results, *[ct for ct in cts if ct is not None]]
            read = [given[i] for i in vjp.sources]
            made = read if vjp.kernel is None else self._hosted(vjp.kernel, read)
            if made is not None:
                pulled: list[Any] = [None] * len(operands)
                for i, x in zip(vjp.targets, made, strict=True):
                    pulled[i] = x
                return pulled
        inputs, outputs = [jnp.asarray(x) for x in operands], [jnp.asarray(x) for x in results]
        return kernel.pull(inputs, outputs, [None if ct is None else jnp.asarray(ct) for ct in cts], wanted)

    def _hosted(self, kernel: Kernel, operands: Sequence[Any]) -> Sequence[Any] | None:
        """Run a kernel on NumPy's arrays; None where that is not to be, or NumPy refuses it."""
        if not self._home or kernel.transient or not (host := kernel.hosting()):
            return None
        try:
            made = host(
                *[x if x.__class__ is np.ndarray else np.asarray(x, a.dtype) for x, a in zip(operands, kernel.in_avals, strict=True)]
            )
        except Exception:  # noqa: BLE001 - JAX runs it then, and says what is wrong
            return None
        return [np.asarray(x, a.dtype) for x, a in zip((made,) if len(kernel.out_avals) == 1 else made, kernel.out_avals, strict=True)]
