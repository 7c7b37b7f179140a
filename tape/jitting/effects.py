"""Effects: what a traced step reads and writes, of the Variables that live outside of it.

While the step is traced, reading such a Variable gives the traced value of an input, and writing to it (``.value``, ``.grad``,
``v[i] = y``) works as it always does.  When the trace ends, what was written is noted as a result, and every Variable is as it was before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from tape import jaxapi
from tape.callables.captures import Captures, held, placeholder
from tape.callables.reach import Reach
from tape.errors import TapeRuntimeError
from tape.graph import boundary
from tape.graph.boxes import Cell
from tape.graph.kinds import Place, is_scalar, kind_of
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL, parked
from tape.graph.segment import NOTHING, Extra, Handle, LeafNode, Segment, hooks_at, is_leaf, itself, outside
from tape.graph.trie import RECORD
from tape.graph.watcher import NOBODY
from tape.hooking.handles import take_away
from tape.jitting import identities
from tape.jitting.arrivals import Arrivals
from tape.jitting.places import taken_apart_if_any
from tape.ops.kernel import Op
from tape.programs.equations import placed
from tape.programs.program import look
from tape.programs.traced import Part
from tape.recording import record
from tape.recording.record import handle
from tape.sweeps.seeds import describe
from tape.sweeps.sweep import Target, past, resolved, target_of


class Before(NamedTuple):
    """A Variable, and what it was before it was written to."""

    variable: Handle
    segment: Any
    place: Place
    cell: Cell
    extra: Any
    grad: Any
    assigned: bool

    @classmethod
    def of(cls, v: Handle) -> Before:
        """Note what a Variable is now."""
        extra = v._extra
        return cls(v, v._segment, v._place, v._cell, extra, None if extra is None else extra.grad, extra is not None and extra.assigned)

    def restore(self) -> None:
        """Make it that again."""
        v = self.variable
        v._segment, v._place, v._cell, v._extra = self[1:5]
        if self.extra is not None:
            self.extra.grad, self.extra.assigned = self.grad, self.assigned


@jax.custom_jvp
def _assigned(value: Any, leaf: Any) -> Any:  # noqa: ARG001
    return value


_assigned.defjvp(lambda primals, tangents: (primals[0], tangents[1]))
_ASSIGNED = Op("assigned", _assigned)


class Effects(Captures):
    """One trace of a step."""

    pends = True
    releases = True

    def __init__(self, sources: Sequence[Handle], reached: Reach) -> None:
        self.grads = [None if v._extra is None else v._extra.grad for v in sources]
        super().__init__([*sources, *[g for g in self.grads if g is not None]])
        self.sources = list(sources)
        self.touched: dict[int, Before] = {}  # type: ignore[misc]
        self.looked: dict[int, Any] = {}  # Variables on whose having a gradient the trace depends
        self.cleared: set[int] = set()  # ids of those whose gradient was cleared before anything could depend on it
        self._cells = [v._cell for v in self.known]
        self._expected = {id(cell): i for i, cell in reversed([*enumerate(self._cells)])}
        self._ours = {id(v) for v in self.known}
        self._holders = holders = reached.holders
        self.met = {id(x): reached.path(n) for n, x in enumerate(reached.nodes)}  # by id of objects that were there before
        self.caches, self.names = reached.caches(), identities.names(reached)
        # Of each Variable, by id: in how many places it is; lists and dicts are places themselves.
        contents = [x for h in holders for x in h.before.values() if isinstance(x, (Handle, tuple))]
        self.places = Counter(id(x) for content in contents for x in taken_apart_if_any(content)[0])
        self.anew = False  # whether objects that the step makes where nothing was are made at every call
        self.stood: dict[tuple[int, Any], object] = {}  # what holds traced arrays, by the id of what has it and the key
        self._hosts: dict[int, tuple[Any, Any]] = {}  # id(stand-in) of a Variable that an op outside produced -> both
        self._nodes: dict[int, LeafNode] = {}
        self._origins: dict[LeafNode, Target] = {}  # of those of such Variables -> what these are outside
        self.trace: object = None  # JAX's
        self._emptied: list[Cell] = []
        self._staged: list[Any] = []  # segments that may be pending
        self._hooked: dict[int, tuple[Any, dict[int, Any], set[int]]] = {}  # by id of the hooks of a Variable: both, and which there were
        self._reached: set[int] = set()
        self._parts, self.arrivals = list[Part](), Arrivals()
        self._where: dict[int, tuple[str, int] | None] = {}
        self.was_read: list[bool] = []  # for each known Variable, whether its value was read; known when the trace has ended
        self.looked_at: set[int] = set()
        self.asked: dict[int, bool] = {}  # ids of those of which somebody saw what they are -> whether they are leaves
        self.aims: set[tuple[frozenset[int], frozenset[int]]] = set()  # the sources that a sweep reached, and those to end at
        self.fresh: dict[int, Handle] = {}  # leaves that were made in the trace, of what is known there, and read
        self.waiting: set[int] = set()  # ids of unknown ones that are pending outside: a trace cannot do without their values

    def _scope(self) -> parked:
        return parked(trace=self, eager=True, staged=self._staged)

    # -- what the trace meets ---------------------------------------------------------------------------------------

    def read(self, variable: Handle, *, flows: bool = True) -> Handle:  # noqa: ARG002
        """Return the Variable as this trace knows it: one of its own as it is, for another one its stand-in, a leaf."""
        variable = itself(variable)
        cell = variable._cell
        value = cell[0]
        if boundary.is_traced(variable) or is_scalar(value):
            return variable
        key = id(cell)
        if key in self._own:
            return variable
        stand_in = self.stand_ins.get(key)
        if stand_in is None:
            position = self._expected.get(key)
            if position is not None:
                traced = self._inputs[position]
            else:
                self._unexpected(variable)
                if value is not None:
                    return variable
                boundary.awaited(cell, variable._segment, variable._place)
                traced = placeholder(variable._place.kind.aval)
            stand_in = self.stand_ins[key] = [traced]
        known_as: Handle = handle(None, outside(variable._place, variable._segment), stand_in)
        if variable._place.kind.requires_grad:
            known_as._extra = Extra()
            known_as._extra.node = self.node_of(variable, known_as)
        return known_as

    def operand(self, variable: Handle) -> Handle:
        """Return it as :meth:`read` does; a leaf that got another value here as one whose derivatives are those of the leaf outside."""
        known, kind = self.read(variable), variable._place.kind
        before = self.touched.get(id(known))
        if before is not None and before.place.kind.requires_grad and not kind.requires_grad:  # a constant for now
            held: Handle = handle(None, known._place, [jax.lax.stop_gradient(look(known))])
            return held
        return known if before is None else self.assigned(known)

    def assigned(self, known: Handle) -> Handle:
        """Return a leaf that got another value here as a result whose derivatives are those of the leaf outside."""
        before, kind = self.touched.get(id(known)), known._place.kind
        if before is None or before.segment is not None or not (is_leaf(known) and kind.requires_grad and LOCAL.scope.mode == RECORD):
            return known
        position = self._expected.get(id(before.cell))
        if position is None:
            return known
        value = handle(None, Place(-1, kind_of(kind.aval)), [look(known)])
        stand_in = self.stand_ins.setdefault(id(before.cell), [self._inputs[position]])
        if not before.place.kind.requires_grad:  # by that cell it may have entered as a constant
            stand_in = self.stand_ins.setdefault(id(known), list(stand_in))
        leaf: Handle = handle(None, Place(-1, kind), stand_in)
        leaf._extra = Extra()
        leaf._extra.node = record.node_of(known)
        assigned: Handle = record.record(_ASSIGNED, (value, leaf))
        return assigned

    def leave(self, variable: Handle, array: Any) -> Any:
        """Return an array that is a constant to second derivatives as well, unless a backward or a hook takes it."""
        kind = variable._place.kind
        flows = LOCAL.scope.caller is NOBODY and isinstance(array, jax.Array) and (kind.requires_grad or kind.unrecorded)
        return jax.lax.stop_gradient(array) if flows else array

    def adopt(self, cell: Cell) -> None:
        """Note a cell that was made in this trace, and by which line."""
        super().adopt(cell)
        self._where[id(cell)] = user_line()

    def place(self, part: Part, inputs: Sequence[Any], trace: object) -> Sequence[Any] | None:
        """Take what belongs to the step itself: a callable of JAX's in it is lowered or differentiated at once."""
        return placed(part, inputs, self._parts) if trace is self.trace and not jaxapi.folds() else None

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """While JAX traces the step, or its sweep."""
        outer, self.trace = self.trace, jaxapi.current_trace()
        try:
            yield
        finally:
            self.trace = outer

    def owns(self, variable: Handle) -> bool:
        """Tell whether a Variable was made in this trace, be it pending."""
        return super().owns(variable) or boundary.is_traced(variable)

    def ran(self, segment: Segment, live: Sequence[int]) -> None:
        """Note cells that get values of the trace, and which lines made them."""
        wanted = {slot: segment.cells[slot] for slot in live}
        self._own.update((id(cell), cell) for cell in wanted.values())
        for slot, where in [(slot, step.where) for step in segment.state.path() for slot in step.slots if slot in wanted]:
            self._where[id(wanted[slot])] = where

    def _unexpected(self, variable: Handle) -> None:
        inside = id(variable._cell) in self._own or (variable._extra is not None and variable._extra.inside is True)
        if inside and variable._segment is None and id(variable._cell) not in self._own:
            self.fresh.setdefault(id(variable), variable)
        if not inside and id(variable) not in self._ours:
            self.unknown.setdefault(id(variable), variable)
            if variable._cell[0] is None:
                self.waiting.add(id(variable))

    def node_of(self, variable: Handle, stand_in: Handle | None = None) -> LeafNode:
        """Return where sweeps inside take the gradient of a Variable from outside."""
        if variable._segment is None:
            return record.node_of(variable)
        key = id(variable._cell)
        if key not in self._nodes:
            assert stand_in is not None
            self._hosts[id(stand_in)] = (stand_in, variable)
            node = self._nodes[key] = LeafNode(stand_in)
            node.hooks = hooks_at(variable)
            self._origins[node] = resolved((variable._segment, variable._place.slot))
        return self._nodes[key]

    def ends(self) -> dict[LeafNode, int]:
        """Map where gradients of the Variables that were read end to positions among the known ones."""
        return {node: i for node, i in self._known_ends() if self.reads(i) or i in self._reached}

    def _known_ends(self) -> Iterator[tuple[LeafNode, int]]:
        for i, v in enumerate(self.known):
            before = self.touched.get(id(v))
            extras = (None if before is None else before.extra, v._extra)
            node = self._nodes.get(id(self._cells[i])) or next((e.node for e in extras if e is not None and e.node is not None), None)
            if node is not None:
                yield node, i

    def reach(self, leaves: Collection[Any]) -> bool:
        """Note which known Variables a result depends on, also those that were assigned to before they were read; tell whether any."""
        ours = {i for node, i in self._known_ends() if node in leaves}
        self._reached |= ours
        return bool(ours)

    def reads(self, position: int) -> bool:
        """Tell whether the value of a known Variable was read."""
        cell = self._cells[position]
        return self._expected.get(id(cell)) == position and id(cell) in self.stand_ins

    def watched(self, variable: Handle, hooks: dict[int, Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook for sweeps inside, and for the one of what the step returns."""
        self.register(variable, hooks)
        return self.arrivals.gated(variable, hook)

    def swept(self, segment: Segment, slots: Sequence[int], gradients: Sequence[Any]) -> Sequence[Any]:
        """Have gradients of a backward count where the sweep of what the step returns comes to it."""
        return self.arrivals.counted(segment, slots, gradients)

    def register(self, variable: Handle, hooks: dict[int, Any]) -> None:
        """Note that a hook is about to be registered, and on what."""
        if id(variable) in self._ours or not (id(variable._cell) in self._own or boundary.is_traced(variable)):
            self._hooked.setdefault(id(hooks), (variable, hooks, set(hooks)))

    def receive(self, variable: Handle) -> None:
        """Refuse a leaf that a sweep is about to give a gradient to, should it only stand for what was computed outside."""
        host = self._hosts.get(id(variable))
        if host is not None:
            msg = (
                f"jit: a sweep inside the function reached a Variable that was computed outside of it ({describe(host[1])}), and so does "
                "not end there; return what is to be differentiated and sweep outside, or pass .detach()"
            )
            raise TapeRuntimeError(msg)

    def aim(self, roots: Sequence[Handle], targets: Sequence[Any]) -> None:
        """Refuse a sweep to Variables that something computed outside, which it reaches, depends on: it would not go through that."""
        swept = past(map(target_of, roots))  # which gives a leaf that is a root itself its node
        known = {node: i for node, i in self._known_ends() if i < len(self.sources)}
        ends = frozenset([known[t] for t in targets if t in known])
        if not ends and not self._origins:
            return
        self.aims.add((frozenset([known[t] for t in swept if t in known]), ends))
        others = {self._origins.get(t, t) for t in targets}
        for node, origin in self._origins.items():
            stand_in = node.ref()
            if stand_in is not None and node in swept and not (others - {origin}).isdisjoint(past([origin])):
                self.receive(stand_in)

    def write(self, variable: Handle) -> bool:
        """Note what a Variable was before it changes."""
        self.receive(variable)
        if id(variable) not in self.touched:
            self.touched[id(variable)] = Before.of(variable)
            if not boundary.is_traced(variable):
                self._unexpected(variable)
        self._look(variable)
        return True

    def clear_grad(self, variable: Handle) -> None:
        """Note that a Variable's ``.grad`` becomes None, so that nothing that follows depends on whether there was one."""
        if id(variable) not in self.looked:
            self.cleared.add(id(variable))
        self.write(variable)

    def _look(self, variable: Handle) -> None:
        """Note that the trace depends on whether a Variable has a gradient."""
        if id(variable) not in self.cleared:
            self.looked.setdefault(id(variable), variable)

    def read_grad(self, variable: Handle) -> None:
        """Note that a Variable's ``.grad`` is looked at."""
        super().read_grad(variable)
        self._look(variable)
        if not boundary.is_traced(variable):
            self._unexpected(variable)

    def ask(self, variable: Handle, *, leaf: bool = False) -> None:
        """Note that the trace depends on what a Variable is, or on whether it is a leaf."""
        variable = itself(variable)
        if not boundary.is_traced(variable):
            self._unexpected(variable)
            self.asked[id(variable)] = leaf or self.asked.get(id(variable), False)

    # -- its end ----------------------------------------------------------------------------------------------------

    def _end(self, *, failed: bool) -> None:
        for before in self.touched.values():
            before.restore()
        for holder in self._holders:
            holder.place.fill(holder.before)
        self.was_read = [self.reads(i) or i in self._reached for i in range(len(self.known))]
        self.looked_at = set(self.looked)
        for segment in filter(None, [ref() for ref in self._staged]):
            self.ran(segment, tuple(segment.cells))
            segment.ran(NOTHING)
        self._emptied = [*self._own.values(), *self.stand_ins.values()]
        for cell in self._emptied:  # traced values end with the trace
            cell[0] = None
        for met in (self._own, self.stand_ins, self._hosts, self._nodes, self._origins, self.touched, self.looked):
            met.clear()
        if failed:  # those in the frames of its traceback
            self.escaped()
        hooked = None
        for variable, hooks, known in self._hooked.values():
            for key in [k for k in hooks if k not in known]:
                take_away(hooks, key)
                hooked = variable
        self._hooked.clear()
        if hooked is not None and not failed:
            msg = (
                f"jit: a hook was registered inside the function on a Variable from outside ({describe(hooked)}) and "
                "would stay there after the first call only; register it outside, or remove() it before the function returns"
            )
            raise TapeRuntimeError(msg)

    def escaped(self) -> None:
        """Have Variables of this trace that somebody still holds say what they were, should they be used."""
        cells, self._emptied = self._emptied, []
        for cell, flag in zip(cells, held(cells), strict=True):
            if flag:
                boundary.gone(cell, functools.partial(_told, cell, self._where.get(id(cell))))
        self._where.clear()

    def stayed(self) -> bool:
        """Tell whether somebody keeps a leaf that was made in the trace, as of a model that is made where none was: it is outside now."""
        fresh, self.fresh = list(self.fresh.values()), {}
        if any(held(fresh)):
            gc.collect()  # what only cycles have is nobody's
        flags = held(fresh)
        for v, flag in zip(fresh, flags, strict=True):
            if flag and v._extra is not None:
                v._extra.inside = None
        return any(flags)

    def missed(self) -> list[Any]:
        """Variables from outside that were met unexpectedly: they are held by somebody, or pending."""
        unknown, self.unknown = list(self.unknown.values()), {}
        return [v for v, flag in zip(unknown, held(unknown), strict=True) if flag or id(v) in self.waiting]


def _told(cell: Cell, where: tuple[str, int] | None) -> str:
    """Say what a Variable was whose value existed only in a trace; the search of the heap takes seconds where that is large."""
    what = "a Variable"
    for v in [v for v in gc.get_referrers(cell) if isinstance(v, Handle)][:1]:
        place = "" if where is None else f", made at {where[0]}:{where[1]}"
        names = [k for d in gc.get_referrers(v) if isinstance(d, dict) for k, x in d.items() if x is v and isinstance(k, str)]
        kept = f", now kept as {names[0]!r}" if names else ""
        what = f"a Variable ({describe(v)}{place}{kept})"
    return (
        f"{what} existed only while a function compiled by tape.jit was traced, and has no value outside of it; return it from the "
        "function, or assign its value to a Variable made outside"
    )
