"""A NaN watcher: which op, on which line, first made a NaN, forward or backward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tape.errors import NonFiniteError
from tape.hooking.observing import OpHook, SeenOp, hooks
from tape.jaxapi import debug_callback
from tape.modes import refuse_statement
from tape.op_hooks.showing import Nesting, Table, described, has_values, values_of
from tape.terminal import named


class Anomaly(NamedTuple):
    """A NaN (or infinity) that an op made.

    Attributes:
        op: the op.
        backward: whether its VJP made it.
        position: the output, or for a VJP the input whose gradient it is in.
        born: whether what the op (or its VJP) was given was free of them.
        what: ``"NaN"`` or ``"inf"``.
        value: dtype and shape.

    """

    op: SeenOp
    backward: bool
    position: int
    born: bool
    what: str
    value: str

    def __str__(self) -> str:
        where = "" if self.op.where is None else f", recorded at {self.op.where[0]}:{self.op.where[1]},"
        if self.backward:
            said = f"the backward of {self.op.name}{where} gave {self.what} for the gradient of input {self.position} ({self.value})"
            return f"{said}, {'from gradients without' if self.born else 'and was given a gradient with'} any"
        inputs = f"{'from' if self.born else 'not from'} clean inputs"
        return f"{self.op.name}{where} gave {self.what} in output {self.position} ({self.value}), {inputs}"


class NaNWatcher(Table, OpHook):
    """Watches what ops and their VJPs make, and names each op, with the user's line, that makes a NaN.

    Every op is looked at, and so runs at once.  A function of ``tape.jit`` runs uncompiled.  In one that ``jax.jit`` traces, what is found
    is reported when the program runs; an error there comes as JAX's, with the message in it.

    Args:
        inf: whether infinities count too.
        raises: whether to raise at the first one; otherwise they are gathered in ``found``.

    Attributes:
        found: an :class:`Anomaly` for each op that made one, in order.

    Example:
        >>> import tape
        >>> x = tape.Variable(0.0)
        >>> with tape.op_hooks.NaNWatcher() as watcher:
        ...     (tape.numpy.sqrt(x) * 0.0).backward()
        >>> [(a.op.name, a.backward, a.born) for a in watcher.found]
        [('sqrt', True, True)]

    """

    def __init__(self, *, inf: bool = False, raises: bool = False) -> None:
        self.inf = inf
        self.raises = raises
        self._given = Nesting()
        self.reset()

    def reset(self) -> None:
        """Forget what was found."""
        self.found: list[Anomaly] = []

    def forward_postprocess(self, op: SeenOp, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Look at the outputs."""
        self._check(op, inputs, outputs, backward=False)

    def backward_preprocess(self, op: SeenOp, output_grads: tuple[Any, ...]) -> None:
        """Keep what the VJP is given, to tell what is born in it."""
        self._given.stack.append([str(op), *output_grads])

    def backward_postprocess(self, op: SeenOp, input_grads: tuple[Any, ...]) -> None:
        """Look at what the VJP gave."""
        given = self._given.leave(str(op)) or [None]
        self._check(op, given[1:], input_grads, backward=True)

    def _check(self, op: SeenOp, given: Sequence[Any], results: Sequence[Any], *, backward: bool) -> None:
        counted = [
            (i, value) for i, value in enumerate(values_of(results)) if value is not None and jnp.issubdtype(value.dtype, jnp.inexact)
        ]
        if not counted:
            return
        flags = [flag for _, value in counted for flag in self._flags(value)]
        report = functools.partial(self._report, op, backward, [(i, described(results[i])) for i, _ in counted])
        if not has_values(flags):
            debug_callback(report, self._dirty(given), *flags)
        elif any(map(bool, flags)):
            report(self._dirty(given), *flags)

    def _flags(self, value: jax.Array) -> tuple[Any, Any]:
        """Tell whether an array holds NaN, and infinities that count."""
        return jnp.isnan(value).any(), jnp.isinf(value).any() if self.inf else jnp.zeros((), bool)

    def _dirty(self, given: Sequence[Any]) -> jax.Array:
        values = [v for v in values_of(given) if v is not None and jnp.issubdtype(v.dtype, jnp.inexact)]
        return jnp.any(jnp.stack([flag for v in values for flag in self._flags(v)])) if values else jnp.zeros((), bool)

    def _report(self, op: SeenOp, backward: bool, places: Sequence[tuple[int, str]], dirty: jax.Array, *flags: jax.Array) -> None:
        for (position, value), nan, inf in zip(places, flags[::2], flags[1::2], strict=True):
            if bool(nan) or bool(inf):
                anomaly = Anomaly(op, backward, position, not bool(dirty), "NaN" if bool(nan) else "inf", value)
                if self.raises:
                    repair = "keep what leads there in the domain of the op (a clip, a where around its input), or look at its inputs"
                    msg = f"{anomaly}; {repair}"
                    raise NonFiniteError(msg)
                self.found.append(anomaly)
                return

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        rows = []
        for a in self.found:
            side, born = "backward" if a.backward else "forward", "yes" if a.born else ""
            rows.append([a.op.name, side, a.what, born, str(a.position), a.value, named(a.op.where)])
        return "NaN and infinities that ops made", ["op", "side", "what", "born", "position", "value", "line"], rows


class detect_anomaly(hooks):  # noqa: N801 - a context manager, named as the other modes
    """Raise as soon as an op, or its VJP in a sweep, makes a NaN; a context manager and decorator, like the other modes.

    The error names the op, whether it was recorded or swept, and the user's line that recorded it.  A sweep that raises leaves every
    ``.grad`` as it was.  Every op is looked at, so that everything is slower; what ``jax.jit`` compiles raises when it runs.

    Args:
        inf: whether infinities are errors too.

    Raises:
        NonFiniteError: in the body, where an op makes a NaN.
        TapeRuntimeError: it stands there as a statement, which would change nothing.

    Example:
        >>> import tape
        >>> x = tape.Variable(0.0)
        >>> with tape.detect_anomaly():
        ...     (tape.numpy.sqrt(x) * 0.0).backward()
        Traceback (most recent call last):
        tape.errors.NonFiniteError: the backward of sqrt, recorded at <doctest tape.op_hooks.anomalies.detect_anomaly[2]>:2, gave NaN ...

    """

    def __init__(self, *, inf: bool = False) -> None:
        refuse_statement(sys._getframe(1), f"tape.detect_anomaly({'inf=True' if inf else ''})")
        super().__init__(NaNWatcher(inf=inf, raises=True))
