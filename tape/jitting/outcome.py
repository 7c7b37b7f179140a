"""Outcomes: what a traced step leaves behind, told in terms of its flat results, so that every call can leave the same.

A step returns a tree, changes Variables from outside, and stores others in attributes; each of these may refer to Variables that it made,
to Variables that were there before, and to plain objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax

from tape.callables.fingerprints import fingerprint
from tape.callables.objects import MISSING, Writable
from tape.callables.reach import Reach, Stored, spelled
from tape.errors import LeakedTracerError, ReleasedTapeError, TapeError, TapeTypeError, UnrecordedGradientError
from tape.graph import boundary
from tape.graph.kinds import Kind, Place, kind_of, why_unrecorded
from tape.graph.scope import in_mode
from tape.graph.segment import NOTHING, Handle, LeafNode, Segment, WayBack, itself, made_at, outside
from tape.graph.trie import RECORD, State
from tape.jaxapi import Tracer
from tape.jitting.effects import Effects
from tape.jitting.moves import Moves
from tape.jitting.places import KeptArray, held, leaves_in_new, taken_apart_if_any
from tape.jitting.records import flatten
from tape.ops.kernel import Op
from tape.programs.program import look, run_pending
from tape.recording import record
from tape.sweeps.plan import behind
from tape.sweeps.seeds import describe
from tape.variables.conversion import as_array

T = TypeVar("T")

# What a leaf of a tree is: an array, a new Variable, one from outside, the gradient of one from outside, or any other object.
ARRAY, MADE, SAME, GRADIENT, PLAIN = range(5)
ONE = jax.tree.structure(0)  # of a tree that is one leaf
_SHARED = Op("shared", lambda x: x)


class Made(NamedTuple):
    """A Variable that every call makes anew: which result is its value, and what it is.

    ``live`` is its position among the results through which gradients flow, or -1; ``assigned`` says that its gradient is its seed, and
    ``retains`` that sweeps leave it one.
    """

    result: int
    place: Place
    segment: Segment | None
    live: int
    name: str | None
    grad: int
    assigned: bool
    retains: bool


class Tree(NamedTuple):
    """A tree of results: its structure, and what each leaf is (one of the kinds above, and a number or the object)."""

    structure: Any
    leaves: tuple[tuple[int, Any], ...]


class VariableChange(NamedTuple):
    """What becomes of a Variable from outside: a new value (a Made), another gradient (a Made, or -1 for none).

    ``anew`` says that it became another Variable (``v[i] = y``), so that its gradient and hooks stay behind.
    """

    source: int
    value: int | None
    grad: int | None
    assigned: bool
    anew: bool


class Slot(NamedTuple):
    """A place (an attribute, an item) that holds new Variables or arrays afterwards; which of them it ``held`` is part of the program."""

    holder: Stored
    key: Any
    content: Tree
    held: str

    def holds(self, _: object = None) -> str:
        """Say what it holds now."""
        return held(self.holder.place.at_key(self.key))


def kept_in(slot: Slot) -> list[KeptArray]:
    """Return the arrays that a place held which gets others: they are inputs of the program, as the values of Variables are."""
    if all(kind != ARRAY for kind, _ in slot.content.leaves):
        return []
    leaves, form = taken_apart_if_any(slot.holder.before.get(slot.key))
    return [KeptArray(slot.holder, slot.key, i, form) for i, x in enumerate(leaves) if isinstance(x, jax.Array)]


class Outcome:
    """What a trace leaves behind; made inside the trace, from what the function returned."""

    def __init__(self, effects: Effects, returned: object, passed: Collection[int]) -> None:
        self.values: list[Any] = []  # the flat results: traced values
        self.made: list[Made] = []
        self.live: list[Any] = []  # traced Variables through which gradients flow
        self.changes: list[VariableChange] = []
        self.slots: list[Slot] = []
        # What places hold otherwise, to be stored once, as Python that runs while the function is traced does.
        self.plain: list[tuple[Writable, dict[Any, Any]]] = []
        self._effects = effects
        self._numbers: dict[int, tuple[int, Any]] = {}  # by id of what was traced: the number of the result, and that
        self._handles: dict[int, tuple[int, Any]] = {}
        self._sources = {id(v): i for i, v in enumerate(effects.sources)}
        self._grads = {id(g): i for i, g in enumerate(effects.grads) if g is not None}
        self.returned = self._tree(returned)
        for kind, x in self.returned.leaves:
            if kind == PLAIN:
                self._check_plain(x, passed)
        for i, v in enumerate(effects.sources):
            self._change(i, v)
        self.moves = Moves.made(effects._holders)
        moved = {(id(m.holder), m.key) for m in self.moves.moves}
        for holder in effects._holders:
            self._stored(holder, moved)

    def sweeping(self, sweep: Callable[[], T]) -> T:
        """Trace the sweep of what was returned, and note what backwards and hooks of the user's store meanwhile.

        That is stored once, as what Python does while it is traced: what is traced itself says so when it is used.
        """
        before = [holder.place.contents() for holder in self._effects._holders]
        swept = sweep()
        for (place, plain), old in zip(self.plain, before, strict=True):
            now = place.contents()
            stored = {key: content for key, content in now.items() if content is not old.get(key, MISSING)}
            plain.update(stored)
            for key in old.keys() - now.keys():
                plain.pop(key, None)
        return swept

    # -- values and Variables -----------------------------------------------------------------------------------------

    def value(self, x: object) -> int:
        """Return the number of a result."""
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self.values), x
            self.values.append(as_array(x))
        return self._numbers[id(x)][0]

    def _make(self, v: Handle) -> int:
        if id(v) in self._handles:
            return self._handles[id(v)][0]
        extra = v._extra
        grad = -1 if extra is None or extra.grad is None else self._make(extra.grad)
        if v._segment is not None and v._segment.pending:
            run_pending(v._segment, "swept elsewhere")  # the sweep of what is returned is a program of its own
        number, given = len(self.made), v
        if v._segment is not None and v._place.kind.requires_grad and not self._effects.owns(v):
            v = in_mode(RECORD, record.record, _SHARED, (v,))  # another handle of what was computed outside
        traced = look(v)
        segment, place, live = self._fate(v)
        self._handles[id(given)] = (number, given)
        name, assigned = (None, False) if extra is None else (extra.name, extra.assigned)
        result = self.value(traced)
        if live >= 0 and any(m.result == result and m.live not in (-1, live) for m in self.made):  # its seed is another one
            result = len(self.values)
            self.values.append(traced)
        refs = () if live < 0 or v._segment is None else v._segment.retained.get(v._place.slot, ())
        retains = any(ref() is given for ref in refs)
        self.made.append(Made(result, place, segment, live, name, grad, assigned, retains))
        return number

    def _fate(self, v: Handle) -> tuple[Segment | None, Place, int]:
        """Say where a new Variable stands outside: on what segment, in which place, and whether gradients flow to it."""
        kind: Kind = v._place.kind
        if v._segment is None or not kind.requires_grad:
            return None, outside(v._place, v._segment), -1
        released, reason, reached = _origins(v._segment, v._place.slot)
        error: TapeError | None = None
        if reason is not None:
            error = UnrecordedGradientError(
                f"a result of a function compiled by tape.jit (shape {kind.aval.shape}, dtype {kind.aval.dtype}) depends on a value "
                f"that has no derivative on the tape: {reason}"
            )
        elif released:
            error = ReleasedTapeError(
                "the sweep reached a part of the tape that an earlier sweep, inside a function compiled by tape.jit, released; pass "
                "retain_graph=True to the backward() or gradients() call in it, or compute the outputs again"
            )
        if error is not None:
            return (*_dead_end(kind, error, list(self._effects.ends())), -1)
        if not self._effects.reach(reached):
            return None, Place(-1, kind_of(kind.aval)), -1  # only the function's own leaves led to it
        self.live.append(v)
        return None, v._place, len(self.live) - 1

    def told(self) -> object:
        """Return what the step leaves where, to be compared with what another one does."""
        made = [(m.place.kind, m.segment is None, m.result, *m[3:]) for m in self.made]
        slots = [(s.holder.key, s.key, _told(s.content)) for s in self.slots]
        return made, slots, self.changes, _told(self.returned), self.moves.told()

    def drop_traced(self) -> None:
        """Forget what existed only in the trace."""
        self.values = [None] * len(self.values)
        self.live = [None] * len(self.live)
        self._handles.clear()
        self._numbers.clear()
        del self._effects

    # -- trees, changes and places ----------------------------------------------------------------------------------------

    def _tree(self, tree: object) -> Tree:
        structure: Any
        leaves, structure = flatten(tree, self._effects.met)
        return Tree(ONE if structure == ONE else structure, tuple(self._leaf(x) for x in leaves))

    def _leaf(self, x: object) -> tuple[int, Any]:
        if not isinstance(x, Handle):
            return (ARRAY, self.value(x)) if isinstance(x, jax.Array) else (PLAIN, x)
        v = itself(x)
        if id(v) in self._sources:
            return (SAME, self._sources[id(v)])
        i = self._grads.get(id(v))
        extra = None if i is None else self._effects.sources[i]._extra
        if extra is not None and extra.grad is v:
            return (GRADIENT, i)
        if not boundary.is_traced(v):
            self._effects._unexpected(v)
        return (MADE, self._make(v))

    def _check_plain(self, x: object, passed: Collection[int]) -> None:
        """Refuse to return an object again at every call that belongs to one call: used up by it, or with an argument in it."""
        what = f"jit: the function returned an object of type {type(x).__name__}"
        if isinstance(x, (Iterator, AsyncIterator, Awaitable)):
            advice = "return a list of what it yields" if isinstance(x, Iterator) else "call a function of tape.jit inside of the async one"
            msg = f"{what}, which can be used once, and every call would return this one; {advice}"
            raise TapeTypeError(msg)
        kept = {id(h.place.at) for h in self._effects._holders}
        for key, edges in Reach([x]).edges.items():
            v = edges[0].content
            if all(id(e.holder) in kept for e in edges):
                continue
            if key not in self._sources and self._effects.owns(v):
                msg = (
                    f"{what}, in which a Variable is that exists only while it is traced ({describe(v)}); return it by itself, or in a "
                    "list, tuple, dict, dataclass or registered pytree, and make the object outside"
                )
                raise TapeTypeError(msg)
            if key in passed:
                aval = v._place.kind.aval
                msg = (
                    f"{what}, in which an argument of this call is (a Variable of shape {aval.shape}, dtype {aval.dtype}), and every call "
                    "would return this one; return the Variable, and make the object outside"
                )
                raise TapeTypeError(msg)

    def _change(self, i: int, v: Handle) -> None:
        before = self._effects.touched.get(id(v))
        now = None if v._extra is None else v._extra.grad
        was_there = now is not None and now is self._effects.grads[i]
        written = was_there and id(now) in self._effects.touched and id(now) not in self._sources
        if before is None and not written:
            return
        value = grad = None
        cleared = id(v) in self._effects.cleared
        if cleared and was_there:  # as it was, by another way
            self._effects.looked[id(v)] = v
        if before is not None and (
            v._cell is not before.cell or v._place.kind is not before.place.kind or v._segment is not before.segment
        ):
            self._handles.pop(id(v), None)
            extra, v._extra = v._extra, None
            value = self._make(v)
            v._extra = extra
        if written or (before is not None and (now is not before.grad or (cleared and now is None))):
            grad = -1 if now is None else self._make(now)
        if value is not None or grad is not None:
            anew = before is not None and v._extra is not before.extra and before.extra is not None
            assigned = v._extra is not None and v._extra.assigned
            self.changes.append(VariableChange(i, value, grad, assigned, anew))

    def _stored(self, holder: Stored, moved: Collection[tuple[int, Any]]) -> None:
        now = holder.place.contents()
        plain = dict(now)
        for key, content in now.items():
            if content is self._effects.stood.get((id(holder.place.at), key), MISSING):  # nobody has put anything there
                plain[key] = holder.before[key]
                continue
            grown = isinstance(holder.place.at, (list, deque)) and len(now) != len(holder.before)
            new = (Handle, Tracer if grown else jax.Array)  # arrays from before may be others at the next call, where others were
            if (id(holder), key) not in moved and (
                content is holder.before.get(key, MISSING) or not any(isinstance(x, new) for x in leaves_in_new(content, self._effects.met))
            ):
                continue
            if key in holder.before:
                plain[key] = holder.before[key]
            else:
                del plain[key]
            if (id(holder), key) in moved:
                continue
            if grown:
                msg = (
                    f"jit: the function adds a Variable to {spelled(holder.path)}, a {type(holder.place.at).__name__} that outlives it, "
                    "which only the Python that runs while it is traced could do; return the Variable, and add it outside"
                )
                raise LeakedTracerError(msg)
            self.slots.append(Slot(holder, key, self._tree(content), held(holder.before.get(key, MISSING))))
        self.plain.append((holder.place, plain))


def _told(tree: Tree) -> tuple[Any, ...]:
    return tree.structure, fingerprint(tree.leaves)


def _origins(segment: Segment, slot: int) -> tuple[bool, str | None, Collection[LeafNode]]:
    """Walk back from a traced Variable: tell whether a sweep would meet a released entry, why something is unrecorded, and which leaves."""
    way = WayBack([(segment, slot)])
    released = False
    reason = None
    for older, slots in way:
        ends, steps, _ = behind(older.state, slots)
        way.follow(older, ends)
        for step in steps:
            released = released or step.depth in older.released
            if step.hazard is not None and reason is None:
                place = older.state.table[step.inputs[step.hazard]]
                reason = why_unrecorded(place.kind.unrecorded, made_at(place, older))
    return released, reason, way.leaves


class _DeadEnd:
    """The kernel of an entry through which no sweep goes: it says why."""

    transient = True  # so that no structure remembers it
    cheap = False
    visible = 1
    single = True
    tree = None
    name = "jit"
    params = None
    bytes = 0
    within: ClassVar[dict[int, Any]] = {}
    _cache: ClassVar[dict[Any, Any]] = {}  # of no VJP; the recorder in C asks there first

    def __init__(self, kind: Kind, error: TapeError) -> None:
        self.out_avals = (kind.aval,)
        self._kind = kind
        self._error = error

    def augmented(self) -> _DeadEnd:
        return self

    def kinds(self, _: int) -> tuple[Kind, ...]:
        return (self._kind,)

    def vjp(self, *_: Any) -> Any:
        raise type(self._error)(*self._error.args)

    vjp_call = vjp


def _dead_end(kind: Kind, error: TapeError, leaves: Sequence[LeafNode]) -> tuple[Segment, Place]:
    """Return a segment, and a place in it, for Variables of this kind whose sweep is an error."""
    segment = Segment(RECORD)
    state = State(None, RECORD)
    leaf = kind_of(kind.aval, requires_grad=True)
    count = max(1, len(leaves))
    for _ in range(count):
        state = state.leaf(leaf)
    segment.origins.update(enumerate(leaves))
    kernel: Any = _DeadEnd(kind, error)
    state = state.entry((kernel,), kernel, kernel, tuple(range(count)))
    segment.state = state
    segment.epoch = None
    segment.ran(NOTHING)
    assert state.place is not None
    return segment, state.place
