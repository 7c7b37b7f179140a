"""Replaying: a part of the tape as a function of JAX arrays, and what computes its entries once more, one by one, with their VJPs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import ReleasedTapeError, TapeTypeError, TapeValueError
from tape.graph import boundary
from tape.graph.kinds import differentiable
from tape.graph.scope import parked
from tape.graph.segment import Handle
from tape.graph.trees import leaves_of
from tape.graph.trie import RECORD
from tape.insight.parts import Leaf, Part, Place, nobody, place_of
from tape.insight.reading import Line, Reading
from tape.ops.kernel import Kernel
from tape.programs.interpretation import at_home
from tape.programs.program import look, run_pending
from tape.programs.retention import leaf_slots
from tape.programs.traced import differentiable_as_recorded
from tape.recording import record
from tape.sweeps.differentiation import gradients
from tape.sweeps.plan import FunctionOp
from tape.sweeps.seeds import describe

UNKNOWN: Any = object()  # stands for a value that is gone, where that may be


class Replay:
    """What leads from inputs to outputs: entries to compute again, and the values of the other leaves."""

    def __init__(self, reading: Reading, inputs: Sequence[Handle], outputs: Sequence[Handle], *, present: bool = False) -> None:
        self._reading = reading
        self._present = present  # where the value of a leaf is gone, its Variable's present one does
        self._parts = {id(line.part): line.part for line in reading.lines}
        self._by_segment = {id(s): part for part in self._parts.values() if (s := part.ref()) is not None}
        # The numbers of the entries that give what is on the tape.
        self._numbers_by_place = {place: number for number, line in enumerate(reading.lines) for place in line.gives}
        self._avals = [v._place.kind.aval for v in inputs]
        self.inputs = [self._places_of_input(i, v) for i, v in enumerate(inputs)]
        for i, places in enumerate(self.inputs):
            if any(not set(places).isdisjoint(other) for other in self.inputs[:i]):
                msg = f"function: inputs[{i}] ({describe(inputs[i])}) is given twice; give each input once"
                raise TapeValueError(msg)
        self.outputs = [self._place("outputs", i, v) for i, v in enumerate(outputs)]
        self.constants: dict[Place, Any] = {}
        self._stopped: dict[Place, Place] = {}  # what was detached, and from what
        # The numbers of what is between, with what computes each.
        self.steps = [(n, line, self._call(n, line)) for n, line in sorted(self._between().items())]

    def _places_of_input(self, i: int, variable: Handle) -> list[Place]:
        """Return the places of an input: that of the result that it is, or those where the leaf is read."""
        if variable._segment is not None and id(variable._segment) in self._by_segment:
            return [self._place("inputs", i, variable)]
        places = self._reading.leaves_of(variable) + self._reading.became(variable)
        if len(places) != 1:
            what = f"function: inputs[{i}] ({describe(variable)})"
            several = f"had {len(places)} values on this tape, for it was assigned in between; take a tape.Tape() of the part after it"
            none = "is not on this tape, as a leaf or as a result; take what t.leaves shows, or compute it while the tape is open"
            msg = f"{what} {several if places else none}"
            raise TapeValueError(msg)
        return places

    def _place(self, argument: str, i: int, variable: Handle) -> Place:
        part = None if variable._segment is None else self._by_segment.get(id(variable._segment))
        if part is not None:
            place = id(part), variable._place.slot
            if place in self._numbers_by_place or place in map(place_of, self._reading.sources):
                return place
        later, leaves = self._reading.became(variable), self._reading.leaf_by_id
        places = [place for place in self._reading.leaves_of(variable) if not later or leaves[place[0]].cell is variable._cell]
        if len(places) == 1 or later:
            return places[0] if len(places) == 1 else later[-1]
        repair = "compute it while the tape is open, or use tape.Tape.of"
        msg = f"function: {argument}[{i}] ({describe(variable)}) is not on this tape; {repair}"
        raise TapeValueError(msg)

    def _between(self) -> dict[int, Line]:
        """Return what is to be computed again, by number; note constants, and what was detached."""
        known = {place for places in self.inputs for place in places}
        dependents = functools.cache(lambda: self._reading.dependents(known))
        waiting = [place for place in self.outputs if place not in known]
        between: dict[int, Line] = {}
        while waiting:
            place = waiting.pop()
            if place in known or place in self.constants:
                continue
            leaf = self._reading.leaf_by_id.get(place[0])
            if leaf is not None and leaf.outside is not None and place in dependents():
                msg = (
                    f"function: {leaf.outside[0]} computed a value of the inputs that the outputs depend on, and not by ops of the "
                    "tape, while no gradient was recorded (no_grad(), or inputs that do not require grad), so that it would stay "
                    "what it was; call it where it is recorded, or leave out of the inputs what it depends on"
                )
                raise TapeValueError(msg)
            if leaf is not None and leaf.behind is not None:
                value = UNKNOWN if self._present or place in dependents() else self._leaf_value(place)
                if value is not UNKNOWN:
                    self.constants[place] = value
                    continue
                self._stopped[place] = place_of(leaf.behind)
                waiting.append(self._stopped[place])
                continue
            number = self._numbers_by_place.get(place)
            if number is None:
                self.constants[place] = self._constant(place)
                continue
            line = self._reading.lines[number]
            if number in between:
                continue
            if line.part.ref is nobody:
                name = line.step.kernel.name
                msg = f"function: {name} ran at once (tape.eager()), and is not kept on the tape; record it without tape.eager()"
                raise TapeValueError(msg)
            if line.step.ends:  # a Variable that was updated: what led to its value may be gone
                value = UNKNOWN if place in dependents() else _kept(line.part, place[1])
                if value is not UNKNOWN:
                    self.constants[place] = value
                    continue
            between[number] = line
            waiting += line.reads
        return between

    def _leaf_value(self, place: Place) -> Any:
        """Return the value of a leaf, or UNKNOWN where it is gone."""
        leaf = self._reading.leaf_by_id.get(place[0])
        if leaf is not None and leaf.number is not None:
            return leaf.number
        return next((cell[0] for cell in self._cells(place, leaf) if cell.__class__ is list and cell[0] is not None), UNKNOWN)

    def _constant(self, place: Place) -> Any:
        """Return the value of a leaf that is no input."""
        value = self._leaf_value(place)
        if value is not UNKNOWN:
            return value
        if self._present:
            leaf = self._reading.leaf_by_id.get(place[0])
            variable = None if leaf is None else leaf.variable()
            return UNKNOWN if variable is None else look(variable)
        msg = (
            "function: a value that the outputs depend on is gone (a sweep released it, or nobody holds what it belongs to); make the "
            "function before the sweep, pass retain_graph=True to that, or have the values of leaves kept by tape.Tape(keep=True)"
        )
        raise ReleasedTapeError(msg)

    def _cells(self, place: Place, leaf: Leaf | None) -> Iterator[Any]:
        """Yield the cells that may have the value of a leaf."""
        yield None if leaf is None else leaf.cell
        for part in self._parts.values():
            segment = part.ref()
            if segment is not None:
                for slot, cell in zip(leaf_slots(part.state), segment.leaves, strict=False):
                    if place_of((part, slot)) == place:
                        yield cell
        source = next((s for s in self._reading.sources if place_of(s) == place), None)
        segment = source[0].ref() if isinstance(source, tuple) else None
        if segment is not None:
            cell = segment.results.get(place[1])
            if cell.__class__ is list and cell[0] is None:
                run_pending(segment, "look")
            yield cell

    def _call(self, number: int, line: Line) -> Callable[..., Sequence[Any]]:
        """Return an entry as a function of arrays, whose derivative is that which was recorded."""
        part, step = line.part, line.step
        if isinstance(step.op, FunctionOp):
            segment = part.ref()
            backward = part.functions.get(step.slots[0]) or (segment.functions.get(step.slots[0]) if segment is not None else None)
            context = getattr(backward, "_context", None)
            if context is None or context._layout is None or not hasattr(context._function, "apply"):
                msg = (
                    f"function: the backward of {step.op.name} is gone (a sweep released it); make the function before the sweep, pass "
                    "retain_graph=True to that, or take tape.Tape(keep=True)"
                )
                raise ReleasedTapeError(msg)
            return _FunctionRun(number, context._function, context._layout, context._places, step.op.arguments)
        run: Callable[..., Sequence[Any]] = differentiable_as_recorded(step, part.state.cut).kernel.inline
        return run

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Compute the outputs."""
        _, read = self.values(arrays)
        return [jnp.asarray(read(place)) for place in self.outputs]

    def values(self, arrays: Sequence[Any], runs: Runner | None = None) -> tuple[dict[Place, Any], Callable[[Place], Any]]:
        """Compute everything between the inputs and the outputs; return the values, and what reads one."""
        values: dict[Place, Any] = dict(self.constants)
        for places, array, aval in zip(self.inputs, arrays, self._avals, strict=True):
            values.update(dict.fromkeys(places, _checked(array, aval)))

        def read(place: Place) -> Any:
            behind = self._stopped.get(place)
            if behind is None or place in values:
                return values[place]
            value = read(behind)
            return value if value is UNKNOWN else jax.lax.stop_gradient(value)

        for _, line, call in self.steps:
            operands = list(map(read, line.reads))
            if any(x is UNKNOWN for x in operands):
                values.update({place: _kept(line.part, place[1]) for place in line.gives})
                continue
            results = call(*operands) if runs is None else runs.forward(call, line.step.kernel, operands)
            for place, result in zip(line.gives, results, strict=False):
                values.setdefault(place, result)
        return values, read


