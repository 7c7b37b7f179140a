"""Interning: equal traced programs are one op, so that a function made anew at each call does not make a new structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape.bounded import Bounded
from tape.configuration import configuration
from tape.ops.fingerprint import fingerprint
from tape.ops.kernel import Kernel, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tape import jaxapi

__all__ = ["intern", "intern_op"]

_OPS: Bounded[Hashable, Op] = Bounded("programs of callables", 2048)


def intern(name: str, jaxpr: jaxapi.ClosedJaxpr, tree: Any) -> Op:
    """Return the op of a traced program, the same one for an equal program.

    Args:
        name: what the op is called.
        jaxpr: the program; constants in it are compared by identity.
        tree: the tree of its results.

    """
    key = (name, tree, fingerprint(jaxpr), configuration())
    found = _OPS.get(key)
    if found is not None:
        _OPS[key] = found  # the newest again
        return found
    kernel = Kernel(name, jaxpr, tree)
    made = Op(name, lambda *arrays: jax.tree.unflatten(tree, kernel.inline(*arrays)))
    made.adopt(kernel)
    _OPS[key] = made
    return made


_BY_KEY: dict[Hashable, Op] = {}


def intern_op(key: Hashable, make: Callable[[], Op]) -> Op:
    """Return the op known under ``key``, made at the first meeting."""
    found = _BY_KEY.get(key)
    if found is None:
        found = _BY_KEY[key] = make()
    return found
