"""Op hooks: objects that see every op, when it is recorded and when it is swept.

The hooks that are active in a thread are its :class:`Observer`.  Recording asks it first (:func:`tape.recording.record.record`), and sweeps
are planned with a step before and one after each entry's VJP, where the hooks stand (:mod:`tape.sweeps.plan`, :mod:`tape.sweeps.emission`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar

from tape.errors import TapeTypeError
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, Segment
from tape.graph.trees import variables_in
from tape.graph.trie import State
from tape.hooking.handles import calling, replacements
from tape.modes import Mode
from tape.recording import record
from tape.recording.template import ARRAY, fill


class SeenOp:
    """One entry, as op hooks are told of it.

    Attributes:
        name: what the op is called: ``"tanh"``, or the name of the ``tape.Function`` or of the function that was lifted or compiled.
        params: its static parameters by name.
        where: file and line of the user's code that recorded it; None where there is none.  For an entry that was recorded while no hook
            was active, it is the line that was first to record the same ops up to this one.  In a function that ``interop.lift`` takes
            apart (``inline=True``), it is the line of that function's code.

    """

    __slots__ = ("_params", "name", "where")

    def __init__(self, name: str, params: Iterable[tuple[str, object]] | None, where: tuple[str, int] | None) -> None:
        self.name = name
        self._params = params
        self.where = where

    @property
    def params(self) -> dict[str, Any]:
        """Its static parameters by name."""
        return {name: fill(template, itertools.repeat(ARRAY)) for name, template in self._params or ()}

    @property
    def scope(self) -> str:
        """The ``jax.named_scope`` of an entry in a function that ``interop.lift`` takes apart, with slashes; "" elsewhere."""
        return getattr(self.where, "scope", "")

    def __str__(self) -> str:
        return self.name if self.where is None else f"{self.name}, recorded at {self.where[0]}:{self.where[1]}"

    def __repr__(self) -> str:
        return f"<op {self}>"


class OpHook:
    """Base class of hooks that see every op: override what is of interest, and enter it by ``with``, or several by :func:`tape.hooks`.

    Each method is called once for each entry of the tape, ``forward_`` ones when it is recorded, ``backward_`` ones in every sweep that
    reaches it.  What sweeps and hooks record themselves is not seen when it is recorded.  Functions that take functions (``scan``,
    ``checkpoint``) are one op; a :class:`tape.Function` is one around those of its forward.  In a function that ``jax.jit`` traces, hooks
    run when it is traced.

    Attributes:
        traceable: whether the hook does its work on values that are known only when a compiled program runs.  If so, a function made by
            :func:`tape.jit` is traced with the hook in it; otherwise it runs uncompiled while the hook is active.

    Example:
        >>> import tape
        >>> class Names(tape.OpHook):
        ...     def forward_postprocess(self, op, inputs, outputs):
        ...         print("forward", op.name, [v.shape for v in outputs])
        ...
        ...     def backward_postprocess(self, op, input_grads):
        ...         print("backward", op.name, [g is not None for g in input_grads])
        >>> x = tape.Variable([1.0, 2.0])
        >>> with Names():
        ...     (x * x).sum().backward()
        forward multiply [(2,)]
        forward sum [()]
        backward sum [True]
        backward multiply [True, True]

    """

    traceable: ClassVar[bool] = False

    def forward_preprocess(self, op: SeenOp, inputs: tuple[Any, ...]) -> None:
        """See the Variables that an op is about to be recorded on."""

    def forward_postprocess(self, op: SeenOp, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """See the Variables that an op returned."""

    def backward_preprocess(self, op: SeenOp, output_grads: tuple[Any, ...]) -> Sequence[Any] | None:
        """See the gradients of the outputs (None: it has none); return others of the same shapes and dtypes, or None to leave them."""

    def backward_postprocess(self, op: SeenOp, input_grads: tuple[Any, ...]) -> Sequence[Any] | None:
        """See what the op adds to the gradients of its inputs (None: nothing); return others, or None to leave them."""

    def __enter__(self) -> Any:
        mode = hooks(self)
        mode.alone = self
        mode.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        modes = (entry.mode for entry in reversed(hooks._entered.entries))
        mode = next((m for m in modes if isinstance(m, hooks) and m.alone is self), hooks(self))  # one that was never entered says so
        mode.__exit__(kind, error, trace)


class hooks(Mode):  # noqa: N801 - a context manager, named as the other modes
    """Have op hooks see every op of this thread; a context manager and decorator, like the other modes.

    Args:
        op_hooks: the hooks, called in this order, after those that are active already.  One that is active already is not called twice.
        ops: the ops to see: a name (``op.name`` of a hook, ``variable.op.name``), a function of ``tape``'s namespaces, a
            :class:`tape.Function`, or several of them; None for all.  An op with other static parameters is another object, so it is the
            name that counts.

    Raises:
        TapeTypeError: something is no :class:`tape.OpHook`, or no op.

    Example:
        >>> import tape
        >>> class Count(tape.OpHook):
        ...     calls = 0
        ...     def forward_preprocess(self, op, inputs):
        ...         self.calls += 1
        >>> count = Count()
        >>> with tape.hooks(count, ops=tape.numpy.tanh):
        ...     y = tape.numpy.tanh(tape.Variable(1.0) * 2)
        >>> count.calls
        1

    """

    _takes_classes = True
    _field = "observer"
    alone: OpHook | None = None  # the hook that was entered itself

    def __init__(self, *op_hooks: OpHook, ops: object = None) -> None:
        for hook in op_hooks:
            if not isinstance(hook, OpHook):
                kind = f"the class {hook.__name__}; pass an object of it" if isinstance(hook, type) else type(hook).__name__
                msg = f"hooks: expected objects of subclasses of tape.OpHook, got {kind}"
                raise TapeTypeError(msg)
        names = None if ops is None else _names(ops)
        self._pairs = tuple((hook, names) for hook in op_hooks)

    def _enter(self) -> None:
        outer = () if LOCAL.scope.observer is None else LOCAL.scope.observer.pairs
        self._leave(Observer((*outer, *self._pairs)))


def _names(ops: object) -> frozenset[str]:
    names = []
    for x in list(ops) if isinstance(ops, (tuple, list, set, frozenset)) else [ops]:
        name = x if isinstance(x, str) else getattr(x, "name", None) or getattr(x, "__name__", None)
        if not isinstance(name, str):
            msg = f"hooks: ops takes names of ops and functions of the tape, got {type(x).__name__}"
            raise TapeTypeError(msg)
        names.append(name)
    return frozenset(names)


class Observer:
    """The op hooks that are active in one thread.

    Attributes:
        pairs: the hooks, each with the names of the ops that it sees (None: of all).
        key: equal for the same hooks, and for those that say they are equal.
        sweeps: whether one of them sees sweeps.
        traceable: whether all of them work on traced values.

    """

    __slots__ = ("_by_name", "key", "pairs", "sweeps", "traceable")

    def __init__(self, pairs: tuple[tuple[OpHook, frozenset[str] | None], ...]) -> None:
        self.pairs = pairs
        # Methods are equal if they are of the same object: so they stand for hooks that can be no key.
        self.key = tuple((hook if isinstance(hook, Hashable) else hook.__enter__, names) for hook, names in pairs)
        self.sweeps = any(_overrides(hook, "backward_preprocess") or _overrides(hook, "backward_postprocess") for hook, _ in pairs)
        self.traceable = all(hook.traceable for hook, _ in pairs)
        self._by_name: dict[str, list[OpHook]] = {}

    def of(self, name: str) -> list[OpHook]:
        """Return the hooks that see ops of this name, each once."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = list({id(hook): hook for hook, names in self.pairs if names is None or name in names}.values())
        return known

    def record(self, op: Any, inputs: Sequence[Handle]) -> Any:
        """Record one entry as :func:`tape.recording.record.record` does, and have the hooks see it."""
        if self._passes(op, inputs):
            with within(unseen=True):
                return record.record(op, inputs)
        return self.around(op.name, op.params, tuple(inputs), record.record, op, inputs)

    def _passes(self, op: Any, inputs: Sequence[Handle]) -> bool:
        """Tell whether nobody sees an entry: no hook asks for it, another one stands for it, or it cannot be recorded."""
        if _is_function(op) or getattr(op, "transparent", False) or not self.of(op.name):
            return True
        try:
            if hasattr(op, "kernel_of"):
                op.kernel_of(tuple([v._place.kind for v in inputs]))
        except Exception:  # noqa: BLE001 - recording it raises it again, with the message it ought to have
            return True
        return False

    def around(
        self, name: str, params: Iterable[tuple[str, object]] | None, inputs: tuple[Any, ...], function: Callable[..., Any], *args: object
    ) -> Any:
        """Return ``function(*args)``, which records one entry; the hooks see it as the op ``name``."""
        op = SeenOp(name, params, user_line())
        hooks = self.of(name)
        for hook in hooks:
            _observe(hook, "forward_preprocess", op, inputs)
        with within(unseen=True) if function is record.record else contextlib.nullcontext():
            result = function(*args)
        outputs = tuple(variables_in(result))
        first = outputs[0] if outputs else None
        if first is not None and first._segment is not None and op.where is not None:
            first._segment.lines[first._place.slot] = op.where
        for hook in hooks:
            _observe(hook, "forward_postprocess", op, inputs, outputs)
        return result

    def before(self, entry: State, segment: Segment, cotangents: Sequence[Any]) -> Sequence[Any]:
        """Have the hooks see the cotangents of an entry's outputs before its VJP; return those to go on with."""
        op = _seen(entry, segment)
        if op is None or all(ct is None for ct in cotangents):
            return cotangents
        return self._pass(op, "backward_preprocess", cotangents)

    def after(self, entry: State, segment: Segment, values: Sequence[Any]) -> Sequence[Any]:
        """Have the hooks see what the VJP of an entry gave to its inputs; return what to go on with.

        The values are the cotangents of its outputs, then the gradients.
        """
        count = len(values) - len(entry.inputs)
        cotangents, gradients = values[:count], values[count:]
        op = _seen(entry, segment)
        if op is None or all(ct is None for ct in cotangents):
            return gradients
        own = len(gradients) - len(entry.places) if _is_function(entry.op) else len(gradients)
        return (*self._pass(op, "backward_postprocess", gradients[:own]), *gradients[own:])

    def _pass(self, op: SeenOp, method: str, gradients: Sequence[Any]) -> tuple[Any, ...]:
        present = tuple(gradients)
        for hook in self.of(op.name):
            who = f"{type(hook).__name__}.{method}"
            with _running(hook, method, op), calling(who):
                given = getattr(hook, method)(op, present)
                if given is not None:
                    present = replacements(who, present, given)
        return present


