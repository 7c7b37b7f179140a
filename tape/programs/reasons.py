"""Reasons: why a structure is compiled, where one much like it was compiled before (:func:`tape.stats`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.bounded import Bounded

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tape.configuration import Configuration
    from tape.graph.trie import Step
    from tape.ops.kernel import Kernel

__all__ = ["why"]


_Known = tuple[tuple[Any, ...], tuple["Kernel", ...], tuple[tuple[int, ...], ...], "Configuration"]

_COMPILED: Bounded[Hashable, _Known] = Bounded("reasons", 512)  # by the names of the entries: the last one of these names


def why(entries: Sequence[Step], leaves: Sequence[Any], settings: Configuration) -> str:
    """Say what is new about a structure, for leaves of these shapes and dtypes, that is about to be compiled, and remember it."""
    key = tuple([e.kernel.name for e in entries])
    known = _COMPILED.get(key)
    _COMPILED[key] = tuple(leaves), tuple([e.kernel for e in entries]), tuple([e.inputs for e in entries]), settings
    if known is None or len(known[0]) != len(leaves):
        return "new structure"
    avals, kernels, inputs, before = known
    if before is not settings:
        return "other settings of JAX"
    changed = [(old, new) for old, new in zip(avals, leaves, strict=True) if old != new]
    if changed:
        return "new shape or dtype: {}, then {}".format(*map(_short, changed[0]))
    if inputs != tuple([e.inputs for e in entries]):
        return "new structure"
    for entry, kernel in zip(entries, kernels, strict=True):
        if entry.kernel is not kernel:
            at = "" if entry.where is None else f" ({entry.where[0]}:{entry.where[1]})"
            return f"another function or parameter in {entry.kernel.name}{at}"
    return "other results are held"


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
