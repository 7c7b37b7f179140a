"""Reasons: why a structure is compiled, where one much like it was compiled before (:func:`tape.stats`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tape.bounded import Bounded

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tape.configuration import Configuration
    from tape.graph.trie import Step

__all__ = ["why"]


class _Known(NamedTuple):
    avals: tuple[Any, ...]
    kernels: tuple[Any, ...]
    inputs: tuple[Any, ...]
    settings: Configuration


_COMPILED: Bounded[Hashable, _Known] = Bounded("reasons", 512)  # by the names of the entries: the last one of these names


def why(entries: Sequence[Step], leaves: Sequence[Any], settings: Configuration) -> str:
    """Say what is new about a structure that is about to be compiled, and remember it.

    Args:
        entries: its entries.
        leaves: shapes and dtypes of its leaves.
        settings: JAX's, under which it was recorded.

    """
    key = tuple([e.kernel.name for e in entries])
    known = _COMPILED.get(key)
    now = _Known(tuple(leaves), tuple([e.kernel for e in entries]), tuple([e.inputs for e in entries]), settings)
    _COMPILED[key] = now
    if known is None or len(known.avals) != len(now.avals):
        return "new structure"
    if known.settings is not settings:
        return "other settings of JAX"
    if known.avals != now.avals:
        old, new = next((a, b) for a, b in zip(known.avals, now.avals, strict=True) if a != b)
        return f"new shape or dtype: {_short(old)}, then {_short(new)}"
    if known.inputs != now.inputs:
        return "new structure"
    for entry, kernel in zip(entries, known.kernels, strict=True):
        if entry.kernel is not kernel:
            at = "" if entry.where is None else f" ({entry.where[0]}:{entry.where[1]})"
            return f"another function or parameter in {entry.kernel.name}{at}"
    return "other results are held"


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
