"""Contexts: what the forward of a ``tape.Function`` leaves for its backward.

A context refers to no Variable and to no segment that keeps it, so that dropping Variables frees it.  What the forward computed is not
recorded: differentiating a backward through what it saved raises, unless it is an input or an output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from tape.errors import TapeAttributeError, TapeTypeError
from tape.functions.entries import entry_op, record_entry
from tape.functions.kept import Kept, Tree
from tape.functions.returned import checked_gradients, checked_tangents
from tape.functions.rows import batched
from tape.functions.tracking import ARRAYS, is_variable
from tape.functions.unrecorded import unrecorded
from tape.graph import boundary
from tape.graph.scope import LOCAL, in_scope, within
from tape.graph.segment import Handle, Segment
from tape.graph.trie import RECORD, SWEEP
from tape.hooking.packing import Packed
from tape.mirrored.detachment import detach
from tape.programs.program import look
from tape.recording import record
from tape.sweeps import emission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Context"]


_LOOKED = (
    "{0} computed it of the value of a Variable outside the tape (by .value, raw jax.numpy or NumPy), so a second derivative through "
    "it would be lost; compute it with tape.numpy in {0}.backward, or say by tape.constant(...) that it is a constant"
)


class _Call(NamedTuple):
    """A call by a sweep."""

    segment: Segment
    linear: bool  # it is differentiated by its seeds only
    opened: dict[int, Any]  # what was unpacked, by the id of what it was packed in


class Context:
    """What a forward leaves for its backward; besides :meth:`save_for_backward` it takes free attributes.

    Names without an underscore, but for those here, are the user's.

    Attributes:
        needs_input_grad: for each array argument, positional ones in order, then those of keywords, whether its gradient is wanted.  Under
            ``jax.jit`` and ``tape.jit`` it is whether JAX differentiates by the argument while it traces.

    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_avals",
        "_call",
        "_caller",
        "_constants",
        "_free",
        "_function",
        "_materialize",
        "_outputs",
        "_parts",
        "_places",
        "_saved",
        "_traced",
        "needs_input_grad",
    )

    def __init__(self, function: Any, needs_input_grad: tuple[bool, ...], avals: tuple[Any, ...], parts: Any) -> None:
        self._function = function
        self._avals = avals  # shapes and dtypes of the array arguments, and how they lie in the arguments
        self._parts = parts
        self._outputs: tuple[Any, ...] = ()  # shapes and dtypes
        self._places: tuple[int, ...] | None = None  # which of them are results of the entry; None for all
        self._saved: Tree | None = None
        self._free: dict[str, Tree] = {}
        self._constants: list[Any] = []
        self._materialize = False
        self._traced = False  # JAX differentiates what this context computes
        self._call: _Call | None = None  # while a sweep calls
        self._caller = boundary.Caller(_LOOKED, function.__name__, rebinds_names=True)
        self.needs_input_grad = needs_input_grad

    # -- for the forward ----------------------------------------------------------------------------------------------

    def save_for_backward(self, *values: Any) -> None:
        """Keep values for the backward, where :attr:`saved` returns them.

        Args:
            values: Variables, arrays (NumPy's are copied), anything else, and pytrees of them.  Inputs and outputs can be differentiated in the
                backward; what the forward computed on the way is not recorded, and is a constant there.

        """
        self._saved = Tree(values)

    def set_materialize_grads(self, value: bool) -> None:
        """Have the backward see zeros instead of None for outputs without a gradient (and a ``jvp`` for inputs without a tangent).

        Raises:
            TapeTypeError: ``value`` is no bool.

        """
        if not isinstance(value, bool):
            msg = f"set_materialize_grads: expected True or False, got {type(value).__name__}"
            raise TapeTypeError(msg)
        self._materialize = value

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Have outputs be constants: they do not require grad, and the backward sees None for them.

        Raises:
            TapeTypeError: an output is no Variable.

        """
        for i, x in enumerate(outputs):
            if not isinstance(x, Handle):
                msg = f"mark_non_differentiable: output {i} must be a Variable that forward returns, got {type(x).__name__}"
                raise TapeTypeError(msg)
        self._constants.extend(outputs)

    # -- for the backward ---------------------------------------------------------------------------------------------

    @property
    def saved(self) -> tuple[Any, ...]:
        """What :meth:`save_for_backward` kept."""
        return () if self._saved is None else self._restored(self._saved, "ctx.saved")

    def __getattr__(self, name: str) -> Any:
        found = None if name in _SLOTS else self._free.get(name)
        if found is None:
            msg = f"the context of {self._function.__name__} has no attribute {name!r}; set it in forward, or use ctx.save_for_backward and ctx.saved"
            raise TapeAttributeError(msg)
        return self._restored(found, f"ctx.{name}")

    def _restored(self, kept: Tree, name: str) -> Any:
        call = self._call
        segment = None if call is None else call.segment
        leaves = [
            x.variable(segment, self._cell(x.cell)) if x.__class__ is Kept else self._cell(x)[0] if x.__class__ is Packed else x
            for x in kept.leaves
        ]
        if LOCAL.scope.mode == RECORD and call is not None:
            for i, x in enumerate(leaves):
                if isinstance(x, Handle) and x._place.kind.unrecorded:
                    leaves[i] = detach(x) if call.linear else unrecorded(x, self._intermediate(name + kept.path(i)))
        return tuple(leaves) if kept.tree is None else jax.tree.unflatten(kept.tree, leaves)

    def _cell(self, kept: Any) -> Any:
        """Return a cell as it was kept; what hooks packed in its place is unpacked once while a sweep calls."""
        if kept.__class__ is not Packed:
            return kept
        if self._call is None:
            return kept.opened()
        opened = self._call.opened
        found = opened.get(id(kept))
        if found is None:
            found = opened[id(kept)] = kept.opened()
        return found

    def _intermediate(self, what: str) -> str:
        name = self._function.__name__
        return (
            f"{what} of {name} was computed in {name}.forward, which does not record, so a second derivative through it would be lost; save the "
            "inputs and compute it again in backward, or return it from forward as a further output and save that"
        )

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _freeze(self, segment: Segment, results: dict[int, Any]) -> None:
        """Give up references to Variables and to the segment that will hold this context, so that dropping its Variables frees it.

        Saved outputs (``results`` by the id of their cell) become the function's results, so that second derivatives reach them.
        """
        self._constants = []
        if self._saved is not None:
            self._saved.keep(segment, results)
        if self.__dict__:
            self._freeze_attributes(segment, results)

    def _freeze_attributes(self, segment: Segment, results: dict[int, Any]) -> None:
        for name, value in list(self.__dict__.items()):
            tree = Tree(value)
            if tree.keep(segment, results):
                self._free[name] = tree
                del self.__dict__[name]

    def _packed(self, packing: Any) -> list[tuple[Tree, list[Any]]]:
        """Return what is saved, and what hooks for saved values make of it."""
        return [(tree, tree.packed(packing)) for tree in (self._saved, *self._free.values()) if tree is not None]

    # -- sweeping -----------------------------------------------------------------------------------------------------

    def _sweep(self, segment: Segment, cotangents: Sequence[Any]) -> list[Any]:
        """Call the user's backward; return one gradient (or None) per array argument."""
        found: list[Any] = _called(self, segment, self._swept, segment, cotangents)
        return found

    def _swept(self, segment: Segment, cotangents: Sequence[Any]) -> list[Any]:
        assert self._call is not None, "a sweep calls"
        if (
            self._call.linear
            and self._function.jvp is not None
            and any(ct is not None and ct._place.kind.requires_grad for ct in cotangents)
        ):
            return self._pull_linear(segment, cotangents)
        return self._pull(cotangents)

    def _sweep_rows(self, segment: Segment, cotangents: list[Any], batch: int) -> Sequence[Any]:
        """:meth:`_sweep` for each row of stacked cotangents."""
        return _swept_rows(self, self, segment, segment, cotangents, batch)

    def _held(self) -> list[Any]:
        """Return the Variables that are kept here."""
        trees = (self._saved, *self._free.values())
        kept = [x for tree in trees if tree is not None for x in tree.leaves if x.__class__ is Kept]
        segment = None if self._call is None else self._call.segment
        return [x.variable(segment, self._cell(x.cell)) for x in kept]

    def _pull(self, cotangents: Sequence[Any]) -> list[Any]:
        """Call the user's backward with what it asked for."""
        cts = list(cotangents)
        if self._places is not None:
            cts = [None] * len(self._outputs)
            for i, ct in zip(self._places, cotangents, strict=True):
                cts[i] = ct
        if self._materialize:
            cts = [emission.zeros_like(aval) if ct is None else ct for ct, aval in zip(cts, self._outputs, strict=True)]
        return checked_gradients(self._function, self._function.backward(self, *cts), self._avals, self._parts)

    def _push(self, tangents: Sequence[Any]) -> list[Any]:
        """Call the user's jvp; return one tangent (or None) per result of the entry."""
        given = tangents
        if self._materialize:
            given = [emission.zeros_like(aval) if t is None else t for t, aval in zip(tangents, self._avals, strict=True)]
        found = checked_tangents(self._function, self._function.jvp(self, *given), self._outputs)
        return found if self._places is None else [found[i] for i in self._places]

    def _once(self, backward: Callable[..., Any], gradients: Sequence[Any]) -> Any:
        """Call a backward that is not to be differentiated."""
        mode = LOCAL.scope.mode
        with within(mode=SWEEP if mode == RECORD else mode):
            returned = backward(self, *gradients)
        name = f"{self._function.__name__}.backward"
        reason = (
            f"{name} is once_differentiable, so a second derivative through it would be lost; compute it by means of tape.numpy and take the "
            "decorator away, or .detach() the gradient to use it as a constant"
        )

        def mark(x: Any) -> Any:
            if isinstance(x, ARRAYS) and (self._caller.looked or self._traced):
                x = record.constant(x)
            elif not isinstance(x, Handle):
                return x
            kind = x._place.kind
            if not (kind.requires_grad or kind.unrecorded or self._traced):
                return x  # a constant
            # What JAX traces, it may differentiate, whatever the mode of the sweep.
            return unrecorded(x, reason) if mode == RECORD or LOCAL.scope.trace.capturing or boundary.is_traced(x) else x

        return jax.tree.map(mark, returned, is_leaf=is_variable)

    def _pull_linear(self, segment: Segment, cotangents: Sequence[Any]) -> list[Any]:
        """Call the user's backward on constants, and record that the result depends on the cotangents as the transpose of the user's jvp says.

        The rest of what the backward computes is not recorded: nothing but the seeds of this sweep is differentiated by.
        """
        found = self._pull([None if ct is None else _constant(ct) for ct in cotangents])
        present = [i for i, ct in enumerate(cotangents) if ct is not None]
        returned = [i for i, g in enumerate(found) if g is not None]
        if returned:
            name = f"{self._function.__name__}.backward"
            op = entry_op(self._function, name, len(present), len(present), len(returned))
            made = record_entry(op, [*[cotangents[i] for i in present], *[found[i] for i in returned]])
            target = made[0]._segment
            target.functions[made[0]._place.slot] = _Pushed(self, None if target is segment else segment, present, returned)
            for i, g in zip(returned, made, strict=True):
                found[i] = g
        return found


