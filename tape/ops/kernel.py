"""Ops and kernels: what one entry of the tape runs, and what its VJP runs.

An :class:`Op` is a function with its static parameters.  A :class:`Kernel` is an op at given input shapes and dtypes: its jaxpr, its
executable, and the kernels of its VJPs, each traced once and kept.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
from jax import lax

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import configuration
from tape.errors import TapeError
from tape.graph.kinds import Kind, Role, cotangent_aval, differentiable, kinds_of, varying
from tape.graph.length import bytes_of
from tape.ops import (
    covering,
    rules,  # noqa: F401 - they are entered
)
from tape.ops.building import JaxprBuilder, rebuilt
from tape.ops.jaxprs import held_by
from tape.ops.linear import Equation, flatten
from tape.ops.pullback import check_own, pullback
from tape.ops.residuals import Keep, inside, prune, pruned
from tape.ops.running import Runner
from tape.rules import table

T = TypeVar("T")


_PRESENT = (True,)  # the one cotangent of an entry with one result


class Vjp(NamedTuple):
    """The VJP of a kernel for one choice of cotangents: a kernel, where its inputs come from, and where its outputs go.

    Without a kernel there is nothing to compute: the sources are the cotangents, unchanged.
    """

    kernel: Kernel | None
    sources: tuple[int, ...]  # positions in (*inputs, *outputs, *present cotangents, *sums to add to)
    targets: tuple[int, ...]  # the inputs whose cotangents it returns


def _is_cheap(entry: Equation) -> bool:
    return table.is_cheap(entry.primitive)


class Kernel(Runner):
    """An op at given input avals; immutable but for its caches."""

    within: Mapping[int, Collection[int]] = {}  # for a result, the others that are computed of it inside, where no sweep comes by
    __slots__ = ("_cache", "_kinds", "bytes", "in_avals", "out_avals", "params", "several", "single", "transient", "tree", "visible")

    def __init__(
        self, name: str, jaxpr: jaxapi.ClosedJaxpr, tree: jax.tree_util.PyTreeDef | None, params: object = None, visible: int | None = None
    ) -> None:
        transient = any(isinstance(c, jaxapi.Tracer) for c in jaxpr.consts)
        super().__init__(name, jaxpr, transient or bool(jaxpr.effects))
        self.params = params
        self.tree = tree
        self.in_avals = tuple(v.aval for v in jaxpr.jaxpr.invars)
        self.out_avals = tuple(v.aval for v in jaxpr.jaxpr.outvars)
        self.bytes = sum(map(bytes_of, self.out_avals))
        self.single = tree is None or jax.tree.structure(0) == tree
        # The type of a tree of results that is a plain tuple or list of them.
        n = 0 if tree is None or self.single else tree.num_leaves
        self.several = next((kind for kind in (tuple, list) if n and jax.tree.structure(kind([0] * n)) == tree), None)
        # Outputs beyond the visible ones are residuals: no Variable holds them, only VJPs read them.
        self.visible = len(self.out_avals) if visible is None else visible
        self._cache: dict[Hashable, Any] = {}  # its VJPs, and the kernels made of it
        self._kinds: dict[Role, tuple[Kind, ...]] = {}
        # It closes over values of the JAX transformation that is running, so nothing may keep it beyond that.
        self.transient = transient

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        known: T | None = self._cache.get(key)
        if known is None:
            known = self._cache[key] = make()
        return known

    def kinds(self, role: Role) -> tuple[Kind, ...]:
        """Return the kinds of the outputs, for an entry of this role."""
        kinds = self._kinds.get(role)
        if kinds is None:
            kinds = self._kinds[role] = kinds_of(self.out_avals, role)
        return kinds

    def vjp(self, present: tuple[bool, ...], wanted: tuple[bool, ...], adding: tuple[bool, ...] = (), same: tuple[int, ...] = ()) -> Vjp:
        """Return the VJP for the outputs that have a cotangent (``present``), and the inputs that need one (``wanted``).

        The forward values that the rules do not read are not inputs of it, so they need not be kept.  ``adding`` tells of which inputs
        there is a sum of cotangents already, to which this one is added; ``same`` numbers for each input the first one that is the same
        value, where some are: their cotangents are added up.  Each is () where there are none.
        """
        key = (present, wanted, adding, same, table.revision(), id(configuration()))
        vjp: Vjp | None = self._cache.get(key)
        if vjp is None:
            whole = not adding and not same
            vjp = self._trace_vjp(present, wanted) if whole else self._added(self.vjp(present, wanted), present, adding, same)
            self._cache[key] = vjp
        return vjp

    def vjp_call(
        self,
        inputs: Sequence[int],
        slots: Sequence[int],
        cotangents: Sequence[int | None],
        wanted: tuple[bool, ...],
        totals: dict[Any, int] | None,
    ) -> tuple[Vjp, list[int]]:
        """Return the VJP of an entry that adds to the totals there are, and what it is called on: forward slots, cotangents and totals.

        The totals that it adds to are taken out of ``totals``: its results take their place.  Where these are None, it adds to nothing.
        """
        adding: tuple[bool, ...] = ()
        same: tuple[int, ...] = ()
        if totals is not None:
            for s in inputs:
                if s in totals:
                    adding = tuple([s in totals for s in inputs])
                    break
            if len(inputs) > 1 and len(set(inputs)) < len(inputs):
                same = tuple([inputs.index(s) for s in inputs])
                if adding:
                    adding = tuple([flag and first == i for i, (flag, first) in enumerate(zip(adding, same, strict=True))])
        present = _PRESENT if len(cotangents) == 1 else tuple([ct is not None for ct in cotangents])
        vjp = self.vjp(present, wanted, adding, same)
        values = [*inputs, *slots, *[ct for ct in cotangents if ct is not None]]
        if totals is not None and adding:
            values += [totals[s] for s, flag in zip(inputs, adding, strict=True) if flag]
            for i in vjp.targets:
                totals.pop(inputs[i], None)
        return vjp, [values[i] for i in vjp.sources]

    def _consists_of(self, key: str, are: Callable[[Equation], bool]) -> bool:
        return self._cached(key, lambda: not self.jaxpr.effects and all(map(are, flatten(self.jaxpr).entries)))

    @property
    def cheap(self) -> bool:
        """Whether computing it again costs less than keeping its result: elementwise and layout primitives only."""
        return self._consists_of("cheap", _is_cheap)

    @property
    def picks(self) -> bool:
        """Whether it is cheap, or would be if numbers that say where to slice, as in ``x[i]``, were known."""
        return self._consists_of("picks", lambda e: e.primitive.name == "dynamic_slice" or _is_cheap(e))

    @property
    def passes(self) -> bool:
        """Whether XLA may fuse it with what it reads and what reads it: it has no product of matrices, and no sum."""
        return self._consists_of("passes", lambda e: not e.primitive.name.startswith(("dot_general", "conv_general", "reduce_")))

    @property
    def convolves(self) -> bool:
        """Whether there is a convolution in it."""
        return not self._consists_of("convolves", lambda e: e.primitive.name != "conv_general_dilated")

    @property
    def brief(self) -> bool:
        """Whether computing it again takes no longer than to hand it from one program to the next: sums, products of small arrays."""
        return self.cost.small and self._consists_of(
            "brief", lambda e: _is_cheap(e) or (table.is_little(e.primitive) and not held_by(e.eqn))
        )

    def augmented(self) -> Kernel:
        """Return a kernel that also gives the costly values inside it that its VJP reads, so that they are computed once.

        It is the kernel itself where there are none (a single primitive, or elementwise ones around it).
        """
        return self._cached("augmented", self._augment)

    def _whole(self, hidden: int = 0) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Say for the VJP of everything which outputs (but for ``hidden`` ones at the end) have a cotangent, and which inputs get one."""
        shown = self.out_avals[: len(self.out_avals) - hidden]
        return (*map(differentiable, shown), *(False for _ in range(hidden))), tuple(map(differentiable, self.in_avals))

    def exposed(self) -> Kernel:
        """Return the kernel with every output visible, and in a list."""
        flat = jax.tree.structure([0] * len(self.out_avals))
        if self.visible == len(self.out_avals) and (self.single or self.tree == flat):
            return self
        return self._cached("exposed", lambda: Kernel(self.name, self.jaxpr, flat, self.params))

    def _augment(self) -> Kernel:
        if self.visible != len(self.out_avals):
            return self
        listed, slots = inside(self.jaxpr, Keep())
        costly = [s for s in slots if s not in listed.outputs]
        if not costly:
            return self
        visible = len(self.out_avals)
        tried = Kernel(self.name, rebuilt(listed, [*listed.outputs, *costly]), self.tree, self.params, visible)
        try:
            vjp = tried.vjp(*tried._whole(len(costly)))
        except Exception:  # noqa: BLE001 - a rule, or the user's, refuses some gradient that may not be asked for; a sweep that asks says so
            return self
        first = len(self.in_avals) + visible
        end = first + len(costly)
        read = [s - first for s in vjp.sources if first <= s < end]
        if not read:
            return self
        chosen = set(read)
        kept, _ = pruned(tried.jaxpr, [True] * visible + [i in chosen for i in range(len(costly))], effects=True)
        augmented = Kernel(self.name, rebuilt(kept, kept.outputs), self.tree, self.params, visible)
        # The VJP of everything is known already: of the values inside it reads those that are kept now.
        numbers = {first + s: first + i for i, s in enumerate(read)}
        sources = tuple(numbers[s] if first <= s < end else s - len(costly) + len(read) if s >= end else s for s in vjp.sources)
        key = (*augmented._whole(len(read)), (), (), table.revision(), id(configuration()))
        augmented._cache[key] = vjp._replace(sources=sources)
        return augmented

    def residuals(self) -> tuple[int, ...]:
        """Positions in (*inputs, *outputs) that the VJP of everything reads: what a later sweep needs of this entry."""
        forward = len(self.in_avals) + len(self.out_avals)
        try:
            return tuple(s for s in self.vjp(*self._whole()).sources if s < forward)
        except Exception:  # noqa: BLE001 - as above
            return tuple(range(forward))

    def stopped(self, outputs: frozenset[int] | None = None) -> Kernel:
        """Return the kernel of whose results (all, or the ``outputs``) no transformation of JAX differentiates any."""

        def fun(*args: jax.Array) -> list[Any]:
            results = enumerate(self.inline(*args))
            return [lax.stop_gradient(r) if outputs is None or i in outputs else r for i, r in results]

        def make() -> Kernel:
            return Kernel(self.name, jaxapi.trace(fun, *self.in_avals)[0], self.tree, self.params, self.visible)

        return self._cached(("stopped", outputs), make)

    def batched(self, mask: tuple[bool, ...], size: int) -> Kernel:
        """Return the kernel that maps over a new first axis of length ``size`` of the inputs in ``mask``."""

        def make() -> Kernel:
            avals = [_stacked(a, size) if m else a for a, m in zip(self.in_avals, mask, strict=True)]
            mapped = jax.vmap(self.inline, in_axes=tuple(0 if m else None for m in mask), axis_size=size)
            return Kernel(f"batched_{self.name}", jaxapi.trace(mapped, *avals)[0], self.tree)

        return self._cached(("batched", mask, size), make)

    def pull(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[bool]) -> Sequence[Any]:
        """Pull cotangents (None where there is none) back to the inputs: the mathematics of every VJP.

        What is empty takes part with zeros, though JAX writes ``x[[]]`` as a constant: whether a mask selects anything is chance.
        """
        grads = pullback(self.jaxpr, inputs, cotangents, wanted, outputs)
        whole = all(0 in a.shape for a in self.out_avals)
        missing = [g is None and w and (whole or 0 in a.shape) for g, w, a in zip(grads, wanted, self.in_avals, strict=True)]
        if not any(missing):
            return grads
        nothing = next(ct for ct in cotangents if ct is not None).real.sum()  # of a batch of cotangents there is a batch of zeros
        return [lax.broadcast(nothing.astype(x.dtype), x.shape) if m else g for x, g, m in zip(inputs, grads, missing, strict=True)]

    def _trace_vjp(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Vjp:
        n_in, n_out = len(self.in_avals), len(self.out_avals)
        targets: list[int] = []

        def run(*args: jax.Array) -> list[Any]:
            further = iter(args[n_in + n_out :])
            cts = [next(further) if p else None for p in present]
            grads = self.pull(args[:n_in], args[n_in : n_in + n_out], cts, wanted)
            targets[:] = [i for i, grad in enumerate(grads) if grad is not None]
            return [grads[i] for i in targets]

        try:
            jaxpr, _ = jaxapi.trace_quickly(run, *self.in_avals, *self.out_avals, *self._cotangents(present))
        except TapeError as error:  # of a primitive inside, of which the user may never have heard
            error.add_note(f"raised by the derivative of {self.name}")
            raise
        return self._vjp_of(jaxpr, targets)

    def _cotangents(self, present: tuple[bool, ...]) -> list[Any]:
        return [cotangent_aval(a) for a, p in zip(self.out_avals, present, strict=True) if p]

    def _added(self, vjp: Vjp, present: tuple[bool, ...], adding: tuple[bool, ...], same: tuple[int, ...]) -> Vjp:
        """Add what a VJP gives to the sums that there are, and for one value to each other."""
        into = JaxprBuilder()
        values = [into.input(aval) for aval in (*self.in_avals, *self.out_avals, *self._cotangents(present))]
        read = [values[i] for i in vjp.sources]
        terms = read if vjp.kernel is None else into.inline(vjp.kernel.jaxpr, read)
        sums: dict[int, Any] = {i: into.input(cotangent_aval(a)) for i, a in enumerate(self.in_avals) if adding and adding[i]}
        firsts = [same[i] if same else i for i in vjp.targets]
        for first, term in zip(firsts, terms, strict=True):
            sums[first] = into.add(sums[first], term) if first in sums else term
        targets = sorted(set(firsts))
        return self._vjp_of(into.closed([sums[i] for i in targets]), targets)

    def _vjp_of(self, jaxpr: jaxapi.ClosedJaxpr, targets: list[int]) -> Vjp:
        """Make the VJP that a jaxpr of inputs, outputs, cotangents and sums computes."""
        n_in, n_out = len(self.in_avals), len(self.out_avals)
        if not targets:
            return Vjp(None, (), ())
        jaxpr, sources = prune(jaxpr)
        if not self.transient:
            check_own(self.name, jaxpr)
        passed = _passed_on(jaxpr)
        if passed is not None and all(sources[i] >= n_in + n_out for i in passed):
            return Vjp(None, tuple(sources[i] for i in passed), tuple(targets))
        return Vjp(Kernel(f"vjp_{self.name}", jaxpr, jax.tree.structure([0] * len(targets))), sources, tuple(targets))


def _stacked(aval: Any, size: int) -> Any:
    """Return the type of so many values of one, stacked."""
    if not varying(aval):
        return jaxapi.ShapedArray((size, *aval.shape), aval.dtype)
    return jaxapi.trace(lambda x: jax.lax.broadcast(x, (size,)), aval)[0].out_avals[0]


def _passed_on(closed: jaxapi.ClosedJaxpr) -> tuple[int, ...] | None:
    """Return which inputs the outputs are, for a jaxpr that computes nothing; None for any other."""
    jaxpr = closed.jaxpr
    positions = {v: i for i, v in enumerate(jaxpr.invars)}
    if jaxpr.eqns or not all(isinstance(v, jaxapi.Var) and v in positions for v in jaxpr.outvars):
        return None
    return tuple(positions[v] for v in jaxpr.outvars)


class Op:
    """A function of arrays with its static parameters bound; ``kernel(avals)`` specialises it."""

    __slots__ = ("__weakref__", "_by_kinds", "_kernels", "forms", "fun", "name", "params")

    def __init__(self, name: str, fun: Callable[..., Any], params: object = None) -> None:
        self.name = name
        self.fun = fun
        self.params = params
        self._kernels: dict[Hashable, Kernel] = {}
        self._by_kinds: dict[Hashable, Kernel] = {}
        # What an entry of it is on inputs of some kinds (tape.recording.entering): its kernel, and the kinds of its results.
        self.forms: dict[Hashable, tuple[Kernel, tuple[Kind, ...], bool]] = {}

    def kernel(self, avals: tuple[Any, ...]) -> Kernel:
        """Return the kernel for inputs of these shapes and dtypes, tracing the function at their first meeting."""
        key = (avals, configuration(), jaxapi.named_axes())  # settings decide on dtypes, precisions, promotion ...
        kernel = self._kernels.get(key)
        if kernel is None:
            jaxpr, shapes = jaxapi.trace_quickly(self.fun, *avals)
            kernel = Kernel(self.name, covering.without(jaxpr), jax.tree.structure(shapes), self.params)
            if not kernel.transient:
                self._kernels[key] = kernel
                _CACHED.append((weakref.ref(self), key))
                while len(_CACHED) > KERNEL_LIMIT:
                    op, old = _CACHED.popleft()
                    _forget(op(), old)
        return kernel

    def adopt(self, kernel: Kernel) -> None:
        """Take a kernel that was traced already."""
        self._kernels[kernel.in_avals, configuration(), jaxapi.named_axes()] = kernel

    def kernel_of(self, kinds: tuple[Kind, ...]) -> Kernel:
        """:meth:`kernel`, by kinds, which are compared by identity: shapes and dtypes are slow to hash."""
        key = (kinds, id(configuration()), jaxapi.named_axes())  # there is one configuration for equal ones, for good
        kernel = self._by_kinds.get(key)
        if kernel is None:
            kernel = self.kernel(tuple([k.aval for k in kinds]))
            if not kernel.transient:
                self._by_kinds[key] = kernel
        return kernel

    def __repr__(self) -> str:
        return f"Op({self.name})"


# Kernels in the order of their making: programs of ever new shapes must not fill the memory with executables.  What is on the trie keeps
# its kernels, so that only a structure that is new again traces one of the oldest anew.
KERNEL_LIMIT = 4096
_CACHED: deque[tuple[weakref.ref[Op], Hashable]] = deque()


def _forget(op: Op | None, key: Hashable) -> None:
    if op is not None:
        kernel = op._kernels.pop(key, None)
        for kinds in [kinds for kinds, known in list(op._by_kinds.items()) if known is kernel]:
            op._by_kinds.pop(kinds, None)
        op.forms.clear()


_BY_KEY: Bounded[Hashable, Op] = Bounded("ops", 1 << 14)


def intern_op(key: Hashable, make: Callable[[], Op], ops: Bounded[Hashable, Op] = _BY_KEY) -> Op:
    """Return the op known under ``key``, made at the first meeting: one that is made anew would make a new structure."""
    op = ops[key] = ops.get(key) or make()  # the newest, also if it is known
    return op
