"""Compilations of steps: one traced step with its program, the bindings of it that were needed so far, and why it was traced, in words."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax

from tape import jaxapi
from tape.callables.objects import Itself, in_cell
from tape.callables.reach import Edge, Reach, globals_that_hold, modes_of
from tape.errors import TapeValueError, warn
from tape.graph.lines import user_line
from tape.graph.segment import Handle
from tape.jitting import identities
from tape.jitting.arguments import Call
from tape.jitting.binding import Binding
from tape.jitting.classes import objects_in
from tape.jitting.flags import form_of, is_flag, is_inert, kind_of
from tape.jitting.following import Setting
from tape.jitting.orders import Orders
from tape.jitting.places import arrays_in, edges_to, without_contents
from tape.jitting.replaced import leads_on
from tape.jitting.retraces import described, said_of
from tape.jitting.surroundings import surroundings
from tape.jitting.tracing import TracedStep
from tape.programs import buffers
from tape.recording import record
from tape.terminal import counted

_AROUND_LIMIT = 64  # surroundings in which one step was met
_DEEP = 4  # functions in functions by which these are told apart


_source = operator.attrgetter("source")


class CompiledStep:
    """A traced step, compiled, with its bindings (latest first), and what tells it apart, for messages.

    An argument that the function also reaches is no more than an argument if one of the ``others`` is the same program, and did not depend
    on what it met where that argument is: ``idle`` are the paths to such Variables.
    """

    def __init__(self, step: TracedStep, options: dict[str, Any], call: Call, reached: Reach, others: Sequence[CompiledStep]) -> None:
        self.step = step
        self.given = len(call.variables)
        self.said = said_of(step, call, reached)
        self.donated = _donated(step, call, options)
        self.paths = {i: [e.path for e in edges] for i in step.relevant if (edges := reached.edges.get(id(step.sources[i])))}
        self.places = frozenset(reached.by_path())
        self.modes = modes_of(reached)
        self.names = identities.names_read(reached)
        self.around: list[dict[Hashable, Any]] = []  # what was seen of its surroundings where it was traced
        # Of arguments; None: whichever they are in.
        self.positions = {identities.positions(call.variables, reached)} if identities.asked(reached) else None
        for i in [i for i in self.paths if i < self.given]:
            if self.positions is not None or any({*self.paths[i]} <= other.idle and self._is_again(other) for other in others):
                del self.paths[i]
        read = {*map(id, call.variables), *[id(step.sources[i]) for i in step.relevant]}
        self.idle: set[Any] = {e.path for v, edges in reached.edges.items() if v not in read for e in edges}
        values = [step.sources[i]._cell[0] for i in step.values]
        # What a call brings, or what is looked up anew, is not to live as long as the program does.
        lasting = {i for i in step.relevant if i >= self.given and i not in self.paths and i not in step.kept}
        if lasting and not reached.whole:
            beyond = counted(len(lasting), "Variable")
            warn(
                f"jit: {step.name} reaches more objects than are looked through, and uses {beyond} beyond those: should one be replaced by "
                "another, the program goes on with the old one; assign to .value, or keep data out of what the function holds",
                user_line(),
            )
        step.sources = [v if i in lasting else None for i, v in enumerate(step.sources)]
        step.kept = {i: without_contents(k) for i, k in step.kept.items()}
        step.read = [(without_contents(k), x) for k, x in step.read]
        step.outcome.slots = [*map(without_contents, step.outcome.slots)]
        step.outcome.orders = Orders(map(without_contents, step.outcome.orders))
        self.globals = [e for i in lasting for e in globals_that_hold(step.sources[i])]
        self.bindings: list[Binding] = []
        run = jaxapi.jaxpr_as_fun(step.jaxpr)

        def program(*arrays: jax.Array | None) -> object:
            if any(x is None for x in arrays):  # it may be a result as it is, so that nothing else would refuse it
                msg = "a value that the step reads is pending"
                raise TypeError(msg)
            return run(*arrays)

        program.__name__ = program.__qualname__ = step.name
        passed = {k: v for k, v in options.items() if k in {"keep_unused", "compiler_options"}}
        leaves = [*call.arrays, *values, *[None] * len(step.grads)]
        given = [i for i in range(len(call.arrays)) if i not in self.donated]
        self.run = buffers.jitted(program, leaves, given, self.donated, **passed)

    def known_as(self, others: Sequence[CompiledStep], given: Sequence[Handle], reached: Reach) -> CompiledStep:
        """Return the one of the others that is the same program in other surroundings, which serves in these as well; or itself."""
        for other in others:
            if (self.positions is None) == (other.positions is None) and self._is_again(other):
                before, around = other.positions, [*other.around]
                other.step.unread |= self.step.unread
                other.step.looked_at |= self.step.looked_at
                other.positions = before and before | (self.positions or set())
                if other.bind(given, reached, again=True) is not None:
                    return other
                other.positions, other.around = before, around
        return self

    def _is_again(self, other: CompiledStep) -> bool:
        """Tell whether another step met the same places, and does the same with those in the same ones, but for the arguments."""
        captured, others = ({i: paths for i, paths in s.paths.items() if i >= s.given} for s in (self, other))
        return self.places == other.places and captured == others and self.step.told() == other.step.told()

    def bind(self, given: Sequence[Handle], reached: Reach, *, again: bool = False) -> Binding | None:
        """Bind the step to the Variables of a call, if they are as they were when it was traced, be it ``again``."""
        step = self.step
        if modes_of(reached) != self.modes:
            return None
        variables: list[Any] = [*given, *step.sources[self.given :]]
        where = () if self.positions is None else identities.positions(given, reached)
        if self.positions is not None and where not in self.positions:
            return None
        places = reached.by_path()
        for i, paths in self.paths.items():
            there = [places.get(p) for p in paths]
            if any(v is None or v is not there[0] for v in there) or (i < self.given and there[0] is not given[i]):
                return None
            variables[i] = there[0]
        if any(e.holder.get(e.key) is not e.content for e in self.globals):
            return None
        holders = {h.key: h for h in reached.holders}
        slots = [without_contents(s, holders[s.holder.key]) for s in step.outcome.slots if s.holder.key in holders]
        kept = {i: without_contents(k, holders[k.holder.key]) for i, k in step.kept.items() if k.holder.key in holders}
        if len(slots) < len(step.outcome.slots) or len(kept) < len(step.kept):
            return None
        if (orders := step.outcome.orders.of(holders)) is None:
            return None
        nodes = reached.nodes_at(step.outcome.found)
        if nodes is None:
            return None
        read = [(without_contents(k, holders[k.holder.key]), x) for k, x in step.read if k.holder.key in holders]
        if len(read) < len(step.read) or any(x is not y for x, (_, y) in zip(arrays_in([k for k, _ in read]), read, strict=True)):
            return None
        matter = [variables[i] for i in step.relevant if i not in kept]
        inputs = [*kept.values(), *[k for k, _ in read]]
        ours = [*[s.holder for s in slots], *[k.holder for k in inputs]]
        finding: tuple[Sequence[int], Sequence[Edge]] = ([], [])
        if self.positions is not None:  # which Variables it may ask for
            matter, finding = [*matter, *[v for v, _ in reached.variables.values()]], identities.finding(reached)
        way, fixed, through = reached.way(matter, [*[h.node for h in ours], *finding[0], *nodes.values()])
        known = {(id(k.holder.place.at), k.key) for ks in (slots, inputs) for k in ks}
        around, arrays = surroundings(reached, way, self.names, known, step.unread, [k for k, _ in read])
        if self.around:  # what a trace itself has changed, such as a cache, is not among them
            around = {key: edge for key, edge in around.items() if key in self.around[0]}
        # What another object in a place is to have, is told by what the one there has: a cache may have got more.
        seen: dict[Any, Any] = {key: (edge.get is leads_on or edge.key, _told(edge.content)) for key, edge in around.items()}
        aliases = reached.aliases(way)  # a Variable is known by one path to each object that has it
        seen["aliases"] = {path: aliases.get(path) for path in self.around[0]["aliases"]} if self.around else aliases
        kinds = {reached.path(n): kind_of(reached.nodes[n]) for n in through}
        seen["kinds"] = {path: kinds.get(path) for path in self.around[0]["kinds"]} if self.around else kinds
        seen["hidden"], objects = objects_in(reached, through, self.names)
        if self.positions is not None:
            seen["keys"], seen["one"] = identities.found_by(reached), identities.in_several_places(reached)
        if seen not in self.around:
            if self.around and not again:
                return None
            step.suspects = [(without_contents(k), weakref.ref(x)) for k, x in arrays]
            self.around.append(seen)
            del self.around[:-_AROUND_LIMIT]
        parts = [Edge(get, at, key, (), -1, x) for get, at, key, x in edges_to([k for k, _ in read], [x for _, x in read])]
        edges = [*sorted([*fixed, *way, *[e for e in around.values() if e.source >= 0]], key=_source), *self.globals]
        looks = [*reached.modes, *parts, *[e for e in around.values() if e.source < 0], *orders.edges(), *finding[1], *objects]
        pinned = {i for i, place in enumerate(where) if place}.union(i for i in self.paths if i < self.given)
        strangers: set[int] = set() if self.positions is None else identities.met(reached) - {id(given[i]) for i in pinned}
        found = {path: reached.nodes[node] for path, node in nodes.items()}
        for i, array in zip(kept, arrays_in(kept.values()), strict=True):
            if array is None:
                return None
            variables[i] = record.constant(array)
        count = len({*step.relevant, *range(len(given))})
        if len({*[id(variables[i]) for i in step.relevant], *map(id, given)}) < count:
            return None
        if any(slot.holds() != slot.held for slot in slots):
            return None
        ways, conditions = ([(e.get, e.holder, e.key, e.content) for e in each] for each in (edges, looks))
        setting = Setting(ways, conditions, slots, kept, Orders(map(without_contents, orders)), found, strangers)
        binding = Binding(step, self.run, variables, len(given), setting, self.donated, pinned)
        return binding if binding.fits(given) else None

    def suiting(self, given: Sequence[Handle]) -> Binding | None:
        """Return a binding with which the step can run."""
        return next((b for b in self.bindings if b.suits(given)), None)

    def following(self, given: Sequence[Handle]) -> Binding | None:
        """Return a binding with which the step can run on what has come into the places of what that was bound to."""
        found = next((b for b in self.bindings if b.follow() and b.suits(given)), None)
        if found is not None:
            found.forget()
        return found


def forget_replaced(steps: Iterable[Sequence[CompiledStep]], follower: Binding | None = None) -> None:
    """Let go of what has been replaced: that is not to live as long as the bindings that read it; those called since then follow once."""
    bindings = [binding for alike in steps for step in alike for binding in step.bindings]
    if bindings == [follower]:
        return
    left = {id(b) for b in bindings if b.in_place() or (b.called and b.follow()) or b.let_go()}
    for step in [s for alike in steps for s in alike]:
        step.bindings = [b for b in step.bindings if id(b) in left]
    for b in bindings:
        b.called = False


def _told(content: object) -> object:
    """Return what tells a number, None, a name, a function or an object from others."""
    if isinstance(content, tuple) and not is_flag(content) and is_inert(content):
        return form_of(content)
    plain = isinstance(content, (int, str, types.NoneType)) or (isinstance(content, (tuple, frozenset)) and is_flag(content))
    return content if plain else _told_function(content) or Itself(content)


def _told_function(content: object, within: int = 0) -> tuple[object, ...] | None:
    """Return what tells a function from others: one that is made anew of the same is no other one.  None for all else."""
    if isinstance(content, types.MethodType):
        parts: list[object] = [content.__func__, content.__self__]
    elif isinstance(content, functools.partial):
        parts = [content.func, *content.args, *content.keywords, *content.keywords.values()]
    elif isinstance(content, types.FunctionType):
        defaults = [*(content.__defaults__ or ()), *(content.__kwdefaults__ or {}), *(content.__kwdefaults__ or {}).values()]
        parts = [id(content.__globals__), *defaults, *map(in_cell, content.__closure__ or ())]
    else:
        return None
    told = [_told_part(x, within + 1) for x in parts] if within < _DEEP else [None]
    return None if None in told else (type(content), getattr(content, "__code__", None), *told)


def _told_part(x: object, within: int) -> object:
    """Return what tells from others what a function is made of; None where that would have to be kept alive."""
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return type(x), repr(x)
    if isinstance(x, Handle):  # which are bound by where they are
        return Handle
    return _told_function(x, within) or (Itself(x) if getattr(type(x), "__weakrefoffset__", 0) else None)


def _donated(step: TracedStep, call: Call, options: dict[str, Any]) -> tuple[int, ...]:
    """Return the inputs of the program whose buffers its results may take."""
    variables = call.variables
    wanted = {i for i, v in enumerate(variables) if call.donates(v)}
    simple = {c.source for c in step.outcome.changes if c.value is not None}
    for i in wanted:
        if i not in simple:
            msg = (
                f"jit: {step.name} donates a Variable ({described(variables[i])}) that it does not assign to, so that you could still "
                "reach its buffer; assign its new value in the function, or do not donate it"
            )
            raise TapeValueError(msg)
    grads: set[int] = set()
    if options.get("donate_state"):
        wanted |= simple
        grads = {c.source for c in step.outcome.changes if c.grad is not None}
    if (any(call.array_flags) or wanted or grads) and step.kernel is not None:
        msg = (
            f"jit: {step.name} returns a differentiable result, whose gradient needs its inputs, so they cannot be donated; call it in "
            "tape.no_grad(), call backward() inside, or donate nothing"
        )
        raise TapeValueError(msg)
    first = len(call.arrays)
    state = [*[i in wanted for i in step.values], *[i in grads for i in step.grads]]
    return (*[i for i, d in enumerate(call.array_flags) if d], *[first + n for n, d in enumerate(state) if d])
