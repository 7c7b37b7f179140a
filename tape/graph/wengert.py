"""The Wengert list: entries in order, each of which reads values by their numbers and gives new ones.

A jaxpr is one (:mod:`tape.ops.linear`), and so are the entries of a tape (:meth:`tape.graph.trie.State.path`) and what a sweep writes
(:class:`tape.sweeps.plan.Instruction`).  Whatever has :class:`Entry`'s two attributes can be walked and swept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Constant", "Entry", "Source", "WengertList"]


class Constant:
    """An input of an entry that is known when the list is made: a literal, or a constant of the jaxpr."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Any) -> None:
        self.value = value
        self.aval = aval


Source = int | Constant


class Entry(Protocol):
    """One line of a list: ``inputs`` are slots (or constants), which entries before it give; ``slots`` are those of its results."""

    @property
    def inputs(self) -> Sequence[Source]:
        """What it reads."""

    @property
    def slots(self) -> Sequence[int]:
        """What it gives."""


E = TypeVar("E", bound=Entry)


class WengertList(Generic[E]):
    """Entries as a function: slots ``0 .. n_inputs - 1`` are the inputs; ``avals[slot]`` is a slot's shape and dtype."""

    __slots__ = ("avals", "entries", "n_inputs", "outputs")

    def __init__(self, avals: list[Any]) -> None:
        self.n_inputs = len(avals)
        self.avals = avals
        self.entries: list[E] = []
        self.outputs: tuple[Source, ...] = ()

    def aval(self, source: Source) -> Any:
        """Return the shape and dtype of a slot or constant."""
        return source.aval if isinstance(source, Constant) else self.avals[source]
