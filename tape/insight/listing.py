"""``tape.Tape``: what is on the tape, to be looked at, differentiated, and taken as a function."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import jax

from tape.errors import TapeRuntimeError, TapeTypeError, check_flag, unknown_keyword
from tape.graph.lines import user_frame
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.trees import leaves_of
from tape.insight import text
from tape.insight.drawing import norms
from tape.insight.entries import Entry, Value
from tape.insight.notes import Notes, Record
from tape.insight.parts import Span
from tape.insight.past import Past
from tape.insight.picture import Picture
from tape.insight.reading import Reading
from tape.insight.replaying import Replay
from tape.mirrored.absent import missing
from tape.modes import Entering, Mode
from tape.sweeps.differentiation import gradients
from tape.sweeps.seeds import variables, variables_of_tree
from tape.terminal import Shown, clipped, counted, dressed, size


class _Open(Mode):
    """While a tape is open, its thread's scope has its notes."""

    _field = "notes"

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def _enter(self) -> None:
        self._leave(self._notes)


class _Block(metaclass=Entering):
    """What is opened by a ``with`` statement and takes nothing by position; above the class, which has the signature of ``__init__``."""

    def __new__(cls, *args: object, **options: object) -> Self:
        """Refuse what is meant for :meth:`Tape.of`, and options of others' tapes."""
        if args:
            msg = (
                f"Tape: got {type(args[0]).__name__} as an argument; write tape.Tape.of(outputs) for what leads to Variables, and "
                "with tape.Tape() as t for what a block records"
            )
            raise TapeTypeError(msg)
        if others := options.keys() & {"persistent", "watch_accessed_variables"}:
            raise unknown_keyword("Tape", *sorted(others))
        return super().__new__(cls)


