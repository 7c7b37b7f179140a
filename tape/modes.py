"""Modes: whether ops are recorded as differentiable, and whether they run at once.

Every mode is a context manager and a decorator, thread-local, re-entrant, and restores the old mode whatever happens.  What suspends
(generators, coroutines) holds its modes while it runs, and gives its caller's back while it does not.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tape.errors import TapeRuntimeError, TapeTypeError, check_flag
from tape.graph.scope import LOCAL, close, set_scope, switch
from tape.graph.trie import CONSTANT, RECORD

F = TypeVar("F", bound="Callable[..., Any]")


class _Entry:
    """One entry into a mode, and what was there before."""

    __slots__ = ("mode", "old")

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.old = mode._present()


class _Entered(threading.local):
    """The entries of one thread that were not left so far, the innermost last."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []


class Entering(type):
    """The class of what a ``with`` statement enters, of which it takes objects."""

    if not TYPE_CHECKING:  # which is to find the mistake

        def __enter__(cls) -> None:
            given = (
                "..." if any(p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in inspect.signature(cls).parameters.values()) else ""
            )
            msg = f"{cls.__name__}: got the class in a with statement; write `with tape.{cls.__name__}({given}):`, with parentheses"
            raise TapeTypeError(msg)

        def __exit__(cls, *_: object) -> None:  # Python asks for both
            return None


class Parenthesised(metaclass=Entering):
    """What decorates by an object of it: ``@tape.profile()``; above the class, so that the signature is that of its ``__init__``."""

    _takes_classes: ClassVar[bool] = False  # as arguments, if only to say what is wrong with them

    def __new__(cls, *args: Any, **_: object) -> Self:
        """Refuse the function of a decorator without parentheses."""
        if args and (inspect.isroutine(args[0]) or (isinstance(args[0], type) and not cls._takes_classes)):
            what = "class" if isinstance(args[0], type) else "function"
            msg = (
                f"{cls.__name__}: got the {what} {args[0].__name__} as an argument; "
                f"write @tape.{cls.__name__}(), with parentheses, to decorate {'its methods' if what == 'class' else 'it'}"
            )
            raise TapeTypeError(msg)
        return super().__new__(cls)


def refuse_statement(frame: FrameType, write: str) -> None:
    """Refuse a mode that is made, and dropped, by a statement of its own in the caller's frame: in other libraries that switches it on."""
    code, at = frame.f_code.co_code, frame.f_lasti
    between = {"CACHE", "CALL"} if dis.opname[code[at]] == "PRECALL" else {"CACHE"}  # Python 3.11 prepares some calls
    at += 2
    while dis.opname[code[at]] in between:
        at += 2
    if dis.opname[code[at]] == "POP_TOP":
        msg = (
            f"{write} as a statement of its own changes nothing, since a mode holds where it is entered; write `with {write}:` around "
            f"what is to run in it, or @{write} above a function"
        )
        raise TapeRuntimeError(msg)


