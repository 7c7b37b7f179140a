"""Outcomes: what a traced step leaves behind, told in terms of its flat results, so that every call can leave the same.

A step returns a tree, changes Variables from outside, and stores others in attributes; each of these may refer to Variables that it made,
to Variables that were there before, and to plain objects.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any, TypeVar

import jax

from tape.callables.objects import MISSING, Writable
from tape.callables.reach import Reach, Stored, spelled
from tape.errors import LeakedTracerError, LostGradientError, ReleasedTapeError, TapeError, TapeTypeError, UnrecordedGradientError
from tape.graph import boundary
from tape.graph.kinds import Kind, Place, kind_of, why_unrecorded
from tape.graph.scope import in_mode
from tape.graph.segment import Handle, LeafNode, Segment, WayBack, itself, made_at, outside
from tape.graph.trie import RECORD
from tape.jaxapi import Tracer
from tape.jitting.deadends import dead_end
from tape.jitting.effects import Effects
from tape.jitting.flags import SWITCHES
from tape.jitting.orders import Orders
from tape.jitting.places import held, leaves_in
from tape.jitting.records import flatten, standing_often
from tape.jitting.results import ALL, ARRAY, FOUND, GRADIENT, MADE, NEW, ONE, PLAIN, SAME, SHARED, Made, Slot, Tree, VariableChange
from tape.ops.kernel import Op
from tape.programs.program import look, run_pending
from tape.recording import record
from tape.sweeps.plan import behind
from tape.sweeps.seeds import describe
from tape.sweeps.sweep import Target, resolved
from tape.variables.conversion import as_array

T = TypeVar("T")

_SHARED = Op("shared", lambda x: x)


class Outcome:
    """What a trace leaves behind; made inside the trace, from what the function returned."""

    def __init__(self, effects: Effects, returned: object, passed: Collection[int]) -> None:
        self.values: list[Any] = []  # the flat results: traced values
        self.made: list[Made] = []
        self.live: list[Any] = []  # traced Variables through which gradients flow
        self._ends: list[Collection[LeafNode]] = []  # for each, where these end
        self.changes: list[VariableChange] = []
        self.slots: list[Slot] = []
        self.shared: list[Tree] = []  # containers that stand in several places, each behind those in it
        # What places hold otherwise, to be stored once, as Python that runs while the function is traced does.
        self.plain: list[tuple[Writable, dict[Any, Any]]] = []
        self._effects = effects
        self._numbers: dict[int, tuple[int, Any]] = {}  # by id of what was traced: the number of the result, and that
        self._handles: dict[int, tuple[int, Any]] = {}
        self._targets: dict[Target, int] = {}  # of those in which gradients may end, or flow on: the numbers of the first handles
        self._sources = {id(v): i for i, v in enumerate(effects.sources)}
        self._grads = {id(g): i for i, g in enumerate(effects.grads) if g is not None}
        stored = {
            (id(h.place.at), key): content  # a namespace and its __dict__ are one place
            for h in effects._holders
            for key, content in h.place.contents().items()
            if content is not h.before.get(key, MISSING)
        }
        self._known = {*effects.met, *effects.fresh}  # the ids of what was there before, or is there for what follows
        self._often = standing_often([returned, *stored.values()], self._known)
        self._leaves = {*self._known, *self._often}  # the ids of what is no part of a tree
        self._shared: dict[int, int] = {}  # by id of what stands in several places: its number
        self.returned = self._tree(returned)
        for kind, x in [leaf for tree in self.trees for leaf in tree.leaves]:
            if kind == PLAIN:
                self._check_plain(x, passed)
        for i, v in enumerate(effects.sources):
            self._change(i, v)
        self.orders = Orders.made(effects._holders)
        self._leads: dict[int, bool] = {}  # by id of what was there before
        for holder in effects._holders:
            self._stored(holder)
        self._cut_at_new_leaves()
        leaves = [leaf for tree in self.trees for leaf in tree.leaves]
        self.found = {path for kind, path in leaves if kind == FOUND}  # the objects that it refers to
        leaves += [m.of for m in self.made if m.of is not None]
        self.referred = {i for kind, i in leaves if kind in (SAME, GRADIENT)}  # the sources that it does, also by their gradients

    @property
    def trees(self) -> list[Tree]:
        """The trees in which results stand."""
        return [self.returned, *[s.content for s in self.slots], *self.shared]

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
        of = self._another_of(v)
        if of is None and v._segment is not None and v._place.kind.requires_grad and not self._effects.owns(v):
            v = in_mode(RECORD, record.record, _SHARED, (v,))  # of what was computed outside, and nobody knows
        traced = look(v)
        if of is None:
            segment, place, live = self._fate(v)
            if (target := _target(v)) is not None:
                self._targets[target] = number
        elif of[0] == MADE:
            _, place, segment, live, *_ = self.made[of[1]]
        else:
            segment, place, live = None, outside(v._place, v._segment), -1
        self._handles[id(given)] = (number, given)
        name, assigned = (None, False) if extra is None else (extra.name, extra.assigned)
        result = self.value(traced)
        if live >= 0 and any(m.result == result and m.live not in (-1, live) for m in self.made):  # its seed is another one
            result = len(self.values)
            self.values.append(traced)
        refs = () if live < 0 or v._segment is None else v._segment.retained.get(v._place.slot, ())
        retains = any(ref() is given for ref in refs)
        self.made.append(Made(result, place, segment, live, name, grad, assigned, retains, of))
        return number

    def _another_of(self, v: Handle) -> tuple[int, int] | None:
        """Return what a Variable is another handle of, given by ``copy.copy(y)`` or ``v.grad = y``: the same place in the graph."""
        effects = self._effects
        if (target := _target(v)) is None:
            return None
        if target in self._targets:
            return MADE, self._targets[target]
        if isinstance(target, LeafNode):
            at = next((i for node, i in effects._known_ends() if node is target), None)
        else:
            at = None if effects.owns(v) else effects._expected.get(id(v._cell))
        if at is None:
            return None
        return (SAME, at) if at < len(effects.sources) else (GRADIENT, self._grads[id(effects.known[at])])

    def _fate(self, v: Handle) -> tuple[Segment | None, Place, int]:
        """Say where a new Variable stands outside: on what segment, in which place, and whether gradients flow to it."""
        kind: Kind = v._place.kind
        if v._segment is None or not kind.requires_grad:
            return None, outside(v._place, v._segment), -1
        released, reason, reached, cut = _origins(v._segment, v._place.slot)
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
            return (*dead_end(kind, error, list(self._effects.ends())), -1)
        if not self._effects.reach(reached):
            return None, Place(-1, kind_of(kind.aval)), -1  # only the function's own leaves led to it
        self.live.append(v)
        self._ends.append(reached - cut)
        return None, v._place, len(self.live) - 1

    def _cut_at_new_leaves(self) -> None:
        """Have sweeps say so that come from results which depend on a leaf that was made inside and stays: they would not reach it."""
        new = {target: self.made[n].place.kind.aval for target, n in self._targets.items() if isinstance(target, LeafNode)}
        lost = {k: next(new[node] for node in ends if node in new) for k, ends in enumerate(self._ends) if not new.keys().isdisjoint(ends)}
        kept = [k for k in range(len(self.live)) if k not in lost]
        for n, m in enumerate(self.made if lost else ()):
            live, segment, place = kept.index(m.live) if m.live in kept else -1, m.segment, m.place
            if m.live in lost:
                aval = lost[m.live]
                msg = (
                    f"the gradient of a result of a function compiled by tape.jit would go to a leaf that was made in it and outlives it "
                    f"(shape {aval.shape}, dtype {aval.dtype}), where a sweep from outside does not come by; make that Variable outside, "
                    "sweep inside, or keep it .detach()ed"
                )
                segment, place = dead_end(place.kind, LostGradientError(msg), list(self._effects.ends()))
            self.made[n] = m._replace(live=live, segment=segment, place=place)
        self.live = [self.live[k] for k in kept]

    def told(self) -> object:
        """Return what the step leaves where, to be compared with what another one does."""
        made = [(m.place.kind, m.segment is None, m.result, *m[3:]) for m in self.made]
        slots = [(s.holder.key, s.key, s.content.told()) for s in self.slots]
        return made, slots, self.changes, self.returned.told(), [tree.told() for tree in self.shared], self.orders.told()

    def drop_traced(self) -> None:
        """Forget what existed only in the trace."""
        self.values, self.live = [None] * len(self.values), [None] * len(self.live)
        for known in (self._handles, self._numbers, self._targets):
            known.clear()
        del self._effects, self._known, self._often, self._leaves, self._shared

    # -- trees, changes and places ----------------------------------------------------------------------------------------

    def _tree(self, tree: object, known: Collection[int] | None = None) -> Tree:
        structure: Any
        leaves, structure = flatten(tree, self._leaves if known is None else known)
        return Tree(ONE if structure == ONE else structure, tuple(self._leaf(x) for x in leaves))

    def _leaf(self, x: object) -> tuple[int, Any]:
        if not isinstance(x, Handle):
            if isinstance(x, jax.Array):
                return (ARRAY, self.value(x))
            if id(x) in self._often:
                return (SHARED, self._share(x))
            path = self._effects.met.get(id(x))
            return (PLAIN, x) if path is None else (FOUND, path)
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

    def _share(self, x: object) -> int:
        if id(x) not in self._shared:
            tree = self._tree(x, self._leaves - {id(x)})
            self._shared[id(x)] = len(self.shared)
            self.shared.append(tree)
        return self._shared[id(x)]

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

    def _is_own(self, x: object) -> bool:
        """Tell whether something is a Variable that was not there before."""
        return isinstance(x, Handle) and id(itself(x)) not in self._sources

    def _counts(self, content: object) -> bool:
        """Tell whether something that was stored has Variables or arrays (which may be others later) in it, or objects that lead to any."""
        try:
            leaves = flatten(content, self._known)[0]
        except Exception:  # noqa: BLE001 - classes of the user's may do anything
            leaves = leaves_in(content)
        return any(isinstance(x, (Handle, jax.Array)) or self._leads_to_state(x) for x in leaves)

    def _leads_to_state(self, x: object) -> bool:
        """Tell whether something that was there before has Variables or arrays behind it."""
        if id(x) not in self._effects.met:
            return False
        if id(x) not in self._leads:
            reached = Reach([x])
            arrays = (isinstance(content, jax.Array) for h in reached.holders for content in h.before.values())
            self._leads[id(x)] = bool(reached.variables) or any(arrays)
        return self._leads[id(x)]

    def _stored(self, holder: Stored) -> None:
        """Note what of that which a place of any kind holds now every call is to put there, and what stays where it is."""
        now, before = holder.place.contents(), holder.before
        now = {key: before[key] if x is self._effects.stood.get((id(holder.place.at), key), MISSING) else x for key, x in now.items()}
        plain = dict(now)
        self.plain.append((holder.place, plain))
        if holder.node in self._effects.caches:
            return
        at = holder.place.at
        if isinstance(at, set) or (isinstance(at, (list, deque)) and len(now) != len(before)):
            same = isinstance(at, set) and {*map(id, now.values())} == {*map(id, before.values())}
            if not same and self._resized(holder, now):
                plain.clear()
                plain.update(before)
            return
        new = {key: x for key, x in now.items() if key not in before and any(map(self._is_own, leaves_in(key)))}
        if new:
            self.slots.append(Slot(holder, NEW, self._tree([*new.items()]), held(MISSING)))
        for key in {**before, **now}:
            content, old = now.get(key, MISSING), before.get(key, MISSING)
            decides = isinstance(content, SWITCHES) and key in self._effects.names  # its code looks at it
            if content is old or not (decides or key in new or self._counts(old if content is MISSING else content)):
                continue
            plain[key] = old
            if old is MISSING:
                del plain[key]
            if key not in new:
                self.slots.append(Slot(holder, key, self._tree(content), held(old)))

    def _resized(self, holder: Stored, now: dict[Any, Any]) -> bool:
        """Note what a list, deque or set holds that has got another length; tell whether Variables, or what leads to them, are in it."""
        there = {*map(id, holder.before.values()), *map(id, self._effects.stood.values())}
        new = [x for x in now.values() if id(x) not in there]
        if not any(map(self._counts, (*holder.before.values(), *new))):
            return False
        leaves = flatten(new, self._known)[0]
        if any(isinstance(x, Tracer) or self._is_own(x) for x in leaves):
            msg = (
                f"jit: the function adds a Variable to {spelled(holder.path)}, a {type(holder.place.at).__name__} that outlives it, "
                "which only the Python that runs while it is traced could do; return the Variable, and add it outside"
            )
            raise LeakedTracerError(msg)
        self.slots.append(Slot(holder, ALL, self._tree([*now.values()]), sys.intern(str(len(holder.before)))))
        return True


def _target(v: Handle) -> Target | None:
    """Return where the gradients of a Variable end, or flow on; None where nobody can tell it by that."""
    if not v._place.kind.requires_grad:
        return None
    if v._segment is None:
        return None if v._extra is None else v._extra.node
    return resolved((v._segment, v._place.slot))


def _origins(segment: Segment, slot: int) -> tuple[bool, str | None, set[LeafNode], set[LeafNode]]:
    """Walk back from a traced Variable: tell whether a sweep would meet a released entry, why something is unrecorded, and which leaves.

    The last of these are those of results that were cut inside, where the user has sweeps end.
    """
    way = WayBack([(segment, slot)])
    released = False
    cut: set[LeafNode] = set()
    reason = None
    for older, slots in way:
        ends, steps, _ = behind(older.state, slots)
        way.follow(older, ends)
        cut.update(node for end in ends if end in older.state.cut and isinstance(node := older.origins.get(end), LeafNode))
        for step in steps:
            released = released or step.depth in older.released
            if step.hazard is not None and reason is None:
                place = older.state.table[step.inputs[step.hazard]]
                reason = why_unrecorded(place.kind.unrecorded, made_at(place, older))
    return released, reason, {*way.leaves}, cut
