"""Measuring: values and gradients between two Variables, computed once more entry by entry, and where they go wrong."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tape import jaxapi
from tape.errors import ReleasedTapeError
from tape.insight import causes
from tape.insight.causes import Cause, norm
from tape.insight.connection import Connection
from tape.insight.entries import Entry, plain, turns_of
from tape.insight.inside import Inside
from tape.insight.parts import Place
from tape.insight.replaying import UNKNOWN, Replay, Runner
from tape.sweeps.plan import FunctionOp
from tape.terminal.progress import progress

_LONG = 2000  # entries for which a bar is shown
_VAGUE = frozenset(["domain", "infinite slope", "infinity", "overflow", "underflow", "zero slope"])  # what is said where no name tells


class PathStep(NamedTuple):
    """One entry of the path from the output to the input.

    Attributes:
        entry: the entry.
        value: the Euclidean norm of its result; None where values are not known.
        gradient: that of the gradient that arrives at its result; None where none does, or values are not known.

    """

    entry: Entry
    value: float | None
    gradient: float | None


class Measurement:
    """What arrives where.

    Attributes:
        total: the gradient of the input; None where none arrives.
        steps: the way that most of it goes, from the output to the input.

    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reading = connection.reading
        self._lines = connection.reading.lines
        self._leads = connection.leads
        self._targets = connection.targets
        replay = Replay(self._reading, [], [connection.output], present=True)
        with jaxapi.ensure_compile_time_eval(), np.errstate(all="ignore"):  # NumPy warns where XLA does not
            runs = Runner(replay.constants.values())
            self._values, self._read = replay.values([], runs)
            self._cotangents, self._edges = self._sweep(replay, self._read, runs)
            arrived = [self._cotangents[place] for place in self._targets if place in self._cotangents]
            self.total: Any = functools.reduce(operator.add, arrived) if arrived else None
            self._path = self._paths()
        self.steps = [
            PathStep(self._reading.entries[n], None if v is _GONE else norm(v), None if c is None else norm(c)) for n, v, c in self._path
        ]

    def stopping(self) -> list[Cause]:
        """Return the entries at which a gradient arrives, and which give none to their inputs."""
        giving = {number for number, _ in self._edges}
        silent = [n for n in sorted(self._leads) if n not in giving and not self._cotangents.keys().isdisjoint(self._lines[n].gives)]
        return [self._stops(number) for number in silent[:3]] or self._connection.suspects()

    def _stops(self, number: int) -> Cause:
        """Say why an entry gives no gradient to its inputs."""
        e = self._reading.entries[number]
        if self._lines[number].step.ends:
            return Cause("cut", number, "the result was made a leaf here: unchain() cut it from its past", "leave unchain() out")
        if e.op in causes.STEPS:
            return causes.step_at(e)
        if e.op == "stop_gradient":
            return causes.cut_at(e, unrecorded=False)
        if e.op.startswith("vjp_"):
            what = f"the derivative of {e.op[4:]} is constant in pieces, so that its second derivative is 0 everywhere"
            repair = "use a smooth function, such as tape.nn.softplus or tape.nn.gelu in the place of relu"
            return Cause("no derivative", number, what, repair)
        if self._is_function(number):
            names = [e.inputs[i].name for i in self._leads[number] if i < len(e.inputs)]  # the others are what the forward computed
            return causes.backward_at(e, f"None for {' and '.join(names)}")
        inside = self._inside(number)
        cause = None if inside is None else inside.stopping(e)
        repair = "use another op, or a tape.Function with a backward"
        return cause or Cause("no derivative", number, f"{e.op} has the derivative 0 everywhere", repair)

    def _inside(self, number: int) -> Inside | None:
        """Return the primitives of an entry, run and swept one by one; None where there is one, or that is not possible."""
        line = self._lines[number]
        kernel = line.step.kernel
        if isinstance(line.step.op, FunctionOp) or kernel.transient or plain(kernel.jaxpr.jaxpr):
            return None
        operands = [self._read(place) for place in line.reads]
        if any(x is UNKNOWN for x in operands):
            return None
        try:
            return Inside(kernel.jaxpr, operands, [self._cotangents.get(place) for place in line.gives], self._leads[number])
        except Exception:  # noqa: BLE001 - there are too many, or one does not run alone: what is known from outside is an answer, too
            return None

    def _closer(self, number: int, cause: Cause, look: Callable[[Inside, Entry], Cause | None]) -> Cause:
        """Return what is found inside of an entry of which nothing is known by its name; ``cause`` where nothing is."""
        e = self._reading.entries[number]
        if cause.kind not in _VAGUE or e.op.removeprefix("vjp_") in causes.NAMED:
            return cause
        inside = self._inside(number)
        return cause if inside is None else look(inside, e) or cause

    def _is_function(self, number: int) -> bool:
        return isinstance(self._lines[number].step.op, FunctionOp)

    def _sweep(self, replay: Replay, read: Any, runs: Runner) -> tuple[dict[Place, Any], dict[tuple[int, Place], Any]]:
        """Sweep once more, entry by entry; return what arrives at each value, and what each entry gives to each of its inputs."""
        (root,) = replay.outputs
        aval = self._connection.output._place.kind.aval
        cotangents: dict[Place, Any] = {root: np.ones(aval.shape, aval.dtype)}
        edges: dict[tuple[int, Place], Any] = {}
        steps = replay.steps[::-1]
        for number, line, call in progress(steps, "sweeping once more", len(steps)) if len(steps) > _LONG else steps:
            step, table, cut = line.step, line.part.state.table, line.part.state.cut
            cts = [cotangents.get(place) if table[place[1]].kind.requires_grad and place[1] not in cut else None for place in line.gives]
            if number not in self._leads or all(ct is None for ct in cts) or step.ends:
                continue
            operands, results = list(map(read, line.reads)), list(map(read, line.gives))
            unknown = [i for i, x in enumerate((*operands, *results)) if x is UNKNOWN]
            if unknown:
                if isinstance(step.op, FunctionOp) or not set(step.kernel.residuals()).isdisjoint(unknown):
                    msg = f"explain: a value that the derivative of {step.kernel.name} reads is gone; ask before the sweep that releases it"
                    raise ReleasedTapeError(msg)
                operands, results = _filled(operands, step.kernel.in_avals), _filled(results, step.kernel.out_avals)
            wanted = [table[s].kind.requires_grad and i in self._leads[number] for i, s in enumerate(step.inputs)]
            pulled = runs.backward(call, step.kernel, operands, results, cts, wanted)
            for source, want, gradient in zip(line.reads, wanted, pulled, strict=True):
                if want and gradient is not None:
                    array = np.asarray(gradient)
                    if step.kernel.name == "softmax" and causes.sums_to_one(np.asarray(results[0]), np.asarray(cts[0])):
                        array = np.zeros_like(array)  # but for rounding
                    cotangents[source] = cotangents[source] + array if source in cotangents else array
                    edge = (number, source)
                    edges[edge] = edges[edge] + array if edge in edges else array
        return cotangents, edges

    def _paths(self) -> list[tuple[int, Any, Any]]:
        """Return the way that most of the gradient goes, from the output to the input: entries, results, and what arrives at them."""
        consumers: dict[Place, list[int]] = {}
        for number, source in self._edges:
            consumers.setdefault(source, []).append(number)
        starts = [t for t in self._targets if t in consumers]
        way: list[tuple[int, Any, Any]] = []
        place: Place | None = max(starts, key=lambda t: _weight(self._cotangents[t]), default=None)
        while place is not None and place in consumers:
            here = place
            number = max((_weight(self._edges[n, here]), n) for n in consumers[here])[1]
            results = self._lines[number].gives
            place = next((r for r in results if r in self._cotangents), results[0])
            way.append((number, _array(self._values[place]), self._cotangents.get(place)))
        return way[::-1]

    def _operands(self, number: int) -> list[Any]:
        return [_array(self._read(place)) for place in self._lines[number].reads]

    def _born(self) -> Cause | None:
        """Return the first entry between the two whose value is not finite, though what it reads is."""
        for number in sorted(self._leads):
            result = _array(next((self._values.get(place, UNKNOWN) for place in self._lines[number].gives), UNKNOWN))
            if not causes.finite(result) and all(map(causes.finite, operands := self._operands(number))):
                born = self._closer(number, causes.born_at(self._reading.entries[number], operands, result), Inside.broken)
                return self._masked(number, born) or born
        return None

    def _not_numbers(self) -> Cause | None:
        """Return what holds NaN though no entry made it."""
        for number in sorted(self._leads):
            e = self._reading.entries[number]
            for value, x in zip(e.inputs, self._operands(number), strict=False):
                if value.entry is None and x.dtype.kind in "fc" and np.any(np.isnan(x)):
                    return causes.not_a_number_in(value.name, e)
        return None

    def _masked(self, first: int, born: Cause) -> Cause | None:
        """Say it where what is infinite is multiplied by 0 further on."""
        for number in sorted(self._leads):
            e = self._reading.entries[number]
            if number > first and e.op in ("multiply", "dot", "matmul", "einsum") and causes.meets_zero(self._operands(number)):
                return causes.masked(f"{born.what} (%{first})", number, e.op)
        return None

    def unfit(self) -> list[Cause]:
        """Return the entry whose value is not finite, where the gradient is."""
        born = self._born() if any(s.value is not None and not np.isfinite(s.value) for s in self.steps) else None
        return [] if born is None else [born]

    def broken(self) -> list[Cause]:
        """Return the entry at which what is not finite comes from: in the forward, or in the sweep."""
        born = self._born() or self._not_numbers()
        if born is not None:
            return [born]
        for number, _, arriving in self._path:
            given = [g for (n, _), g in self._edges.items() if n == number]
            if arriving is not None and np.all(np.isfinite(arriving)) and any(not np.all(np.isfinite(g)) for g in given):
                e = self._reading.entries[number]
                if self._is_function(number):
                    return [causes.backward_at(e, "NaN or infinities, though the gradient that arrived was finite")]
                return [self._closer(number, causes.not_finite_at(e, self._operands(number), arriving), Inside.broken)]
        return []

    def killed(self) -> list[Cause]:
        """Return the entry at which a gradient that is not 0 becomes 0."""
        for i, (number, result, arriving) in enumerate(self._path):
            behind = self._path[i + 1][2] if i + 1 < len(self._path) else np.zeros(1)
            if arriving is not None and np.any(arriving) and (behind is None or not np.any(behind)):
                e = self._reading.entries[number]
                if any(np.any(g) for (n, _), g in self._edges.items() if n == number):
                    return [causes.cancels_at(e)]
                if self._is_function(number):
                    return [causes.backward_at(e, "0, though the gradient that arrived was not 0")]
                return [self._closer(number, causes.zero_at(e, self._operands(number), result, arriving), Inside.killed)]
        return []

    def rate(self, size: float, kind: str) -> Cause:
        """Say how a gradient shrinks or grows along a long way, or at one entry."""
        first = next((s.gradient for s in self.steps if s.gradient), 1.0)
        ops = Counter(s.entry.op for s in self.steps)
        pairs = [(a.entry, b.gradient / a.gradient) for a, b in itertools.pairwise(self.steps) if a.gradient and b.gradient]
        if self.steps and self.steps[-1].gradient:
            pairs.append((self.steps[-1].entry, size / self.steps[-1].gradient))
        entry, factor = (min if kind == "vanishing" else max)(pairs, key=lambda p: p[1], default=(self.steps[-1].entry, 1.0))
        whole = abs(np.log(size / first)) or 1.0
        vanishes = kind == "vanishing"
        gates = "use gates (LSTM, GRU) or residual connections, orthogonal weights"
        clipped = "clip gradients (tape.op_hooks.GradientClipper), use smaller or orthogonal weights"
        way = f"{gates if vanishes else clipped}, or shorter ways (truncated backpropagation)"
        turns = turns_of(entry)
        if abs(np.log(factor)) > 0.5 * whole and turns > 1:
            what = f"along {turns} turns of {entry.op} the gradient is multiplied by {factor ** (1 / turns):.3g} a turn"
            return Cause(kind, entry.number, what, way)
        if abs(np.log(factor)) > 0.5 * whole:
            what = f"{entry.op} multiplies the gradient by {factor:.3g}"
            steep = "keep its input away from where it is steep"
            repair = "it is saturated: scale its input down, or normalise" if vanishes else steep
            return Cause("saturation" if vanishes else "steep", entry.number, what, repair)
        repeated, count = ops.most_common(1)[0]
        rate = float(np.exp((np.log(size) - np.log(first)) / max(count, 1)))
        what = f"along {len(self.steps)} entries ({count} times {repeated}) the gradient is multiplied by {rate:.3g} a turn"
        return Cause(kind, entry.number, what, way)

    def shapes(self) -> list[Cause]:
        """Return entries whose result is larger than each of what they read: (n, 1) with (n,) makes (n, n)."""
        for number in sorted(self._leads):
            e = self._reading.entries[number]
            shapes = [v.shape for v in e.inputs if v.shape]
            broadcast = len(shapes) == 2 and len(shapes[0]) != len(shapes[1]) and e.shape not in shapes
            if broadcast and e.op in ("subtract", "add", "multiply", "divide"):
                what = f"{e.op} of shapes {shapes[0]} and {shapes[1]} makes {e.shape}: each element meets every other one"
                return [Cause("wrong axis", number, what, "give both the same shape: y[:, None], or x.reshape(-1)")]
        return []


_GONE = np.zeros(0, np.float32)


def _array(value: object) -> Any:
    return _GONE if value is UNKNOWN else causes.readable(value)


def _filled(values: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Return values with zeros for those that are gone, and that nothing reads."""
    return [np.zeros(a.shape, a.dtype) if x is UNKNOWN else x for x, a in zip(values, avals, strict=True)]


def _weight(array: Any) -> tuple[bool, float]:
    finite = bool(np.all(np.isfinite(array)))
    return not finite, norm(array) if finite else 0.0
