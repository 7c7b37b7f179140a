"""Inside: where a gradient goes wrong in an entry of several primitives (a lifted or compiled function, a checkpoint, a loop).

The primitives are run once more, one by one, loops turn by turn, and swept; then the first one tells that breaks, kills or stops the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.graph.kinds import differentiable, kind_of
from tape.graph.lines import line_of
from tape.graph.wengert import accumulate, active, sweep
from tape.insight import causes
from tape.insight.causes import Cause
from tape.insight.entries import Entry, Value, weight
from tape.ops.jaxprs import evaluated, held_by
from tape.ops.pullback import pullback
from tape.programs.naming import named_by
from tape.rules import parameters

_MOST = 1000  # primitives that are run
_CALLS = frozenset(["jit", "pjit", "closed_call", "core_call", "call", "remat2", "checkpoint", "remat"])
# What the op is called by which people know a primitive.
_OPS = {"acos": "arccos", "clamp": "clip", "convert_element_type": "astype", "div": "divide", "dot_general": "matmul"}
_OPS |= {"dynamic_update_slice": "setitem", "eq": "equal", "ge": "greater_equal", "gt": "greater", "integer_pow": "power"}
_OPS |= {"le": "less_equal", "logistic": "sigmoid", "lt": "less", "max": "maximum", "min": "minimum", "mul": "multiply", "ne": "not_equal"}
_OPS |= {"neg": "negative", "pow": "power", "scatter": "setitem", "select_n": "where", "stop_gradient": "detach", "sub": "subtract"}


class _Row(NamedTuple):
    """One primitive that ran, as an entry of a Wengert list: which values it read and gave."""

    number: int
    closed: Any
    name: str
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    line: tuple[str, int] | None


class Inside:
    """The primitives of an entry, with their values, and with the gradients that arrive at these.

    Args:
        closed: the entry's jaxpr.
        operands: its inputs.
        cotangents: what arrives at its outputs, None for nothing.
        wanted: the positions of the inputs that depend on the one that is explained.

    """

    def __init__(self, closed: jaxapi.ClosedJaxpr, operands: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]) -> None:
        self._rows: list[_Row] = []
        self._values: list[Any] = []
        with jaxapi.ensure_compile_time_eval():
            given = [self._new(x) for x in operands]
            results = self._run(closed, given, None)
            self._depends = active(self._rows, [given[i] for i in wanted], lambda row: row.slots)
            self._cotangents: dict[int, Any] = {}  # that arrived at what rows give
            self._passed_on: dict[int, list[Any]] = {}  # by the number of a row: what it gives to those of its inputs that depend
            smooth = [differentiable(kind_of(jnp.asarray(self._values[slot]).aval).aval) for slot in results]
            seeds = [(slot, np.asarray(ct)) for slot, ct, s in zip(results, cotangents, smooth, strict=False) if ct is not None and s]
            totals: dict[Any, Any] = {}
            accumulate(totals, seeds, self)
            sweep(self._rows, totals, self._depends, self)

    # -- running ------------------------------------------------------------------------------------------------------

    def _new(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _run(self, closed: jaxapi.ClosedJaxpr, given: Sequence[int], around: tuple[str, int] | None) -> list[int]:
        """Run a jaxpr on values by their numbers; return those of its results."""

        def run(eqn: jaxapi.JaxprEqn, reads: list[int]) -> Sequence[int]:
            said = named_by(eqn.source_info.name_stack)
            return self._equation(eqn, reads, said[1] if said is not None else line_of(eqn) or around)

        return evaluated(closed.jaxpr, list(map(self._new, closed.consts)), given, run, lambda atom: self._new(atom.val))

    def _equation(self, eqn: jaxapi.JaxprEqn, reads: list[int], line: tuple[str, int] | None) -> Sequence[int]:
        name, params = eqn.primitive.name, parameters.assumed(eqn.primitive, eqn.params)
        if name in _CALLS and held_by(eqn):
            inner = next(x for x in params.values() if isinstance(x, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr)))
            return self._run(jaxapi.closed(inner), reads, line)
        if name == "scan":
            return self._scan(params, reads, line)
        if name == "cond":
            which = int(np.clip(int(self._values[reads[0]]), 0, len(params["branches"]) - 1))
            return self._run(jaxapi.closed(params["branches"][which]), reads[1:], line)
        if name == "while":
            return self._while(params, reads, line)
        if name.startswith("custom_"):
            name = _called(eqn) or name
        return self._row(lambda *xs: jaxapi.bind(eqn.primitive, eqn.params, xs), name, reads, line)

    def _row(self, fun: Callable[..., Any], name: str, reads: Sequence[int], line: tuple[str, int] | None) -> Sequence[int]:
        if len(self._rows) >= _MOST:
            raise NotImplementedError
        values = [self._values[i] for i in reads]
        closed, _ = jaxapi.trace(lambda *xs: list(fun(*xs)), *values)
        gives = tuple([self._new(x) for x in jaxapi.jaxpr_as_fun(closed)(*values)])
        self._rows.append(_Row(len(self._rows), closed, name, tuple(reads), gives, line))
        return gives

    def _scan(self, params: Any, reads: list[int], line: tuple[str, int] | None) -> Sequence[int]:
        constants, carried = params["num_consts"], params["num_carry"]
        held, state, xs = reads[:constants], reads[constants : constants + carried], reads[constants + carried :]
        turns = range(params["length"])
        if len(self._rows) + len(turns) * weight(params["jaxpr"].jaxpr) > _MOST:
            raise NotImplementedError
        stacked: list[Sequence[int]] = []
        for turn in reversed(turns) if params["reverse"] else turns:
            elements = [self._row(lambda x, turn=turn: [x[turn]], "getitem", [x], line)[0] for x in xs]
            outputs = self._run(params["jaxpr"], [*held, *state, *elements], line)
            state = outputs[:carried]
            stacked.append(outputs[carried:])
        if not stacked and len(params["jaxpr"].jaxpr.outvars) > carried:
            raise NotImplementedError
        columns = zip(*(stacked[::-1] if params["reverse"] else stacked), strict=True)
        return [*state, *[self._row(lambda *ys: [jnp.stack(ys)], "stack", column, line)[0] for column in columns]]

    def _while(self, params: Any, reads: list[int], line: tuple[str, int] | None) -> Sequence[int]:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        asked, held, state = reads[:first], reads[first : first + second], reads[first + second :]
        goes_on = jaxapi.jaxpr_as_fun(params["cond_jaxpr"])
        while bool(goes_on(*[self._values[i] for i in (*asked, *state)])[0]):
            state = self._run(params["body_jaxpr"], [*held, *state], line)
        return state

    # -- sweeping -----------------------------------------------------------------------------------------------------

    def arrive(self, row: _Row, cotangents: list[Any]) -> list[Any]:
        """Take note of what arrives at a row (:class:`tape.graph.wengert.Emitter`)."""
        self._cotangents.update((slot, ct) for slot, ct in zip(row.slots, cotangents, strict=True) if ct is not None)
        return cotangents

    def pull(self, row: _Row, cotangents: list[Any], wanted: tuple[bool, ...], _: dict[Any, Any]) -> list[tuple[Any, Any]]:
        """Return what a row gives to its inputs."""
        values = [jnp.asarray(self._values[i]) for i in row.inputs]
        flows = [w and differentiable(x.aval) for w, x in zip(wanted, values, strict=True)]
        if True not in flows:
            return []
        pulled = pullback(row.closed, values, [None if ct is None else jnp.asarray(ct) for ct in cotangents], flows)
        terms = [(slot, np.asarray(gradient)) for slot, gradient in zip(row.inputs, pulled, strict=True) if gradient is not None]
        self._passed_on[row.number] = [causes.readable(gradient) for _, gradient in terms]
        return terms

    def add(self, _: _Row | None, total: Any, term: Any) -> Any:
        """Add two gradients."""
        return total + term

    # -- what is wrong ------------------------------------------------------------------------------------------------

    def _asked(self, number: int, within: Entry) -> tuple[Entry, list[np.ndarray], np.ndarray]:
        """Return a primitive as an entry, with what it read and gave."""
        row = self._rows[number]
        operands = [causes.readable(self._values[i]) for i in row.inputs]
        result = causes.readable(self._values[row.slots[0]]) if row.slots else np.zeros(0)
        dtype = jnp.asarray(self._values[row.slots[0]]).dtype if row.slots else result.dtype
        value = Value(None, 0, "", result.shape, dtype, result.nbytes, requires_grad=True)
        return Entry(within.number, _OPS.get(row.name, row.name), (), (value,), row.line), operands, result

    def _located(self, cause: Cause, number: int, within: Entry) -> Cause:
        return cause.inside(within.op, self._rows[number].line)

    def _backwards(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the numbers of the rows, last to first, with what arrives at them."""
        for row in reversed(self._rows):
            yield row.number, [ct for slot in row.slots if (ct := self._cotangents.get(slot)) is not None]

    def broken(self, within: Entry) -> Cause | None:
        """Say where what is not finite comes from: in the forward, or in the sweep."""
        for number, row in enumerate(self._rows):
            entry, operands, result = self._asked(number, within)
            if not self._depends.isdisjoint(row.slots) and not causes.finite(result) and all(map(causes.finite, operands)):
                born, masked = causes.born_at(entry, operands, result), self._masked(number)
                if masked is not None:
                    return self._located(causes.masked(born.what, within.number, "multiply"), masked, within)
                return self._located(born, number, within)
        for number, arriving in self._backwards():
            if arriving and all(map(causes.finite, arriving)) and not all(map(causes.finite, self._passed_on.get(number, []))):
                entry, operands, _ = self._asked(number, within)
                return self._located(causes.not_finite_at(entry, operands, arriving[0]), number, within)
        return None

    def _masked(self, first: int) -> int | None:
        further = [n for n, row in enumerate(self._rows) if n > first and row.name in ("mul", "dot_general")]
        read = ((n, [causes.readable(self._values[i]) for i in self._rows[n].inputs]) for n in further)
        return next((n for n, operands in read if causes.meets_zero(operands)), None)

    def killed(self, within: Entry) -> Cause | None:
        """Say where a gradient that is not 0 becomes 0."""
        for number, arriving in self._backwards():
            given = self._passed_on.get(number)
            if given and any(np.any(ct) for ct in arriving) and not any(np.any(g) for g in given):
                entry, operands, result = self._asked(number, within)
                return self._located(causes.zero_at(entry, operands, result, arriving[0]), number, within)
        return self.stopping(within)

    def stopping(self, within: Entry) -> Cause | None:
        """Say which primitive on the way gives its inputs no gradient."""
        for number, row in enumerate(self._rows):
            depends = [i for i in row.inputs if i in self._depends and causes.readable(self._values[i]).dtype.kind in "fc"]
            if depends and not self._passed_on.get(number):
                entry, _, result = self._asked(number, within)
                numbers = result.dtype.kind in "iub"
                if numbers and self._chooses(row):
                    continue
                if entry.op in causes.STEPS:
                    return self._located(causes.step_at(entry), number, within)
                if numbers or entry.op in {"detach", *causes.COMPARISONS, *causes.CHOICES}:
                    return self._located(causes.cut_at(entry, unrecorded=False), number, within)
        return None

    def _chooses(self, row: _Row) -> bool:
        """Tell whether what a row gives is a mask or an index beside a way through which a gradient flows."""
        readers = [number for number, other in enumerate(self._rows) if not set(row.slots).isdisjoint(other.inputs)]
        return any(self._passed_on.get(number) for number in readers)


def _called(eqn: jaxapi.JaxprEqn) -> str:
    """Return what the function is called whose derivative somebody has defined."""
    for inner in held_by(eqn):
        for one in inner.eqns:
            if one.params.get("name"):
                return str(one.params["name"]).removeprefix("_")
    return str(eqn.params.get("name") or "")
