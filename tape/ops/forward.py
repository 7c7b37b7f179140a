"""The forward values of a jaxpr's entries, each computed when somebody reads it: arrays, tracers, or variables of a jaxpr that is being built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tape.graph.wengert import Constant, leading, producers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.wengert import Source, WengertList
    from tape.ops.linear import Equation

__all__ = ["ForwardValues"]

V = TypeVar("V")


class ForwardValues(Generic[V]):
    """What is known of a list's slots (``values``), and what follows from it.

    Args:
        listed: the list.
        run: computes the results of an entry from its inputs.
        constant: returns the value of a constant.

    """

    def __init__(
        self, listed: WengertList[Equation], run: Callable[[Equation, list[V]], Sequence[V]], constant: Callable[[Constant], V]
    ) -> None:
        self.values: dict[int, V] = {}
        self.makers = producers(listed.entries)
        self._run = run
        self._constant = constant

    def read(self, source: Source) -> V:
        """Return the value of a slot, running the entries that it depends on, each once, or of a constant."""
        if isinstance(source, Constant):
            return self._constant(source)
        if source not in self.values:
            for entry in leading([source], self.makers, self.values)[0]:
                self.run(entry)
        return self.values[source]

    def run(self, entry: Equation) -> None:
        """Compute the results of an entry; what is known stays."""
        if not all(slot in self.values for slot in entry.slots):
            results = self._run(entry, [self.read(source) for source in entry.inputs])
            for slot, value in zip(entry.slots, results, strict=True):
                self.values.setdefault(slot, value)