_SLOTS = frozenset(Context.__slots__)


def _called(context: Context, segment: Segment, call: Callable[..., Any], *args: Any) -> Any:
    """Return ``call(*args)``, which calls the user's Python for a sweep of ``segment``."""
    before, scope = context._call, LOCAL.scope
    context._call = _Call(segment, scope.linear, {} if before is None else before.opened)
    try:
        return in_scope(scope.but(caller=context._caller, linear=False), call, *args)
    finally:
        context._call = before
        if context.__dict__:  # a Variable of the sweep that was put there would keep this segment by way of its own
            context._freeze_attributes(segment, {})


class _Pushed:
    """The context of an entry that stands for the sweep of another one, linear in its cotangents: its own backward is the user's jvp."""

    def __init__(self, context: Context, segment: Segment | None, present: list[int], returned: list[int]) -> None:
        self._context = context
        self._segment = segment  # None for the one that keeps this
        self._present = present
        self._returned = returned

    def _packed(self, packing: Any) -> Sequence[Any]:  # noqa: ARG002 - what is saved is the other one's
        """Return what is saved here."""
        return ()

    def _sweep(self, segment: Segment, cotangents: Sequence[Any]) -> list[Any]:
        """Call the user's jvp; return a tangent (or None) for each cotangent that there was, and hand on the tangents given."""
        context = self._context
        tangents: list[Any] = [None] * len(context._avals)
        for i, t in zip(self._returned, cotangents, strict=True):
            tangents[i] = t
        found = _called(context, self._segment or segment, context._push, tangents)
        return [*[found[i] for i in self._present], *cotangents]

    def _sweep_rows(self, segment: Segment, cotangents: list[Any], batch: int) -> Sequence[Any]:
        """:meth:`_sweep` for each row of stacked cotangents."""
        return _swept_rows(self, self._context, segment, self._segment or segment, cotangents, batch)


