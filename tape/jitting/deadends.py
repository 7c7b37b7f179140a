"""Dead ends: Variables that a step leaves behind and that no sweep can go through, which say why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tape.errors import TapeError
from tape.graph.kinds import Kind, Place, kind_of
from tape.graph.segment import NOTHING, LeafNode, Segment
from tape.graph.trie import RECORD, State


class _DeadEnd:
    """The kernel of an entry through which no sweep goes: it says why."""

    transient = True  # so that no structure remembers it
    cheap = False
    visible = 1
    single = True
    tree = None
    name = "jit"
    params = None
    bytes = 0
    within: ClassVar[dict[int, Any]] = {}
    _cache: ClassVar[dict[Any, Any]] = {}  # of no VJP; the recorder in C asks there first

    def __init__(self, kind: Kind, error: TapeError) -> None:
        self.out_avals = (kind.aval,)
        self._kind = kind
        self._error = error

    def augmented(self) -> _DeadEnd:
        return self

    def kinds(self, _: int) -> tuple[Kind, ...]:
        return (self._kind,)

    def vjp(self, *_: Any) -> Any:
        raise type(self._error)(*self._error.args)

    vjp_call = vjp


def dead_end(kind: Kind, error: TapeError, leaves: Sequence[LeafNode]) -> tuple[Segment, Place]:
    """Return a segment, and a place in it, for Variables of this kind whose sweep is an error."""
    segment = Segment(RECORD)
    state = State(None, RECORD)
    leaf = kind_of(kind.aval, requires_grad=True)
    count = max(1, len(leaves))
    for _ in range(count):
        state = state.leaf(leaf)
    segment.origins.update(enumerate(leaves))
    kernel: Any = _DeadEnd(kind, error)
    state = state.entry((kernel,), kernel, kernel, tuple(range(count)))
    segment.state = state
    segment.epoch = None
    segment.ran(NOTHING)
    assert state.place is not None
    return segment, state.place