def _kept(part: Part, slot: int) -> Any:
    """Return a result that is still there, or UNKNOWN."""
    segment = part.ref()
    cell = None if segment is None or segment.run is None else segment.run.saved.get(slot)
    return cell[0] if cell.__class__ is list and cell[0] is not None else UNKNOWN


def _checked(array: Any, aval: Any) -> Any:
    """Return an argument as the array that was recorded would be."""
    if isinstance(array, Handle):
        array = look(array) if boundary.is_traced(array) else array.__jax_array__()  # type: ignore[attr-defined]
    if isinstance(array, (bool, int, float, complex)):
        array = jnp.asarray(array, aval.dtype)
    given = jax.typeof(array) if isinstance(array, jax.Array) else jnp.asarray(array)
    if given.shape != aval.shape or given.dtype != aval.dtype:
        msg = (
            f"function: an argument of shape {given.shape}, dtype {given.dtype} is given where shape {aval.shape}, dtype {aval.dtype} was "
            "recorded; the function is for those: record it again for others"
        )
        raise (TapeValueError if given.shape != aval.shape else TapeTypeError)(msg)
    return array if isinstance(array, jax.Array) else jnp.asarray(array)


class Runner:
    """What runs single entries; one of JAX's primitives takes a hundred times as long to call as one of NumPy's on a small array.

    Args:
        constants: the values of the leaves; where they are not in the host's memory, JAX runs everything.

    """

    def __init__(self, constants: Iterable[Any]) -> None:
        known = list(constants)
        self._hosts: dict[Kernel, Any] = {}
        self._home = not any(isinstance(x, jaxapi.Tracer) for x in known) and at_home(known)

    def forward(self, call: Callable[..., Sequence[Any]], kernel: Kernel, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an entry, which JAX gets by ``call``."""
        hosted = None if isinstance(call, _FunctionRun) else self._hosted(kernel, operands)
        return call(*[jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in operands]) if hosted is None else hosted

    def backward(
        self, call: object, kernel: Kernel, operands: Sequence[Any], results: Sequence[Any], cts: Sequence[Any], wanted: Sequence[bool]
    ) -> Sequence[Any]:
        """Return what an entry gives to its inputs, None where that is nothing."""
        if isinstance(call, _FunctionRun):
            return call.backward(operands, cts, wanted)
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
    """The backward of a ``tape.Function`` raised, the one of an entry; nobody sees it."""

    def __init__(self, error: Exception, entry: int) -> None:
        super().__init__(str(error))
        self.error, self.entry = error, entry


class _FunctionRun:
    """The entry of a ``tape.Function`` as a function of arrays: its forward runs anew, and its backward is the user's."""

    def __init__(self, number: int, function: Any, layout: Any, places: Sequence[int], arguments: int) -> None:
        self._number, self._arguments = number, arguments
        self._function, self._layout, self._places = function, layout, tuple(places)

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
                raise BackwardError(error, self._number) from error
