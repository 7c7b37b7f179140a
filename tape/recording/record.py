"""Recording: an op on Variables becomes an entry of the pending segment, and runs nothing.

There are two recorders (:mod:`tape.layout` says which one runs) with one contract.  ``record``, ``record_one``, ``record_two`` and
``record_number`` *enter* as leaves of the thread's pending segment what is new to it, *look up* the state that follows on the trie by the
op and the slots of its inputs, *commit* the entry in one breath, and *hand out* the Variables of its results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tape import jaxapi, layout
from tape.configuration import CHANGES
from tape.graph import constants, trie
from tape.graph.constants import (
    ARRAYS,
    COPIES,
    KINDS_OF_ARRAYS,
    KINDS_OF_COPIES,
    constant,
    constant_from,
    copied,
    handle,
    kept,
    leaf,
    no_array,
    operand,
    scalar,
)
from tape.graph.scope import LOCAL, Scope
from tape.graph.segment import Extra, Handle, LeafNode, node_of
from tape.graph.watcher import NOBODY
from tape.ops.kernel import Op
from tape.programs import growth
from tape.recording import plain, staging
from tape.recording.entering import CONCRETE, begun, current
from tape.recording.template import ARRAY, NUMBER, SEQUENCE

__all__ = [
    "LOCAL",
    "connect",
    "constant",
    "constant_from",
    "current",
    "handle",
    "kept",
    "leaf",
    "no_array",
    "node_of",
    "operand",
    "quick",
    "reading",
    "record",
    "record_number",
    "record_one",
    "record_two",
    "repeating",
    "scalar",
]

record, record_one, record_two, record_number = plain.record, plain.record_one, plain.record_two, plain.record_number
if layout.NATIVE is not None:
    record, record_one, record_two = layout.NATIVE.record, layout.NATIVE.record_one, layout.NATIVE.record_two
    record_number = layout.NATIVE.record_number


F = TypeVar("F", bound="Callable[..., Any]")


def quick(function: Callable[..., Any], **knowing: Any) -> Callable[..., Any]:
    """Return what calls ``function``, where the recorder in C runs only for calls that it does not know.

    It knows those of one Variable, if there is an op ``one``, those of two operands by an op ``two`` (``swapped``: the second one first),
    those that are ``known`` by a :func:`tape.mirrored.roles.quick_key`, all that another such function knows (``through`` it), and, where
    the second operand is an index, those of which there are ``starts`` and ``plans`` (:mod:`tape.variables.indexing`).  Where it ``reads``
    a number, it knows those of a Variable without axes; what it ``does`` is said at :func:`repeating`.
    """
    return function if layout.NATIVE is None else layout.NATIVE.Function(function, **knowing)


def reading(kind: type | None) -> Callable[[F], F]:
    """Decorate a method that returns a Variable's number as this type (None: as it is): the recorder in C reads it where it is there."""
    return _quickly(reads=kind)


def repeating(does: int, **knowing: Any) -> Callable[[F], F]:
    """Decorate what the recorder in C does again as before: sweeps to leaves or to what is wanted, detachment, steps of ``tape.jit``.

    They are 1 to 4.  Of the first it knows calls from one root, of the third those for what is pending, by an op ``one``, of the last
    calls that are like the one before but for values.  5 is what enters and leaves modes, 6 calls of ufuncs with counterparts that are
    ``known``.
    """
    return _quickly(does=does, **knowing)


def _quickly(**knowing: Any) -> Callable[[F], F]:
    def quickened(function: F) -> F:
        if layout.NATIVE is None:
            return function
        front: Any = quick(function, **knowing)
        functools.update_wrapper(front, function)
        return front  # type: ignore[no-any-return]

    return quickened


def connect(variable_type: type[Handle]) -> None:
    """Tell the recorder what it makes: the class of Variables stands above it, since its operators record."""
    constants.connect(variable_type)
    plain.connect(variable_type)
    if layout.NATIVE is not None:
        layout.NATIVE.connect(
            variable=variable_type,
            record=plain.record,
            begun=begun,
            node_of=node_of,
            changes=CHANGES,
            nobody=NOBODY,
            concrete=CONCRETE,
            arrays=ARRAYS,
            kinds=KINDS_OF_ARRAYS,
            copied=copied,
            copies=COPIES,
            x64=jaxapi.X64,
            kinds_of_copies=KINDS_OF_COPIES,
            most=COPIES.limit,
            numpy=np.ndarray,
            generic=np.generic,
            dtype=np.dtype,
            marks=(ARRAY, NUMBER),
            leaf_node=LeafNode,
            extra=Extra,
            caller=Scope._fields.index("caller"),
            forward=Scope._fields.index("forward"),
            trace=Scope._fields.index("trace"),
            sequence=SEQUENCE,
            growth=growth,
            follow=plain.follow,
            staged=staging.begun,
        )
        layout.NATIVE.continues(**trie.making(), op=Op, axes_are_named=jaxapi.axes_are_named, named_axes=jaxapi.named_axes)
