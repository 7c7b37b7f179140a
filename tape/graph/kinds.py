"""Kinds: what is known of a value before there is one, and where on the tape it stands."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from tape import errors, layout
from tape.bounded import Bounded
from tape.jaxapi import X64, ShapedArray

# How the results of an entry relate to gradients; integer and boolean ones are PLAIN whatever the entry is.  A further role is to be
# unrecorded for a reason given in words: the words themselves.
PLAIN, DIFFERENTIABLE, UNRECORDED = 0, 1, 2
Role = int | str


def differentiable(aval: Any) -> bool:
    """Tell whether a value of this dtype can carry a gradient (floating or complex)."""
    return _inexact(aval.dtype)


@functools.cache
def _inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


class Kind(layout.Kind):
    """What is known of a value without its value: shape and dtype (``aval``), ``requires_grad``, and ``unrecorded``.

    ``unrecorded`` marks what was computed from differentiable values without recording, so that differentiating through it would lose a
    gradient: True where a sweep without ``create_graph`` did, otherwise the reason and the repair, in words.  Kinds are interned, so that
    they are compared by identity.
    """

    __slots__ = ()

    sharding: Any = None  # how a gradient of it is to lie on several devices (PlacedKind)

    def __init__(self, aval: Any, requires_grad: bool, unrecorded: bool | str) -> None:
        self.aval = aval
        self.requires_grad = requires_grad
        self.unrecorded = unrecorded


class PlacedKind(Kind):
    """The kind of a leaf that lies on several devices in a way that its type does not tell: its gradients are to lie so, too."""

    __slots__ = ("sharding",)

    def __init__(self, aval: Any, requires_grad: bool, unrecorded: bool | str, sharding: NamedSharding) -> None:
        super().__init__(aval, requires_grad, unrecorded)
        self.sharding = sharding


_KINDS: Bounded[tuple[Any, ...], Kind] = Bounded("kinds", 1 << 16)  # where one was dropped, structures with it are new ones: nothing worse


def kind_of(aval: object, *, requires_grad: bool = False, unrecorded: bool | str = False, sharding: NamedSharding | None = None) -> Kind:
    """Return the one Kind of these properties."""
    key = (aval, requires_grad, unrecorded) if sharding is None else (aval, requires_grad, unrecorded, sharding)
    kind = _KINDS.get(key)
    if kind is None:
        new = Kind(aval, requires_grad, unrecorded) if sharding is None else PlacedKind(aval, requires_grad, unrecorded, sharding)
        kind = _KINDS[key] = new
    return kind


def leaf_kind(value: object, *, requires_grad: bool) -> Kind:
    """Return the kind of a leaf that holds an array; one that requires grad has its sharding, where that is over several devices."""
    return kind_of(jax.typeof(value), requires_grad=requires_grad, sharding=sharding_of(value) if requires_grad else None)


def sharding_of(value: object) -> NamedSharding | None:
    """Return how an array is bound to several devices; None where it is not, and where its type tells (on explicit axes of a mesh)."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or not value.committed:
        return None
    sharding = value.sharding
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1 or AxisType.Explicit in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, sharding.spec)  # whatever memory it is in


def varying(value: Any) -> frozenset[str]:
    """Return the axes of a mesh over which a value, or one of this type, varies, in a ``jax.shard_map`` that checks it."""
    aval = value if isinstance(value, ShapedArray) else jax.typeof(value)
    types: Any = getattr(aval, "mat", None)  # until JAX 0.10 it is there itself
    return frozenset(getattr(aval, "vma", ()) if types is None else types.varying)


def cotangent_aval(aval: Any) -> ShapedArray:
    """Return the shape and dtype of a value's cotangent, which lies on the devices of a mesh, and varies over them, as the value does."""
    mesh = aval.sharding.mesh
    plain = mesh.empty or (AxisType.Manual in mesh.axis_types and not varying(aval))
    return ShapedArray(aval.shape, aval.dtype) if plain else aval.strip_weak_type()