class Tape(_Block, Shown):
    """The tape of a ``with`` block, or of the past of Variables (:meth:`Tape.of`): a Wengert list that can be read.

    ``print(t)`` shows it as a table: number, op, inputs, shape and dtype, bytes, and your file and line; what a sweep wrote stands under a
    line that says so, each entry with the one that it is the derivative of; what comes several times in a row is shown once.  It is as wide
    as the terminal, and in colours where that is one (``NO_COLOR`` is heeded).  ``t.text(...)`` has the options.

    A tape sees what its own thread records in the block: sweeps too, entries under ``no_grad``, and those of a nested tape, which sees
    them as well.  What a JAX transformation traces is seen by a tape that is opened in the traced function, not by one around it.  A
    checkpoint, a loop or a lifted function is one entry; :attr:`~tape.insight.entries.Entry.inner` has what is in it.

    It holds the structure, and no value: memory is freed as without it, and what was released is marked so.  With ``keep=True`` it holds
    the values of the leaves (not the results), so that :meth:`function` works after a sweep has released the tape.

    While it is open every op is recorded in a slower way (some microseconds more); the entries, and the programs that run, are the same.

    Args:
        keep: hold the values of leaves.

    Raises:
        TapeTypeError: ``keep`` is no bool, or there is another argument (those are for :meth:`of`).
        TapeRuntimeError: it is entered twice, or left in another thread.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([1.0, 2.0], name="x")
        >>> with tape.Tape() as t:
        ...     y = tnp.tanh(x * x).sum()
        ...     y.backward()
        >>> [(e.number, e.op, str(e.inputs[0])) for e in t.entries[:3]]
        [(0, 'multiply', 'x'), (1, 'tanh', '%0'), (2, 'sum', '%1')]
        >>> [(e.op, e.sweep, e.of) for e in t if e.of is not None]
        [('vjp_sum', 1, 2), ('vjp_tanh', 1, 1), ('vjp_multiply', 1, 0)]
        >>> print(t)  # doctest: +ELLIPSIS
        Tape: 7 entries, 3 forward and 4 in 1 sweep; ...

    """

    def __init__(self, *, keep: bool = False) -> None:
        check_flag("Tape", "keep", keep)
        self._keep = keep
        self._record: Record | None = None
        self._open: _Open | None = None
        self._order: Sequence[Span] = ()
        self._began: Sequence[int] = ()
        self._sweeps: Sequence[tuple[str, int] | None] = ()
        self._read: tuple[Any, Reading] | None = None
        self._outputs: list[Handle] = []

    if not TYPE_CHECKING:  # which would take every name for one that is there

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)

    @classmethod
    def of(cls, outputs: object) -> Tape:
        """Return the part of the tape that leads to some Variables, recorded before.

        An entry's line is the one that was first to record the same ops up to this one, unless op hooks or a tape saw it being recorded.
        It holds ``outputs``, and so what leads to them.  A value through which no gradient flows (a mask, an index) is followed as long as
        the part of the tape that made it is there, and is a leaf otherwise.

        Args:
            outputs: a Variable, a sequence or a pytree of them.

        Returns:
            A tape that is not open.

        Example:
            >>> import tape
            >>> x = tape.Variable(3.0, name="x")
            >>> y = x * x + 1.0
            >>> [str(e).split("  ")[0] for e in tape.Tape.of(y)]
            ['%0 = multiply(x, x)', '%1 = add(%0, 1.0)']

        """
        roots, _ = variables_of_tree("Tape.of", "outputs", outputs)
        tape = cls()
        past = Past(roots)
        tape._order = past.order
        tape._outputs = roots
        return tape

    def __enter__(self) -> Self:
        if self._record is not None or self._outputs:
            msg = "Tape: this one was entered before, or is that of Variables; make another one for each block: with tape.Tape() as t"
            raise TapeRuntimeError(msg)
        outer = LOCAL.scope.notes
        record = Record(keep=self._keep, frame=user_frame(sys._getframe())[0])
        mode = _Open(Notes((*(() if outer is None else outer.records), record)))
        mode.__enter__()
        self._record, self._open = record, mode
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        mode, record = self._open, self._record
        if mode is None or record is None:
            msg = "Tape: left without having been entered; use it by: with tape.Tape() as t"
            raise TapeRuntimeError(msg)
        mode.__exit__(kind, error, trace)
        self._open = None
        record.close()

    def _reading(self) -> Reading:
        record = self._record
        if record is not None:
            if self._open is not None:
                record.synchronise()
            self._order, self._began, self._sweeps = record.order, record.began, record.sweeps
        key = (len(self._order), self._order[-1] if self._order else None, self._released())
        if self._read is None or self._read[0] != key:
            self._read = key, Reading(self._order, self._began, self._sweeps)
        return self._read[1]

    def _released(self) -> tuple[Any, ...]:
        segments = [span.part.ref() for span in self._order]
        return tuple([None if segment is None else (segment.released, segment.pending, segment.swept) for segment in segments])

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries (:class:`tape.insight.entries.Entry`), in the order of their recording."""
        return tuple(self._reading().entries)

    @property
    def leaves(self) -> tuple[Value, ...]:
        """The values that entries read and none of them made, in the order of their use; numbers in an expression are none of them."""
        return tuple(self._reading().leaves)

    def __len__(self) -> int:
        return len(self._reading().entries)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, index: int | slice) -> Entry | tuple[Entry, ...]:
        return self.entries[index]

    def text(self, *, width: int | None = None, color: bool | None = None, fold: bool = True, inner: bool = False) -> str:
        """Return the tape as a table, with a line above it that sums it up.

        Args:
            width: characters of a line; None for the terminal's (100 where there is none).
            color: whether to use colours; None where the standard output is a terminal.
            fold: whether to show blocks of entries that come several times in a row once.
            inner: whether to show what is inside of entries that consist of several primitives.

        Raises:
            TapeTypeError: an option is of another type.

        Example:
            >>> import tape
            >>> print(tape.Tape.of(tape.Variable(2.0) * 3.0).text(width=80, color=False))  # doctest: +ELLIPSIS
            Tape: 1 entry; 1 leaf; 4 B of results...

        """
        wide, in_colour = dressed("Tape.text", width, color, least=40)
        check_flag("Tape.text", "fold", fold)
        check_flag("Tape.text", "inner", inner)
        reading = self._reading()
        body = text.table(reading.entries, reading.leaves, self._sweeps, width=wide, color=in_colour, fold=fold, inner=inner)
        summary = textwrap.fill(self._summary(), wide, subsequent_indent="  ")
        return f"{summary}\n{body}" if body else summary

    def _summary(self) -> str:
        entries = self.entries
        sweeps = {e.sweep for e in entries} - {None}
        written = sum(1 for e in entries if e.sweep is not None)
        said = f"Tape: {counted(len(entries), 'entry', 'entries')}"
        if sweeps:
            said += f", {len(entries) - written} forward and {written} in {counted(len(sweeps), 'sweep')}"
        said += f"; {counted(len(self.leaves), 'leaf', 'leaves')}; {size(sum(e.nbytes for e in entries))} of results"
        flows = [e for e in entries if e.requires_grad and e.sweep is None]
        released = sum(1 for e in flows if e.released)
        if released:
            said += "; released" if released == len(flows) else f"; {released} of {len(flows)} released"
        return said + ("; open" if self._open is not None else "")

    def __repr__(self) -> str:
        ops = ", ".join(f"{n} {op}" for op, n in Counter(e.op for e in self.entries).most_common(3))
        said = f"<Tape: {counted(len(self.entries), 'entry', 'entries')}, {counted(len(self.leaves), 'leaf', 'leaves')}; {ops}"
        return clipped(said.removesuffix("; "), 78) + ">"

    def gradients(self, outputs: object, inputs: object, grad_outputs: object = None, **options: Any) -> Any:
        """Gradients of outputs with respect to inputs, as :func:`tape.gradients` gives them, with its options.

        The sweep goes through the whole past of the outputs, also what was recorded before the tape was opened.

        Example:
            >>> import tape
            >>> x = tape.Variable(3.0)
            >>> with tape.Tape() as t:
            ...     y = x * x
            >>> float(t.gradients(y, x))
            6.0

        """
        return gradients(outputs, inputs, grad_outputs, **options)

    def function(self, inputs: object, outputs: object) -> Callable[..., Any]:
        """Return what was recorded between inputs and outputs as a pure function of JAX arrays.

        The other leaves are constants, of the values that they had, and so is what was computed of values that left the tape (``.value``,
        ``float(v)``, NumPy, raw JAX).  ``jax.jit``, ``jax.vmap`` and ``jax.grad`` take it; for them, too,
        what was recorded under ``no_grad`` or cut off is a constant, and a ``tape.Function`` has its own ``backward``.  Hooks are not part
        of it.  What Python decided while it was recorded (branches, lengths of loops, shapes) is decided for good.

        Args:
            inputs: a Variable, a sequence or a pytree of them: leaves of the tape, or results on it (what leads to these is left out then).
            outputs: likewise, results on the tape.

        Returns:
            A function with an argument for the one Variable, or for each of a flat sequence; of one argument, the same tree, for any other
            pytree.  It takes arrays of the shapes and dtypes recorded (Python scalars are converted), and returns one array, a tuple of
            them, or the tree of ``outputs``.

        Raises:
            TapeValueError: an input or output is not on this tape, or had several values on it; or a ``tape.Function`` (or another library)
                computed something of an input that an output depends on, and was not recorded.
            ReleasedTapeError: a value that it needs is gone.

        Example:
            >>> import jax, tape, tape.numpy as tnp
            >>> x, w = tape.Variable(0.5), tape.Variable(2.0)
            >>> with tape.Tape() as t:
            ...     y = tnp.sin(w * x)
            >>> f = jax.jit(t.function(x, y))
            >>> float(f(0.0)), float(jax.grad(f)(0.0))
            (0.0, 2.0)

        """
        given, given_tree = variables_of_tree("function", "inputs", inputs)
        wanted, wanted_tree = variables_of_tree("function", "outputs", outputs)
        for argument, listed in (("inputs", given), ("outputs", wanted)):
            variables("function", argument, listed)
        replay = Replay(self._reading(), given, wanted)
        one, single = wanted_tree is None and isinstance(outputs, Handle), isinstance(inputs, Handle)

        def replayed(*arrays: Any) -> Any:
            """Compute again what was recorded on a tape."""
            if given_tree is None:
                flat: Sequence[Any] = arrays
                expected = 1 if single else len(given)
            else:
                flat = leaves_of(arrays[0]) if len(arrays) == 1 else ()
                expected = len(given)
            if len(flat) != expected:
                msg = f"function: takes {expected} arrays, got {len(flat)}; pass one for each of inputs"
                raise TapeTypeError(msg)
            results = replay.run(flat)
            if wanted_tree is not None:
                return jax.tree.unflatten(wanted_tree, results)
            return results[0] if one else tuple(results)

        return replayed

    def draw(self, path: str | Path | None = None, *, group: str | None = "function", fold: bool = True, flow: object = None) -> Picture:
        """Return a picture of the tape; see :func:`tape.draw`.

        Args:
            path: a file to write it to as well.
            group: what entries are put together by: ``"function"``, ``"class"`` or ``"module"`` of yours that recorded them; None: nothing.
            fold: whether loops are folded.
            flow: Variables (one, or a sequence) from which a sweep is to be made, to show the norms of gradients as colour and width.

        Example:
            >>> import tape
            >>> tape.Tape.of(tape.Variable(2.0) * 3.0).draw()
            <picture of a tape with 1 entry in 1 lane: save('tape.html') writes it>

        """
        reading = self._reading()
        flows = None if flow is None else norms("draw", reading, variables("draw", "flow", flow))
        picture = Picture(reading.entries, group, fold=fold, flow=flows)
        if path is not None:
            picture.save(path)
        return picture


def draw(
    outputs: object, path: str | Path | None = None, *, group: str | None = "function", fold: bool = True, flow: bool = False
) -> Picture:
    """Return a picture of what leads to some Variables.

    Args:
        outputs: a Variable, a sequence or a pytree of them.
        path: a file to write it to as well: ``.html`` (zoom, fold, search, click an entry to see its line), ``.svg`` (needs Graphviz's
            program ``dot``), ``.dot``, or ``.mmd`` (Mermaid).
        group: what entries are put together by: ``"function"``, ``"class"`` or ``"module"`` of yours that recorded them (or the
            ``jax.named_scope`` in a function that ``interop.lift`` takes apart); None: by nothing.
        fold: whether loops are folded.
        flow: whether a sweep is made from ``outputs``, to show the norms of gradients as colour and width; it releases nothing.

    Returns:
        A :class:`tape.insight.picture.Picture`: ``html()``, ``svg()``, ``dot()``, ``mermaid()`` and ``save(path)``; notebooks show it.

    Raises:
        TapeValueError: an option is none of these; or, for ``flow``, an output does not require grad.
        ReleasedTapeError: for ``flow``, the tape was released.
        TapeImportError: for ``.svg``, there is no program ``dot``.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([1.0, 2.0], name="x")
        >>> tape.draw(tnp.sin(x).sum())
        <picture of a tape with 2 entries in 1 lane: save('tape.html') writes it>

    """
    check_flag("draw", "flow", flow)
    return Tape.of(outputs).draw(path, group=group, fold=fold, flow=variables_of_tree("draw", "outputs", outputs)[0] if flow else None)