class Mode(Parenthesised):
    """A mode to enter; one object may be entered several times, also by several threads."""

    _entered: ClassVar[_Entered]
    _field: ClassVar[str]  # of the scope

    def __init__(self) -> None:
        super().__init__()  # which takes no argument: none is accepted and ignored
        if type(self).__init__ is Mode.__init__:
            refuse_statement(sys._getframe(1), f"tape.{type(self).__name__}()")

    def __init_subclass__(cls) -> None:
        if cls.__base__ is Mode:  # the kinds of mode do not depend on each other
            cls._entered = _Entered()

    def _present(self) -> object:
        """Return the mode that is to be restored."""
        return getattr(LOCAL.scope, self._field)

    def _enter(self) -> None:
        self._leave(old=True)

    def _leave(self, old: Any) -> None:
        """Restore what :meth:`_present` returned."""
        set_scope(LOCAL.scope.but(**{self._field: old}))

    def __enter__(self) -> None:
        entries = self._entered.entries
        entry = _Entry(self)
        try:
            entries.append(entry)
            self._enter()
        except BaseException:  # Ctrl-C: there will be no exit
            if entry in entries:
                entries.remove(entry)
            self._leave(entry.old)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        entries = self._entered.entries
        at = len(entries) - 1  # the innermost entry, as a rule
        while at >= 0 and entries[at].mode is not self:
            at -= 1
        if at < 0:
            name = type(self).__name__
            msg = (
                f"{name}: left in a thread that did not enter it (modes belong to their thread), or twice; let the thread that enters it "
                f"leave it, and decorate generators and async functions with @tape.{name}(...) instead of suspending them inside the "
                "with statement"
            )
            raise TapeRuntimeError(msg)
        entry = entries.pop(at)
        if at == len(entries):
            self._leave(entry.old)
        else:  # a mode entered later is still on (by a generator that was suspended): it restores what was there before both
            entries[at].old = entry.old

    def __call__(self, function: F) -> F:
        """Decorate ``function``, so that every call of it runs in this mode, and every resumption where it is a generator or coroutine."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self(function.__func__))
        if isinstance(function, type):
            msg = f"{type(self).__name__}: a mode decorates a function, got the class {function.__name__}; decorate its methods"
            raise TapeTypeError(msg)
        if not callable(function):
            msg = f"{type(self).__name__}: a mode decorates a function, got {type(function).__name__}"
            raise TapeTypeError(msg)
        body: Any = function
        if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
            body = body.__call__
        if inspect.isasyncgenfunction(body):
            wrap: Any = _around_async_generator
        elif inspect.iscoroutinefunction(body):
            wrap = _around_coroutine
        elif inspect.isgeneratorfunction(body):
            wrap = _around_generator
        else:
            wrap = _around_call
        return functools.wraps(function)(wrap(self, function))  # type: ignore[return-value]


def _around_call(mode: Mode, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: object, **kwargs: object) -> object:
        with mode:
            return function(*args, **kwargs)

    return wrapped


class _Suspension:
    """A mode around code that suspends: on while it runs, together with the modes that the code itself has entered."""

    __slots__ = ("_inner", "_inside", "_mode", "_started")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._inner: list[_Entry] = []
        self._inside: Any = None
        self._started = False

    def run(self, step: Callable[..., Any], *args: object) -> Any:
        """Return ``step(*args)``, which runs the code until it suspends again."""
        mode = self._mode
        entries = mode._entered.entries
        entry = _Entry(mode)
        try:
            entries.append(entry)
            entries.extend(self._inner)
            if self._started:
                mode._leave(self._inside)
            else:
                mode._enter()
                self._started = True
            return step(*args)
        finally:
            self._inside = mode._present()
            at = entries.index(entry) if entry in entries else len(entries)
            self._inner = entries[at + 1 :]
            del entries[at:]
            mode._leave(entry.old)

    def drive(self, inner: Any) -> Generator[Any, Any, Any]:
        """Run a generator, or the iterator of an awaitable, step by step."""
        step, given = inner.send, None
        while True:
            try:
                item = self.run(step, given)
            except StopIteration as end:
                return end.value
            try:
                given = yield item
                step = inner.send
            except GeneratorExit:
                self.run(inner.close)
                raise
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                step, given = inner.throw, error

    @types.coroutine
    def awaiting(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await something in the mode."""
        return (yield from self.drive(awaitable.__await__()))


def _around_generator(mode: Mode, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: object, **kwargs: object) -> Generator[Any, Any, Any]:
        return (yield from _Suspension(mode).drive(function(*args, **kwargs)))

    return wrapped


def _around_coroutine(mode: Mode, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: object, **kwargs: object) -> object:
        return await _Suspension(mode).awaiting(function(*args, **kwargs))

    return wrapped


def _around_async_generator(mode: Mode, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: object, **kwargs: object) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        suspension = _Suspension(mode)
        step, given = inner.asend, None
        while True:
            try:
                item = await suspension.awaiting(step(given))
            except StopAsyncIteration:
                return
            try:
                given = yield item
                step = inner.asend
            except GeneratorExit:
                await suspension.awaiting(inner.aclose())
                raise
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                step, given = inner.athrow, error

    return wrapped