def _is_function(op: object) -> bool:
    """Tell whether an op is that of a ``tape.Function``, which tells its hooks itself of what it is given."""
    return hasattr(op, "arguments")


def _seen(entry: State, segment: Segment) -> SeenOp | None:
    named: Any = entry.kernel if entry.op is None else entry.op
    if getattr(named, "transparent", False):
        return None
    return SeenOp(named.name, named.params, segment.lines.get(entry.slots[0], entry.where))


def _overrides(hook: OpHook, method: str) -> bool:
    own = getattr(hook, method)
    return getattr(own, "__func__", own) is not getattr(OpHook, method)


@contextlib.contextmanager
def _running(hook: OpHook, method: str, op: SeenOp) -> Iterator[None]:
    """While a hook runs: no hook sees what it does, and an error that it raises names the op and its line."""
    with within(observer=None, unseen=True):
        try:
            yield
        except Exception as error:
            error.add_note(f"raised by {type(hook).__name__}.{method} for {op}")
            raise


def _observe(hook: OpHook, method: str, op: SeenOp, *seen: object) -> None:
    with _running(hook, method, op):
        given = getattr(hook, method)(op, *seen)
        if given is not None:
            msg = f"{type(hook).__name__}.{method} returned {type(given).__name__}, but forward hooks only look; return None"
            raise TapeTypeError(msg)
