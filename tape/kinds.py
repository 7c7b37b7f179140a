"""Kinds: what is known of a value before there is one, and where on the tape it stands."""

from __future__ import annotations

from typing import Any

from tape.pullback import differentiable

__all__ = ["DIFFERENTIABLE", "PLAIN", "UNRECORDED", "Kind", "LeafPlace", "Place", "kind_of", "kinds_of"]

# How the results of an entry relate to gradients; integer and boolean ones are PLAIN whatever the entry is.
PLAIN, DIFFERENTIABLE, UNRECORDED = 0, 1, 2

_LIMIT = 1 << 16


class Kind:
    """What is known of a value without its value: shape and dtype (``aval``), ``requires_grad``, and ``unrecorded``.

    ``unrecorded`` marks gradients that were taken without ``create_graph``: differentiating through them would lose a gradient.
    Kinds are interned, so that they are compared by identity.
    """

    __slots__ = ("aval", "requires_grad", "unrecorded")

    def __init__(self, aval: Any, requires_grad: bool, unrecorded: bool) -> None:
        self.aval = aval
        self.requires_grad = requires_grad
        self.unrecorded = unrecorded


_KINDS: dict[tuple[Any, bool, bool], Kind] = {}


def kind_of(aval: Any, *, requires_grad: bool = False, unrecorded: bool = False) -> Kind:
    """Return the one Kind of these properties."""
    key = (aval, requires_grad, unrecorded)
    found = _KINDS.get(key)
    if found is None:
        if len(_KINDS) > _LIMIT:
            _KINDS.clear()  # structures met from now on are new ones; nothing else depends on it
        found = _KINDS[key] = Kind(aval, requires_grad, unrecorded)
    return found


def kinds_of(avals: tuple[Any, ...], role: int) -> tuple[Kind, ...]:
    """Return the kinds of an entry's results, of the given shapes and dtypes, in one of the roles above."""
    inexact = [role != PLAIN and differentiable(a) for a in avals]
    return tuple(
        kind_of(a, requires_grad=i and role == DIFFERENTIABLE, unrecorded=i and role == UNRECORDED)
        for a, i in zip(avals, inexact, strict=True)
    )


class Place:
    """One slot of a segment: its number and kind.  A slot of -1 is a value outside any segment."""

    __slots__ = ("kind", "slot")

    segment: Any = None  # a leaf's value comes from there (LeafPlace)

    def __init__(self, slot: int, kind: Kind) -> None:
        self.slot = slot
        self.kind = kind


class LeafPlace(Place):
    """The place of a leaf that was made of a pending value: the segment is the one that will give it."""

    __slots__ = ("__weakref__", "segment")

    def __init__(self, slot: int, kind: Kind, segment: Any) -> None:
        super().__init__(slot, kind)
        self.segment = segment
