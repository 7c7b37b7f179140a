"""Variables: the handles that users hold.

A Variable's value is immutable, the handle can be rebound (``v.value = x``, ``v[i] = y``).  Operators, methods and indexing record; what
needs the value (``float``, printing, ``.value``) looks at it and so runs what is pending.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from tape import layout
from tape.errors import (
    GradientDtypeError,
    GradientShapeError,
    TapeAttributeError,
    TapeTypeError,
    TapeValueError,
    check_callable,
    check_flag,
    taking,
    unknown_keyword,
)
from tape.graph import boundary
from tape.graph.constants import ARRAYS, note_type, refused
from tape.graph.kinds import Place, differentiable, leaf_kind
from tape.graph.scope import LOCAL, note_given
from tape.graph.segment import Handle, end_of, extra_of, hooks_at, is_leaf, node_of
from tape.graph.watcher import NOBODY
from tape.hooking.handles import RemovableHandle
from tape.mirrored.detachment import detach, detaching
from tape.ops.kernel import Kernel, Op
from tape.programs.handing import array_of
from tape.programs.program import look, taken
from tape.recording import record
from tape.recording.entering import made_leaf
from tape.recording.record import leaf
from tape.sweeps import differentiation, emission
from tape.sweeps.seeds import describe
from tape.variables import copies, cuts, methods, pytrees
from tape.variables.conversion import as_array
from tape.variables.placement import Placed


def _to_array(value: object, where: str) -> jax.Array:
    """Return a JAX array (or tracer) of anything that a Variable can hold; NumPy arrays are copied."""
    if isinstance(value, Handle):
        return taken(value)  # type: ignore[no-any-return]
    if isinstance(value, jax.Array):
        return value
    try:
        return array_of(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise refused(where, value, e) from e


class Variable(Placed):
    """A value on the tape.

    Args:
        value: a number, nested lists, a NumPy array (copied), a JAX array, or a Variable (its value).
        requires_grad: whether gradients are computed for it; None: True for floating and complex dtypes, else False.
        name: shown in messages and pictures.

    Raises:
        TapeTypeError: ``requires_grad=True`` for an integer or boolean dtype, or no array can be made of ``value``.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0], name="x")
        >>> y = (x * x).sum()
        >>> y.backward()
        >>> x.grad
        Variable([2., 4.], dtype=float32)

    """

    __slots__ = ()

    __array_priority__ = 1000

    @taking("Variable")
    def __init__(self, value: object, *, requires_grad: bool | None = None, name: str | None = None) -> None:
        array = _to_array(value, "Variable")
        able = differentiable(array)
        if requires_grad is None:
            requires_grad = able
        check_flag("Variable", "requires_grad", requires_grad)
        if requires_grad and not able:
            msg = (
                f"Variable: requires_grad=True needs a floating or complex dtype, got shape {array.shape}, dtype {array.dtype}; convert "
                "the value, for instance with .astype('float32')"
            )
            raise TapeTypeError(msg)
        _check_name(name)
        self._cell = [array]
        self._segment = None
        self._place = Place(-1, leaf_kind(array, requires_grad=bool(requires_grad)))
        self._extra = None
        boundary.made(self)
        if name is not None:
            self.name = name
        if LOCAL.scope.notes is not None and isinstance(value, Handle):
            LOCAL.scope.notes.detached(value, self)

    @property
    def requires_grad(self) -> bool:
        """Whether a sweep computes a gradient for it."""
        return self._kind.requires_grad

    @requires_grad.setter
    def requires_grad(self, flag: bool) -> None:
        msg = f"requires_grad: the flag of a Variable ({describe(self)}) is not assigned to; use x.requires_grad_({flag!r}), or x.detach()"
        raise TapeAttributeError(msg)

    @property
    def is_leaf(self) -> bool:
        """Whether no differentiable entry produced it."""
        if LOCAL.scope.trace is not NOBODY:
            LOCAL.scope.trace.ask(self, leaf=True)
        return is_leaf(self)

    @property
    def op(self) -> Op | Kernel | None:
        """The op that produced it, None for a leaf."""
        if self.is_leaf or self._segment is None:
            return None
        return methods.producer(self._segment.state, self._place.slot)

    @property
    def name(self) -> str | None:
        """Name shown in messages."""
        return None if self._extra is None else self._extra.name

    @name.setter
    def name(self, name: str | None) -> None:
        _check_name(name)
        extra_of(self).name = name

    def __hash__(self) -> int:
        return id(self)

    # -- the value --------------------------------------------------------------------------------------------------

    @layout.Value
    def value(self) -> jax.Array:
        """The ``jax.Array``; looking at it runs what is pending.

        Assigning replaces the value of a leaf by one of the same shape and dtype; entries recorded before keep the old one.
        """
        note_given(self)
        array = as_array(look(self))
        if array.__class__ not in ARRAYS:
            note_type(array)
            array = LOCAL.scope.trace.leave(self, array)
        return array

    @value.setter
    def value(self, value: object) -> None:
        array = self._assignable(value)
        boundary.note_origin(self)
        cuts.hold(self, array, requires_grad=self._place.kind.requires_grad, of=value)

    def _assignable(self, value: object) -> jax.Array:
        """Return what may be assigned to ``value``, as an array."""
        if not self.is_leaf:
            msg = f"value: cannot assign to a Variable that an op produced ({describe(self)}); detach() it first, or assign to the leaf"
            raise TapeValueError(msg)
        array = _to_array(value, "value")
        if array.shape != self.shape:
            msg = f"value: cannot assign shape {array.shape} to a Variable of shape {self.shape}; make a new tape.Variable"
            raise TapeValueError(msg)
        if array.dtype != self.dtype:
            repair = f"cast it with .astype({str(self.dtype)!r})"
            msg = f"value: cannot assign dtype {array.dtype} to a Variable of dtype {self.dtype}; {repair}"
            raise TapeTypeError(msg)
        boundary.check_no_leak("value", self, array)
        return array

    # -- gradients --------------------------------------------------------------------------------------------------

    @layout.Gradient
    def grad(self) -> Variable | None:
        """The gradient that sweeps have gathered (a Variable), or None.

        They leave it with leaves that require grad, and what has called :meth:`retain_grad`; reading that of another Variable through which
        a sweep has gone gives a :class:`tape.errors.TapeWarning`.

        Assigning None clears it; an array or Variable of the same shape and dtype replaces it, and is the seed of a non-leaf root.
        """
        if LOCAL.scope.trace is not NOBODY:
            LOCAL.scope.trace.read_grad(self)
        gradient = None if self._extra is None else self._extra.grad
        if gradient is None and self._segment is not None:
            cuts.hint_at_retaining(self, self._segment)
        return gradient

    @grad.setter
    def grad(self, gradient: object) -> None:
        if gradient is None:
            trace, extra = LOCAL.scope.trace, self._extra
            if trace is not NOBODY:
                trace.clear_grad(self)
            if extra is not None:
                extra.grad, extra.assigned = None, False
            return
        if not self.requires_grad:
            msg = f"grad: a Variable that does not require grad ({describe(self)}) takes no gradient; make it with requires_grad=True"
            raise TapeValueError(msg)
        new = emission.share(gradient) if isinstance(gradient, Handle) else leaf(_to_array(gradient, "grad"))
        if new.shape != self.shape:
            msg = f"grad: cannot assign a gradient of shape {new.shape} to a Variable of shape {self.shape}"
            raise GradientShapeError(msg)
        if new.dtype != self.dtype:
            repair = f"cast it with .astype({str(self.dtype)!r})"
            msg = f"grad: cannot assign a gradient of dtype {new.dtype} to a Variable of dtype {self.dtype}; {repair}"
            raise GradientDtypeError(msg)
        boundary.check_no_leak("grad", self, new)
        extra = extra_of(self)
        extra.grad, extra.assigned = new, True

    def zero_grad(self, **options: object) -> None:
        """Forget the gathered gradient (set it to None); takes no options (PyTorch's ``set_to_none`` is refused by name)."""
        if options:
            raise unknown_keyword("zero_grad", *options)
        self.grad = None

    @record.repeating(1)
    @taking("backward")
    def backward(
        self,
        grad: object = None,
        *,
        inputs: Variable | Sequence[Variable] | None = None,
        ignore: Variable | Sequence[Variable] = (),
        retain_graph: bool | None = None,
        create_graph: bool = False,
    ) -> None:
        """Sweep back from this Variable; see :func:`tape.backward`."""
        seeds = None if grad is None else [grad]
        differentiation.backward(self, seeds, inputs=inputs, ignore=ignore, retain_graph=retain_graph, create_graph=create_graph)

    def requires_grad_(self, requires_grad: bool = True) -> Variable:
        """Set the flag of a leaf and return self."""
        check_flag("requires_grad_", "requires_grad", requires_grad)
        kind = self._place.kind
        if requires_grad and not differentiable(kind.aval):
            msg = f"requires_grad_: needs a floating or complex dtype, got {describe(self)}; make another one with .astype('float32')"
            raise TapeTypeError(msg)
        if requires_grad and kind.requires_grad:
            return self
        if kind.requires_grad and not self.is_leaf:
            msg = f"requires_grad_(False): only a leaf's flag can be cleared ({describe(self)} was produced by an op); use detach()"
            raise TapeValueError(msg)
        LOCAL.scope.trace.write(self)
        boundary.note_origin(self)
        if not (made_leaf(self) if requires_grad else cuts.made_constant(self)):
            cuts.hold(self, look(self), requires_grad=requires_grad, of=self)
            boundary.made(self)
        return self

    def retain_grad(self) -> None:
        """Have sweeps leave the gradient of this non-leaf in ``.grad``, adding over sweeps as leaves do."""
        if not self.requires_grad:
            msg = f"retain_grad: a Variable that does not require grad ({describe(self)}) gets no gradient; call requires_grad_() before"
            raise TapeValueError(msg)
        if self._segment is None or cuts.retain_cut(self, self._segment):
            return
        refs = self._segment.retained.setdefault(self._place.slot, [])
        if all(ref() is not self for ref in refs):
            refs.append(weakref.ref(self))

    @detaching
    def detach(self) -> Variable:
        """Return a constant Variable of the same value, cut off from the tape."""
        return detach(self)  # type: ignore[no-any-return]

    def unchain(self) -> None:
        """Cut this Variable from its past: it becomes a leaf that requires grad as before.

        Every sweep from now on ends here, also one that comes by what was computed from it before.  (The derivatives of a JAX
        transformation that is running do so for later uses only.)

        Raises:
            TapeRuntimeError: a function is traced, and the Variable was computed outside of it.

        Example:
            >>> import tape
            >>> x = tape.Variable(3.0)
            >>> y = x * x
            >>> z = y * y
            >>> y.unchain()
            >>> z.backward()
            >>> x.grad is None, float(y.grad)
            (True, 18.0)

        """
        cuts.unchain(self)

    def unchain_backward(self) -> None:
        """Cut everything before this Variable: it becomes a leaf, and sweeps from now on end at all results that led to it.

        For truncated backpropagation through time: after ``loss.unchain_backward()``, or that of a state, what was kept for sweeps through
        earlier steps is freed.  Variables between the leaves and this one keep their values; a sweep that comes to one of them leaves its
        gradient there if it has ``retain_grad()``, or is asked for by ``inputs=`` or :func:`tape.gradients`.

        Raises:
            TapeRuntimeError: a function is traced, and the Variable was computed outside of it.

        Example:
            >>> import tape
            >>> w = tape.Variable(2.0)
            >>> state = w * w
            >>> state.unchain_backward()
            >>> (state * w).backward()
            >>> float(w.grad)
            4.0

        """
        cuts.unchain(self, backward=True)

    def register_hook(self, hook: Callable[[Variable], Any]) -> RemovableHandle:
        """Call ``hook(gradient)`` with this Variable's total gradient in every sweep; it may return a replacement, or write into it.

        Returns:
            A handle whose ``remove()`` takes the hook away.

        """
        check_callable("register_hook", hook, "the hook must be callable")
        if not self.requires_grad:
            msg = f"register_hook: a Variable that does not require grad ({describe(self)}) gets no gradient; call requires_grad_() before"
            raise TapeValueError(msg)
        segment, slot = self._segment, self._place.slot
        end = node_of(self) if segment is None else end_of(segment, slot)
        if end is None and segment is not None:
            extra = extra_of(self)
            hooks = segment.hooks[slot] = extra.hooks = hooks_at(self)
        else:
            hooks = end.hooks  # type: ignore[union-attr]
        return RemovableHandle(hooks, LOCAL.scope.trace.watched(self, hooks, hook))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Variable], Any]) -> RemovableHandle:
        """Call ``hook(variable)`` after a sweep has set this leaf's ``.grad``; returns a handle with ``remove()``."""
        check_callable("register_post_accumulate_grad_hook", hook, "the hook must be callable")
        if not (self.requires_grad and self.is_leaf):
            msg = f"register_post_accumulate_grad_hook: only a leaf that requires grad gathers .grad ({describe(self)}); use register_hook"
            raise TapeValueError(msg)
        hooks = extra_of(self).post_hooks
        LOCAL.scope.trace.register(self, hooks)
        return RemovableHandle(hooks, hook)

    # -- copies -----------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return copies.shallow_copy(self)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copies.deep_copy(self, memo)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return copies.reduced(self)


def _check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        msg = f"Variable: name must be a string, got {type(name).__name__}"
        raise TapeTypeError(msg)


@taking("constant")
def constant(value: object, *, name: str | None = None) -> Variable:
    """Return a Variable that does not require grad.

    Args:
        value: as for :class:`Variable`.
        name: shown in messages and pictures.

    Example:
        >>> import tape
        >>> tape.constant([1.0, 2.0]).requires_grad
        False

    """
    return Variable(value, requires_grad=False, name=name)


pytrees.register(Variable)
record.connect(Variable)
