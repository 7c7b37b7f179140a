"""Layout: what the recorder reads at every entry, as structures of C where the recorder in C runs, and which of the two recorders does.

The recorder in Python (:mod:`tape.recording.plain`) defines what recording an op does.  The one in C (``_recorder.c``) does the common case
of it, and leaves the rest to that one; it reads the attributes below without asking Python for them.  The environment variable
``TAPE_RECORDER`` chooses: ``native``, ``python``, or, where it is not set, what there is.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tape.errors import TapeImportError, TapeValueError

VARIABLE = "TAPE_RECORDER"
CONTRACT = 29  # changes with what the two sides know of each other: an extension that was built before that is not used


def _extension() -> tuple[Any, str]:
    """Return the extension, or None; and in words which recorder runs, and why."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "native", "python"}:
        msg = f"{VARIABLE}: there is no recorder {wanted!r}; set it to 'native' or 'python', or leave it out"
        raise TapeValueError(msg)
    if wanted == "python":
        return None, f"python ({VARIABLE}=python)"
    native, why = None, ""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        why = "a free-threaded Python, for which the native one is not made"
    else:
        try:
            native = importlib.import_module("tape._recorder")
        except ImportError as e:
            why = f"the native one was not built: {e}"
        else:
            if native.CONTRACT != CONTRACT:
                native, why = None, "the native one was built for another version; build it again: pip install -e ."
    if native is None and wanted:
        msg = f"{VARIABLE}=native: {why}; have a C compiler and run pip install again, or leave {VARIABLE} out"
        raise TapeImportError(msg)
    return native, f"python ({why})" if native is None else "native"


NATIVE, RUNS = _extension()


def not_here(*_: object) -> Any:
    """Leave it to the caller, as a function in C does what is not the common case."""


def chosen(name: str, python: Callable[..., Any] = not_here) -> Any:
    """Return a function of the extension, or the one in Python; if there is none, one that leaves all to the caller."""
    return python if NATIVE is None else getattr(NATIVE, name)


if TYPE_CHECKING or NATIVE is None:

    class Handle:
        """See :class:`tape.graph.segment.Handle`."""

        __slots__ = ("__weakref__", "_cell", "_extra", "_place", "_segment")

    class Place:
        """See :class:`tape.graph.kinds.Place`."""

        __slots__ = ("kind", "slot")

    class Kind:
        """See :class:`tape.graph.kinds.Kind`."""

        __slots__ = ("aval", "requires_grad", "unrecorded")

    class Step:
        """See :class:`tape.graph.trie.Step`."""

        __slots__ = ("depth", "inputs", "kernel", "slots", "where")

    class State(Step):
        """See :class:`tape.graph.trie.State`."""

        __slots__ = ("latest", "n_slots", "next", "place", "quick", "several")

    class Segment:
        """See :class:`tape.graph.segment.Segment`."""

    class Changes:
        """See :class:`tape.configuration.Changes`."""

        __slots__ = ("epoch",)

    class Local(threading.local):
        """The recorder of one thread: its pending ``segment`` (weakly) and its ``scope``, which ``make`` returns for a new thread.

        It notes whether a Variable that requires grad ``gave`` its value to Python.
        """

        segment: Any
        scope: Any
        gave: bool = False

        def __init__(self, make: Callable[[], tuple[Any, Any]]) -> None:
            self.segment, self.scope = make()

    class Choice:
        """See :class:`tape.programs.execution.Program`."""

        __slots__ = ("executable", "kept", "live", "roots", "site", "size")

        executable: Callable[..., Any] | None
        kept: Any
        live: tuple[int, ...]
        roots: int
        size: int

    class Bound:
        """See :class:`tape.jitting.binding.Binding`."""

    class Numbers:
        """See :class:`tape.programs.numbers.Steady`: ``run`` is what it does."""

        run: Callable[..., Any]

        def __call__(self, *given: Any) -> Any:
            """Run it."""
            return self.run(*given)

    class Buffered(Numbers):
        """See :class:`tape.programs.buffers.Buffered`."""

    class Counts:
        """See :class:`tape.statistics.Stats`."""

        entries_ended: int
        executed: int
        hits: int

    Gradient = property
    Value = property

else:
    Handle, Place, Kind, Step, State = NATIVE.Handle, NATIVE.Place, NATIVE.Kind, NATIVE.Step, NATIVE.State
    Segment, Changes, Local = NATIVE.Segment, NATIVE.Changes, NATIVE.Local
    Bound, Buffered, Choice, Counts, Numbers = NATIVE.Bound, NATIVE.Buffered, NATIVE.Choice, NATIVE.Counts, NATIVE.Numbers
    Gradient, Value = NATIVE.Gradient, NATIVE.Value
