"""Assembly: jaxprs of many entries put together from parts, without tracing them again.

The VJP of a long jaxpr (a lifted model) is a sweep over its entries like that over those of a tape.  Entries with the same primitive,
parameters, shapes and dtypes have the same VJP, which is traced once: layers that are alike cost one trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape import jaxapi
from tape.configuration import configuration
from tape.graph.wengert import Constant, accumulate, sweep
from tape.ops import building
from tape.ops.forward import ForwardValues

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tape.graph.wengert import Source, WengertList
    from tape.ops.kernel import Kernel, Vjp
    from tape.ops.linear import Equation

__all__ = ["copied", "entry_key", "one_entry", "vjp_call", "vjp_of_entries"]


def copied(into: building.JaxprBuilder, listed: WengertList[Equation]) -> ForwardValues[Any]:
    """Return the forward values of a list as variables of the jaxpr that is being built: its inputs, and copies of the entries that are read."""

    def run(entry: Equation, inputs: list[Any]) -> list[Any]:
        return into.equation(entry.eqn, entry.params, inputs, [listed.avals[s] for s in entry.slots])

    forward: ForwardValues[Any] = ForwardValues(listed, run, lambda constant: into.constant(constant.value, constant.aval))
    forward.values.update((slot, into.input(listed.avals[slot])) for slot in range(listed.n_inputs))
    return forward


def _is_number(source: Source) -> bool:
    return isinstance(source, Constant) and building.is_number(source.value)


def _holds_tracers(param: Any) -> bool:
    """Tell whether a parameter holds values of the JAX transformation that is running: nothing may keep it beyond that."""
    if isinstance(param, (tuple, list)):
        return any(map(_holds_tracers, param))
    return isinstance(param, jaxapi.ClosedJaxpr) and any(isinstance(c, jaxapi.Tracer) for c in param.consts)


def entry_key(entry: Equation, listed: WengertList[Equation]) -> Any:
    """Return what entries have in common that have the same VJP; None where that cannot be told."""
    avals = listed.avals
    if any(_holds_tracers(value) for value in entry.params.values()):
        return None
    operands = [
        (s.aval, np.asarray(s.value).tobytes() if _is_number(s) else None) if isinstance(s, Constant) else avals[s] for s in entry.inputs
    ]
    key = (entry.primitive, tuple(entry.params.items()), tuple(operands), tuple([avals[s] for s in entry.slots]), configuration())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def one_entry(entry: Equation, listed: WengertList[Equation]) -> jaxapi.ClosedJaxpr:
    """Make a jaxpr of one entry; its inputs are the entry's but for the numbers."""
    into = building.JaxprBuilder()
    ins = [
        into.constant(s.value, s.aval) if isinstance(s, Constant) and _is_number(s) else into.input(listed.aval(s)) for s in entry.inputs
    ]
    return into.closed(into.equation(entry.eqn, entry.params, ins, [listed.avals[s] for s in entry.slots]))


def vjp_of_entries(
    listed: WengertList[Equation],
    out_avals: Sequence[Any],
    active: Collection[int],
    present: Sequence[bool],
    kernel_of: Callable[[Equation, WengertList[Equation]], Kernel],
) -> tuple[jaxapi.ClosedJaxpr, list[int]]:
    """Put the VJP of a list together.

    Args:
        listed: the list.
        out_avals: shapes and dtypes of its outputs.
        active: the slots from which a gradient can flow to where one is wanted.
        present: for each output, whether it has a cotangent.
        kernel_of: returns the kernel of one entry.

    Returns:
        A jaxpr of the inputs, the outputs, and the present cotangents, and which inputs it gives cotangents of.

    """
    into = building.JaxprBuilder()
    forward = copied(into, listed)
    for source, aval in zip(listed.outputs, out_avals, strict=True):
        atom = into.input(aval)
        if isinstance(source, int):
            forward.values.setdefault(source, atom)
    writer = _Writer(into, listed, forward, kernel_of)
    seeds = [(s, into.input(jaxapi.ShapedArray(a.shape, a.dtype))) for s, a, p in zip(listed.outputs, out_avals, present, strict=True) if p]
    totals: dict[Any, Any] = {}
    accumulate(totals, [(source, atom) for source, atom in seeds if source in active], writer)
    sweep(listed.entries, totals, active, writer)
    targets = [i for i in range(listed.n_inputs) if i in totals]
    return into.closed([totals[i] for i in targets]), targets


class _Writer:
    """Emitter of a sweep that writes a jaxpr: the VJPs of the entries' kernels, one after the other."""

    def __init__(
        self,
        into: building.JaxprBuilder,
        listed: WengertList[Equation],
        forward: ForwardValues[Any],
        kernel_of: Callable[[Equation, WengertList[Equation]], Kernel],
    ) -> None:
        self.into = into
        self.listed = listed
        self.forward = forward
        self.kernel_of = kernel_of

    def arrive(self, _: Equation, cotangents: list[Any]) -> list[Any]:
        return cotangents

    def pull(self, entry: Equation, cotangents: list[Any], wanted: tuple[bool, ...], totals: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
        operands = [(source, flag) for source, flag in zip(entry.inputs, wanted, strict=True) if not _is_number(source)]
        inputs = [source for source, _ in operands]
        kernel = self.kernel_of(entry, self.listed)
        vjp, read = vjp_call(kernel, inputs, entry.slots, cotangents, tuple([flag for _, flag in operands]), totals)
        n_forward = len(inputs) + len(entry.slots)
        atoms = [self.forward.read(x) if i < n_forward else x for i, x in zip(vjp.sources, read, strict=True)]
        results = atoms if vjp.kernel is None else self.into.inline(vjp.kernel.jaxpr, atoms)
        return zip([inputs[i] for i in vjp.targets], results, strict=True)

    def add(self, _: Equation | None, total: Any, term: Any) -> Any:
        return self.into.add(total, term)


def vjp_call(
    kernel: Kernel,
    inputs: Sequence[Source],
    slots: Sequence[int],
    cotangents: Sequence[Any],
    wanted: tuple[bool, ...],
    totals: dict[Any, Any] | None,
) -> tuple[Vjp, list[Any]]:
    """Return the VJP of an entry that adds to the totals that there are, and what it is called on: forward slots, cotangents and totals.

    The totals that it adds to are taken out of ``totals``: its results take their place.  Where these are None, it adds to nothing.
    """
    adding: tuple[bool, ...] = ()
    same: tuple[int, ...] = ()
    if totals is not None:
        if len(inputs) > 1 and len(set(inputs)) < len(inputs):
            same = tuple([inputs.index(s) for s in inputs])
            adding = tuple([s in totals and same[i] == i for i, s in enumerate(inputs)])
        else:
            adding = tuple([s in totals for s in inputs])
        if True not in adding:
            adding = ()
    vjp = kernel.vjp(tuple([ct is not None for ct in cotangents]), wanted, adding, same)
    values = [*inputs, *slots, *[ct for ct in cotangents if ct is not None]]
    if totals is not None and adding:
        values += [totals[s] for s, flag in zip(inputs, adding, strict=True) if flag]
        for i in vjp.targets:
            totals.pop(inputs[i], None)
    return vjp, [values[i] for i in vjp.sources]
