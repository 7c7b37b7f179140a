"""Entries of ``tape.Function``: identities on what Python computed, whose VJP is Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.graph.segment import Handle
from tape.ops.kernel import Op
from tape.recording import record
from tape.sweeps.plan import FunctionOp

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["entry_op", "record_entry"]


def entry_op(function: Any, name: str, arguments: int, given: int, results: int) -> FunctionOp:
    """Return the op of an entry: the last ``results`` of its inputs, of which the first ``given`` are inputs of the function."""
    key = (name, arguments, given, results)
    found: FunctionOp | None = function._entry_ops.get(key)
    if found is None:
        identity = Op(name, (lambda *arrays: arrays[given]) if results == 1 else (lambda *arrays: arrays[given:]))
        found = function._entry_ops[key] = FunctionOp(name, identity, arguments)
    return found


def record_entry(op: FunctionOp, inputs: Sequence[Any]) -> Sequence[Any]:
    """Record an entry of such an op; return its results."""
    made = record.record(op, inputs)
    return (made,) if isinstance(made, Handle) else made
