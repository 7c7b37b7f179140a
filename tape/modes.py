"""Modes: whether ops are recorded as differentiable, and whether they run at once.

Every mode is a context manager and a decorator, thread-local, re-entrant, and restores the old mode whatever happens.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tape.errors import TapeTypeError
from tape.segment import LOCAL, close, set_mode
from tape.trie import CONSTANT, RECORD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["eager", "enable_grad", "no_grad", "set_grad_enabled"]

F = TypeVar("F", bound="Callable[..., Any]")


class _Olds(threading.local):
    """What one mode object found at its entries, per thread."""

    def __init__(self) -> None:
        self.stack: list[Any] = []


class _Mode:
    """A mode to enter; one object may be entered several times, also by several threads."""

    def __init__(self) -> None:
        self._olds = _Olds()

    def _present(self) -> Any:
        """Return the mode that is to be restored."""
        raise NotImplementedError

    def _enter(self) -> None:
        raise NotImplementedError

    def _leave(self, old: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        old = self._present()
        try:
            self._enter()
            self._olds.stack.append(old)
        except BaseException:  # Ctrl-C: there will be no exit
            self._leave(old)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave(self._olds.stack.pop())

    def __call__(self, function: F) -> F:
        """Decorate ``function``, so that every call of it runs in this mode."""
        if not callable(function):
            msg = f"a mode decorates a function, got {type(function).__name__}"
            raise TapeTypeError(msg)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            old = self._present()
            try:
                self._enter()
                return function(*args, **kwargs)
            finally:
                self._leave(old)

        return wrapped  # type: ignore[return-value]


class set_grad_enabled(_Mode):  # noqa: N801 - a context manager, named as in PyTorch
    """Record differentiable entries (True) or constants (False).

    Example:
        >>> import tape
        >>> x = tape.Variable(1.0)
        >>> with tape.set_grad_enabled(False):
        ...     y = 2 * x
        >>> y.requires_grad
        False

    """

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        if not isinstance(enabled, bool):
            msg = f"set_grad_enabled: enabled must be True or False, got {type(enabled).__name__}"
            raise TapeTypeError(msg)
        self._mode = RECORD if enabled else CONSTANT

    def _present(self) -> int:
        return LOCAL.mode

    def _enter(self) -> None:
        set_mode(self._mode)

    def _leave(self, old: int) -> None:
        set_mode(old)


class no_grad(set_grad_enabled):  # noqa: N801
    """Results are constants: nothing is kept for sweeps, ``requires_grad`` is False.

    Example:
        >>> import tape
        >>> x = tape.Variable(1.0)
        >>> with tape.no_grad():
        ...     print((2 * x).requires_grad)
        False

    """

    def __init__(self) -> None:
        super().__init__(enabled=False)


class enable_grad(set_grad_enabled):  # noqa: N801
    """Record differentiable entries again, inside :class:`no_grad`.

    Example:
        >>> import tape
        >>> x = tape.Variable(1.0)
        >>> with tape.no_grad(), tape.enable_grad():
        ...     print((2 * x).requires_grad)
        True

    """

    def __init__(self) -> None:
        super().__init__(enabled=True)


class eager(_Mode):  # noqa: N801
    """Run every op at once instead of recording it for later (slower; to look at what happens step by step).

    Example:
        >>> import tape
        >>> with tape.eager():
        ...     y = tape.Variable(1.0) + 1
        >>> float(y)
        2.0

    """

    def _present(self) -> bool:
        return LOCAL.eager

    def _enter(self) -> None:
        segment = LOCAL.segment()
        if segment is not None:
            close(segment)  # it runs when somebody looks at it
        LOCAL.eager = True

    def _leave(self, old: bool) -> None:
        LOCAL.eager = old