class set_grad_enabled(Mode):  # noqa: N801 - a context manager, named as in PyTorch
    """Record differentiable entries (True) or constants (False), inside a ``with`` statement or a decorated function.

    Args:
        enabled: True or False.

    Raises:
        TapeTypeError: ``enabled`` is neither, or a class is decorated.
        TapeRuntimeError: it is left in a thread that did not enter it, or stands there as a statement, which would change nothing.

    Example:
        >>> import tape
        >>> x = tape.Variable(1.0)
        >>> with tape.set_grad_enabled(False):
        ...     y = 2 * x
        >>> y.requires_grad
        False

    """

    _field = "mode"

    def __init__(self, enabled: bool) -> None:
        check_flag("set_grad_enabled", "enabled", enabled)
        refuse_statement(sys._getframe(1), f"tape.set_grad_enabled({enabled})")
        self._mode = RECORD if enabled else CONSTANT

    def _enter(self) -> None:
        switch(self._mode)

    def _leave(self, old: int) -> None:
        switch(old)


class no_grad(set_grad_enabled):  # noqa: N801
    """Have results be constants: nothing is kept for sweeps, and their ``requires_grad`` is False.

    Here ``x += y`` and its kin (and ``x[i] = y``) change ``x`` for all who hold it, a leaf that requires grad too: that is how parameters
    are updated.  Shape and dtype stay, and so do gradient and hooks; what was recorded before keeps the old value.

    ``@tape.no_grad()`` holds inside generators and async functions too, and their callers have their own mode while those are suspended.
    A ``with`` statement belongs to its thread: what else runs in it while the body awaits or yields runs in its mode.

    Example:
        >>> import tape
        >>> x = tape.Variable(1.0)
        >>> with tape.no_grad():
        ...     print((2 * x).requires_grad)
        False
        >>> (x * x).backward()
        >>> with tape.no_grad():
        ...     x -= 0.25 * x.grad
        >>> x
        Variable(0.5, dtype=float32, requires_grad=True)

    """

    def __init__(self) -> None:
        self._mode = CONSTANT


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
        self._mode = RECORD


class eager(Mode):  # noqa: N801
    """Run every op at once instead of recording it for later (slower; to look at what happens step by step).

    Example:
        >>> import tape
        >>> with tape.eager():
        ...     y = tape.Variable(1.0) + 1
        >>> float(y)
        2.0

    """

    _field = "eager"

    def _leave(self, old: bool) -> None:
        segment = LOCAL.segment()
        if old and segment is not None:
            close(segment)  # it runs when somebody looks at it
        super()._leave(old)


class reproducible(Mode):  # noqa: N801
    """Run what is recorded as one compiled program from the first time on, so that a resumed run equals an uninterrupted one bit for bit.

    By default a computation that is met for the first time is interpreted, and compiled when it comes back, which rounds differently: the
    last bits of a value depend on what the process has met before.  In this mode they do not, on one machine and one version of JAX: each
    computation is compiled when it is first met (which costs the time of compiling it; afterwards it is as fast as without), and is the
    same program ever after.  What a step draws and reads must be the same as well: save it with :func:`interop.save`.

    It holds for what runs within: values that are still pending at the end run as usual.  A step under :func:`tape.jit` is such a program
    in any case.  Where JAX does not compile (``jax.disable_jit``, ``jax_debug_nans``), what is recorded is interpreted here, too.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> with tape.reproducible():
        ...     x = tape.Variable([1.0, 2.0])
        ...     tnp.sum(x * x).backward()
        >>> x.grad.numpy()
        array([2., 4.], dtype=float32)

    """

    _field = "reproducible"

    def _leave(self, old: bool) -> None:
        segment = LOCAL.segment()
        if segment is not None:
            close(segment)  # what was recorded in another mode is a program of its own
        super()._leave(old)
