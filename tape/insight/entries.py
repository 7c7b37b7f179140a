"""Entries: what users see of a tape, as small objects that do not change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tape import jaxapi
from tape.graph.kinds import Kind, kind_of
from tape.graph.length import bytes_of
from tape.graph.lines import line_of
from tape.ops.jaxprs import equations_in, held_by
from tape.recording.template import ARRAY, fill


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What an entry reads or gives.

    Attributes:
        entry: number of the entry that gives it; None for a leaf, or what comes from before the tape.
        index: which of that entry's results it is.
        name: ``"%3"`` for the result of entry 3, ``"%3.1"`` for its second one; for others what the user calls them, or ``"leaf0"`` (it
            requires grad), ``"const0"`` (it does not), ``"past0"`` (an entry before the tape made it), or the number itself.
        shape: its shape.
        dtype: its dtype.
        nbytes: its size in bytes.
        requires_grad: whether gradients flow to it.

    """

    entry: int | None
    index: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    requires_grad: bool

    @classmethod
    def of(cls, kind: Kind, name: str, entry: int | None = None, index: int = 0) -> Value:
        """Return a value of some kind."""
        aval = kind.aval
        return cls(entry, index, name, tuple(aval.shape), aval.dtype, bytes_of(aval), kind.requires_grad)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{self.name}: {typed(self)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One line of the tape.

    Attributes:
        number: its place on the tape, from 0: ``t.entries[e.number] is e``.
        op: what the op is called: ``"tanh"``; the VJP of one is ``"vjp_tanh"``.
        inputs: the :class:`Value` objects that it reads, in the op's order.
        outputs: those that it gives.
        where: file and line of the user's code; None where there is none.  An entry of a sweep has the line of that which it is the VJP of.
        sweep: the number of the sweep that wrote it, from 1; None for what the user recorded.
        of: the number of the entry of whose VJP it is part; None where there is none, or it is not on this tape.
        inside: the name of the ``tape.Function`` whose forward or backward recorded it; None elsewhere.
        no_grad: whether it was recorded as a constant (under ``no_grad``, by ``detach`` ...).
        released: whether what a sweep through it would need is gone: a sweep released it, or nobody holds what follows from it.

    """

    number: int
    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    where: tuple[str, int] | None = None
    sweep: int | None = None
    of: int | None = None
    inside: str | None = None
    no_grad: bool = False
    released: bool = False
    _params: Any = field(default=None, repr=False)
    _jaxpr: Any = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of its first result; None where it has none."""
        return self.outputs[0].shape if self.outputs else None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of its first result."""
        return self.outputs[0].dtype if self.outputs else None

    @property
    def nbytes(self) -> int:
        """The size of its results together, in bytes."""
        return sum(value.nbytes for value in self.outputs)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it."""
        return any(value.requires_grad for value in self.outputs)

    @property
    def scope(self) -> str:
        """The ``jax.named_scope`` of an entry in a function that ``interop.lift`` takes apart; "" elsewhere."""
        return getattr(self.where, "scope", "")

    @property
    def params(self) -> dict[str, Any]:
        """Its static parameters by name."""
        given: Iterable[Any] = self._params.items() if isinstance(self._params, dict) else self._params or ()
        return {name: fill(template, itertools.repeat(ARRAY)) for name, template in given}

    @property
    def inner(self) -> tuple[Entry, ...]:
        """The primitives that it consists of, as entries: what a checkpoint, a loop or a lifted function does inside."""
        return () if self._jaxpr is None else inner_entries(self._jaxpr)

    @property
    def weight(self) -> int:
        """How many primitives it consists of, those in loops and branches counted once."""
        return 0 if self._jaxpr is None else weight(self._jaxpr)

    def __str__(self) -> str:
        at = "" if self.where is None else f"  {self.where[0]}:{self.where[1]}"
        return f"{signature(self)}{at}"

    def __repr__(self) -> str:
        return f"<entry {self}>"


def typed(value: Value) -> str:
    """Return shape and dtype in short: ``float32[3,4]``."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def types(entry: Entry) -> str:
    """Return the shapes and dtypes of an entry's results, each once."""
    return " ".join(dict.fromkeys(map(typed, entry.outputs)))


def signature(entry: Entry) -> str:
    """Return an entry as one writes it: ``%3 = tanh(%2)``."""
    results = ", ".join(map(str, entry.outputs)) or f"%{entry.number}"
    return f"{results} = {entry.op}({', '.join(map(str, entry.inputs))})"


_LIMIT = 1 << 14  # equations shown


def weight(jaxpr: jaxapi.Jaxpr) -> int:
    """Return how many equations there are, those of inner jaxprs in place of the ones that hold them."""
    return sum(1 for eqn in equations_in(jaxpr) if not held_by(eqn))


def plain(jaxpr: jaxapi.Jaxpr) -> bool:
    """Tell whether there is one primitive only, which holds no other one."""
    return len(jaxpr.eqns) < 2 and not any(held_by(eqn) for eqn in jaxpr.eqns)


def inner_entries(jaxpr: jaxapi.Jaxpr) -> tuple[Entry, ...]:
    """Return the equations of a jaxpr as entries; those that hold a jaxpr have it as theirs."""
    values: dict[Any, Value] = {}
    for i, v in enumerate(jaxpr.invars):
        values[v] = Value.of(kind_of(v.aval), f"in{i}")
    for i, v in enumerate(jaxpr.constvars):
        values[v] = Value.of(kind_of(v.aval), f"const{i}")
    entries = []
    for number, eqn in enumerate(jaxpr.eqns[:_LIMIT]):
        bound = [v for v in eqn.outvars if not isinstance(v, jaxapi.DropVar)]
        inputs = tuple(Value.of(kind_of(v.aval), str(v.val)) if isinstance(v, jaxapi.Literal) else values[v] for v in eqn.invars)
        for i, v in enumerate(bound):
            values[v] = Value.of(kind_of(v.aval), f"%{number}" if len(bound) == 1 else f"%{number}.{i}", number, i)
        within = next(iter(held_by(eqn)), None)
        params = {key: x for key, x in eqn.params.items() if not isinstance(x, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr))}
        outputs = tuple(values[v] for v in bound)
        entries.append(Entry(number, eqn.primitive.name, inputs, outputs, line_of(eqn), _params=params, _jaxpr=within))
    return tuple(entries)


def turns_of(entry: Entry) -> int:
    """Return how many turns the longest loop in an entry takes, where that is known before it runs."""
    jaxpr = entry._jaxpr
    return max([eqn.params["length"] for eqn in equations_in(jaxpr) if eqn.primitive.name == "scan"], default=0) if jaxpr is not None else 0