def _swept_rows(swept: Any, context: Context, segment: Segment, own: Segment, cotangents: list[Any], batch: int) -> Sequence[Any]:
    """Sweep what belongs to ``context``, whose own segment is ``own``: for all rows at once, or where they must be seen one by one, for each."""

    def sweep(cts: list[Any]) -> Sequence[Any]:
        return swept._sweep(segment, cts)  # type: ignore[no-any-return]

    def all_rows() -> Sequence[Any]:
        before = dict(context.__dict__), dict(context._free)
        held = context._held()
        marks = LOCAL.scope.mode == RECORD and any(v._place.kind.unrecorded for v in held)  # the entry of all rows would lose why
        found = None if marks else batched(f"{context._function.__name__}.backward", sweep, held, cotangents, context._caller)
        if found is not None and all(map(_same, before, (context.__dict__, context._free))):
            return found
        context.__dict__.clear()  # what it keeps from one row for the next
        context.__dict__.update(before[0])
        context._free = before[1]
        return emission.rows(batch, cotangents, sweep)

    if LOCAL.scope.linear:
        return emission.rows(batch, cotangents, sweep)
    rows: Sequence[Any] = _called(context, own, all_rows)
    return rows


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(before[key] is after[key] for key in after)


def _constant(variable: Any) -> Any:
    """Return a constant of the same value, by which a JAX transformation that is running may still differentiate."""
    trace = LOCAL.scope.trace
    if not trace.capturing and not boundary.is_traced(variable):
        return detach(variable)
    made = record.leaf(look(variable))
    trace.adopt(made._cell)
    return made
