"""Runs: entries of the tape, and their VJPs, computed once more, by NumPy where that is what would run them anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.graph import boundary
from tape.graph.kinds import differentiable
from tape.graph.scope import parked
from tape.graph.trees import leaves_of
from tape.graph.trie import RECORD
from tape.ops.kernel import Kernel
from tape.programs.interpretation import at_home
from tape.programs.program import look
from tape.recording import record
from tape.sweeps.differentiation import gradients


class Runner:
    """What runs single entries; one of JAX's primitives takes a hundred times as long to call as one of NumPy's on a small array.

    Args:
        constants: the values of the leaves; where they are not in the host's memory, JAX runs everything.

    """

    def __init__(self, constants: Iterable[Any]) -> None:
        known = list(constants)
        self._hosts: dict[Kernel, Any] = {}
        self._home = not any(isinstance(x, jaxapi.Tracer) for x in known) and at_home(known)

    def forward(self, kernel: Kernel, operands: Sequence[Any], call: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """Return the results of an entry, which JAX gets by ``call``."""
        hosted = self._hosted(kernel, operands)
        return call(*[jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in operands]) if hosted is None else hosted

    def backward(
        self, kernel: Kernel, operands: Sequence[Any], results: Sequence[Any], cts: Sequence[Any], wanted: Sequence[bool]
    ) -> Sequence[Any]:
        """Return what an entry gives to its inputs, None where that is nothing."""
        if self._home and not kernel.transient:
            vjp = kernel.vjp(tuple([ct is not None for ct in cts]), tuple(wanted))
            given = [*operands, *results, *[ct for ct in cts if ct is not None]]
            read = [given[i] for i in vjp.sources]
            cotangents = read if vjp.kernel is None else self._hosted(vjp.kernel, read)
            if cotangents is not None:
                pulled: list[Any] = [None] * len(operands)
                for i, x in zip(vjp.targets, cotangents, strict=True):
                    pulled[i] = x
                return pulled
        inputs, outputs = [jnp.asarray(x) for x in operands], [jnp.asarray(x) for x in results]
        return kernel.pull(inputs, outputs, [None if ct is None else jnp.asarray(ct) for ct in cts], wanted)

    def _hosted(self, kernel: Kernel, operands: Sequence[Any]) -> Sequence[Any] | None:
        """Run a kernel on NumPy's arrays; None where that is not to be, or NumPy refuses it."""
        if not self._home or kernel.transient or not (host := self._host(kernel)):
            return None
        try:
            results = host(*[np.asarray(x, a.dtype) for x, a in zip(operands, kernel.in_avals, strict=True)])
        except Exception:  # noqa: BLE001 - JAX runs it then, and says what is wrong
            return None
        return [
            np.asarray(x, a.dtype) for x, a in zip((results,) if len(kernel.out_avals) == 1 else results, kernel.out_avals, strict=True)
        ]

    def _host(self, kernel: Kernel) -> Any:
        """Return what runs a kernel on NumPy's arrays, if anything does; who asks here leaves it as one that was never met."""
        if kernel not in self._hosts:
            unmet = kernel.unmet
            self._hosts[kernel] = kernel.hosting()
            if unmet:
                kernel._host, kernel.light = None, False
        return self._hosts[kernel]


class BackwardError(Exception):
    """The backward of a ``tape.Function`` raised; nobody sees it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
        self.entry = -1  # its number, which whoever sweeps knows


class FunctionRun:
    """The entry of a ``tape.Function`` as a function of arrays: its forward runs anew, and its backward is the user's."""

    def __init__(self, function: Any, layout: Any, places: tuple[int, ...], arguments: int) -> None:
        self._function, self._layout, self._places, self._arguments = function, layout, places, arguments

    def _called(self, operands: Sequence[Any], wanted: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        inputs = [record.leaf(jnp.asarray(x), requires_grad=w) for x, w in zip(operands, wanted, strict=True)]
        args, kwargs = self._layout.filled(inputs)
        flat = leaves_of(self._function.apply(*args, **kwargs))
        return inputs, [flat[i] for i in self._places]

    def __call__(self, *operands: Any) -> Sequence[Any]:
        """Return the results."""
        given = [jnp.asarray(x) for x in operands[: self._arguments]]
        with parked(mode=RECORD, notes=None, observer=None), boundary.allowing_captures():
            return [look(v) for v in self._called(given, [differentiable(x) for x in given])[1]]

    def backward(self, operands: Sequence[Any], cts: Sequence[Any], wanted: Sequence[bool]) -> Sequence[Any]:
        """Return what it gives to its inputs, None where the user's backward does."""
        n = self._arguments
        with parked(mode=RECORD, notes=None, observer=None), boundary.allowing_captures():
            inputs, results = self._called(operands[:n], wanted[:n])
            roots = [(v, record.leaf(jnp.asarray(ct))) for v, ct in zip(results, cts, strict=True) if ct is not None]
            asked = [v for v, w in zip(inputs, wanted, strict=False) if w]
            try:
                pulled = iter(gradients([v for v, _ in roots], asked, [ct for _, ct in roots], unconnected="none"))
                given = [next(pulled) if w else None for w in wanted[:n]]
                return [None if g is None else look(g) for g in given] + [None] * (len(operands) - n)
            except Exception as error:
                raise BackwardError(error) from error
