"""A printer: each op with its shapes and norms, as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from tape.hooking.observing import SeenOp
from tape.jaxapi import debug_callback
from tape.op_hooks.showing import WIDTH, Results, described, has_values, norm, values_of
from tape.terminal import clipped, named


class Printer(Results):
    """Prints each op with the shapes and norms of its outputs, and in sweeps of what it adds to the gradients of its inputs.

    Norms are looked at, so every op runs at once.  In a compiled function (of ``tape.jit`` or ``jax.jit``) lines come when it runs, not
    always in the order of its ops.

    Args:
        norms: whether to print norms; nothing is looked at without, and compiled functions print when they are traced.
        file: where to print; None for the standard output.

    Example:
        >>> import tape
        >>> x = tape.Variable([3.0, 4.0])
        >>> with tape.op_hooks.Printer():
        ...     (x * 1.0).sum().backward()  # doctest: +ELLIPSIS
        forward   multiply          float32(2,) |5|  ...
        forward   sum               float32() |7|  ...
        backward  sum               float32(2,) |1.414|  ...
        backward  multiply          float32(2,) |1.414|  None  ...

    """

    traceable = True

    def __init__(self, *, norms: bool = True, file: TextIO | None = None) -> None:
        self.norms = norms
        self.file = file

    def _on_results(self, op: SeenOp, results: Sequence[Any], *, backward: bool) -> None:
        names = [described(v) for v in results]
        each = [None if value is None else norm(value) for value in values_of(results)] if self.norms else [None] * len(names)
        known = [i for i, n in enumerate(each) if n is not None]

        def show(*norms: Any) -> None:
            written = list(names)
            for i, n in zip(known, norms, strict=True):
                written[i] += f" |{float(n):.4g}|"
            where = "" if op.where is None else f"  {named(op.where)}"
            line = f"{'backward' if backward else 'forward':<8}  {op.name:<16}  {'  '.join(written)}"
            print(clipped(line, WIDTH - len(where)) + where, file=self.file)

        norms = [each[i] for i in known]
        if has_values(norms):
            show(*norms)
        else:
            debug_callback(show, *norms)
