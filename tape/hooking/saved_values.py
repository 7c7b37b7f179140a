"""Contexts that say what becomes of the values which the tape keeps for sweeps: packed by the user's functions, or moved to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.graph.scope import LOCAL, no_segment, set_scope
from tape.hooking.packing import Packing, recording, run_segments
from tape.modes import Mode
from tape.programs.program import look

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["save_on_host", "saved_value_hooks"]


class _Context(Mode):
    """A context with hooks for saved values."""

    _field = "packing"

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        super().__init__()
        self._pack = pack
        self._unpack = unpack

    def _enter(self) -> None:
        self._leave(Packing(self._pack, self._unpack))

    def _leave(self, old: Packing | None) -> None:
        LOCAL.segment = no_segment  # what is pending there runs when somebody looks at it
        set_scope(LOCAL.scope.but(packing=old, staged=[]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        segments = recording()
        super().__exit__(kind, error, trace)
        if kind is None:
            run_segments(segments)


class saved_value_hooks(_Context):  # noqa: N801 - a context manager, as those of tape.modes
    """Have ``pack`` make what is kept of each value that a sweep will read, and ``unpack`` make the value again when one reads it.

    Which values: those of entries recorded inside the context, as far as a sweep from a Variable that is held at its end reads them, and
    the inputs of these entries, arrays and results from outside of the context, that it reads.  This does not depend on what else Variables
    hold.  Leaves that require grad (parameters) are left out, for their Variables hold them anyway, and so are Python numbers, typed PRNG
    keys and what is computed again because that is cheaper.  Values may be of any dtype (masks and indices are).  The values inside loops,
    checkpoints and lifted functions that are kept for the sweep are among them, and so are the Variables and JAX arrays that a ``tape.Function`` saves
    (with ``ctx.save_for_backward``; Variables in attributes of ``ctx`` too), which are unpacked whenever its backward reads ``ctx.saved``.

    When: what the context recorded runs when it ends (at the latest: somebody may look earlier), and then ``pack`` is called, in the order
    of the tape and once for a value however many entries read it; ``unpack`` is called in every sweep that reads the value.  Forward and
    reverse are programs of their own, which costs what XLA would have fused across them.  A sweep unpacks what one context has kept
    together: for least memory, enter one for each layer.  Contexts nest, and the innermost applies.  Where ``pack`` raises, the values of
    that context stay as they are, and can be swept; where ``unpack`` raises, no ``.grad`` changes.

    In JAX transformations: inside a function under ``tape.jit``, ``jax.jit`` and others (and a function given to ``tape.lax.scan`` or
    ``tape.checkpoint``) a context sees traced values, so that what the hooks compute becomes part of the program; one that is entered
    around such a function does not apply inside it.

    Args:
        pack: called with a constant Variable; may return anything.
        unpack: called with what ``pack`` returned; returns a Variable or array of the value's shape and dtype.

    Raises:
        TapeTypeError: ``pack`` or ``unpack`` cannot be called; or, in a sweep, ``unpack`` returned no array or another dtype.
        TapeValueError: in a sweep, ``unpack`` returned another shape.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w = tape.Variable([[1.0, 2.0], [3.0, 4.0]])
        >>> kept = 0
        >>> def count(value):
        ...     global kept
        ...     kept += value.nbytes
        ...     return value
        >>> with tape.saved_value_hooks(count, lambda value: value):
        ...     y = tnp.tanh(w @ tnp.ones((2, 3))).sum()
        >>> kept  # the product, from which the sweep makes the tangent again
        24
        >>> y.backward()

    """

    def __new__(cls, pack: Any, unpack: Any) -> Any:  # noqa: ARG004 - they are for __init__
        """Take functions as arguments, which other modes refuse."""
        return object.__new__(cls)

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        for name, function in (("pack", pack), ("unpack", unpack)):
            if not callable(function):
                msg = f"saved_value_hooks: {name} must be callable, got {type(function).__name__}"
                raise TapeTypeError(msg)
        super().__init__(pack, unpack)


class save_on_host(_Context):  # noqa: N801
    """Keep what a sweep will read in the memory of the host, and bring it back when one does.

    It is :class:`saved_value_hooks` with hooks that copy; which values, when and at what cost is said there.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w, x = tape.Variable([[1.0, 2.0], [3.0, 4.0]]), tnp.ones((2, 3))
        >>> for _ in range(3):
        ...     with tape.save_on_host():
        ...         x = tnp.tanh(w @ x)
        >>> x.sum().backward()

    """

    def __init__(self) -> None:
        super().__init__(_to_host, jaxapi.from_host)


def _to_host(value: Any) -> Any:
    return jaxapi.to_host(look(value))