def kinds_of(avals: tuple[Any, ...], role: Role) -> tuple[Kind, ...]:
    """Return the kinds of an entry's results, of the given shapes and dtypes, in one of the roles above."""
    inexact = [role != PLAIN and differentiable(a) for a in avals]
    unrecorded = role if isinstance(role, str) else role == UNRECORDED
    return tuple(
        kind_of(a, requires_grad=i and role == DIFFERENTIABLE, unrecorded=i and unrecorded) for a, i in zip(avals, inexact, strict=True)
    )


# Numbers of Python (weakly typed) and NumPy (of their dtypes).  Each place of use is an input of its own, whatever the number: two that
# happen to be equal would otherwise be one input, and the tape another structure.
NUMBERS = frozenset({bool, int, float, complex})

# By type, without and with 64-bit types.
KINDS: tuple[dict[type, Kind], dict[type, Kind]] = ({}, {})

WIDER = "pass a float, or have 64-bit integers by jax.config.update('jax_enable_x64', True)"
SMALL = 2**31  # smaller integers always fit


def is_scalar(value: object) -> bool:
    """Tell whether a value is a number of Python or NumPy, not an array: the same wherever it is met."""
    return value.__class__ in NUMBERS or isinstance(value, np.generic)


def scalar_kind(value: object) -> Kind:
    """Return the kind of a scalar, unless the default integer type does not hold it, or JAX makes no array of it."""
    x64 = X64.value
    if isinstance(value, int) and not -SMALL <= value < SMALL:
        bits = 64 if x64 else 32
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            msg = f"Python integer {value} is out of bounds for int{bits}; {WIDER}"
            raise errors.TapeOverflowError(msg)
    kinds = KINDS[x64]
    kind = kinds.get(value.__class__)
    if kind is None:
        kind = kinds[value.__class__] = kind_of(jax.typeof(value))
    return kind


def why_unrecorded(unrecorded: bool | str, line: tuple[str, int] | None = None) -> str:
    """Say why a value has no derivative on the tape, and what to do about it.

    ``made`` is the line of a file where it was made, if that is known, or where an equal tape was recorded first: those share their lines.
    """
    if isinstance(unrecorded, str):
        return unrecorded if line is None else f"{unrecorded} (it was first made at {line[0]}:{line[1]})"
    at = "" if line is None else f", first at {line[0]}:{line[1]}"
    return (
        f"it is a gradient that was taken without recording{at} (or a value that a hook or the forward of a tape.Function computed), so "
        "its own derivative would be lost; pass create_graph=True where the gradient was taken, or .detach() it to use it as a constant; a "
        "parameter is updated by it under `with tape.no_grad(): w -= 0.1 * w.grad`, and a hook or a backward that differentiates something "
        "records under `with tape.enable_grad():`"
    )


class Place(layout.Place):
    """One slot of a segment: its number and kind.  A slot of -1 is a value outside any segment."""

    __slots__ = ()

    segment: Any = None  # a leaf's value comes from there (LeafPlace)
    made: Any = None  # where in the user's files (MadePlace)
    given = False  # the leaf is an argument of a function, made for one call of it (GivenPlace)

    def __init__(self, slot: int, kind: Kind) -> None:
        self.slot = slot
        self.kind = kind


class MadePlace(Place):
    """The place of an unrecorded value: the user's file and line where it was made, or the slot of a leaf that knows (of its segment)."""

    __slots__ = ("made",)

    def __init__(self, slot: int, kind: Kind, made: tuple[str, int] | int | None) -> None:
        self.slot = slot
        self.kind = kind
        self.made = made


class GivenPlace(Place):
    """The place of a leaf that is made for an argument of a function: to the function it is a value."""

    __slots__ = ()

    given = True


class LeafPlace(Place):
    """The place of a leaf that was made of a pending value: the segment is the one that will give it."""

    __slots__ = ("__weakref__", "segment")

    def __init__(self, slot: int, kind: Kind, segment: Any) -> None:
        self.slot = slot
        self.kind = kind
        self.segment = segment
