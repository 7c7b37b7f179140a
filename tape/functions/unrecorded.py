"""Values without a derivative: what was computed without recording, and says so when somebody differentiates it.

Recording in a sweep with ``create_graph`` marks them by their kind.  Where JAX differentiates what is traced now, an identity whose
derivative is the error stands for the mark.
"""

from __future__ import annotations

from typing import Any

import jax

from tape.bounded import Bounded
from tape.errors import UnrecordedGradientError
from tape.ops.kernel import Op
from tape.recording import record

__all__ = ["refusing", "unrecorded"]


class _Cut(Op):
    """An identity whose result has no derivative; ``unrecorded`` says why."""

    __slots__ = ("unrecorded",)

    transparent = True  # op hooks do not see it

    def __init__(self, reason: str) -> None:
        super().__init__("unrecorded", refusing(reason))
        self.unrecorded = reason


_CUTS: Bounded[str, _Cut] = Bounded("cuts", 1024)


def unrecorded(variable: Any, reason: str) -> Any:
    """Return the same value with a mark: differentiating through it raises ``reason``."""
    return record.record(_CUTS.cached(reason, lambda: _Cut(reason)), (variable,))


def refusing(reason: str) -> Any:
    """Return an identity on arrays; JAX differentiating it raises ``reason``."""

    @jax.custom_jvp
    def once(x: Any) -> Any:
        return x

    @once.defjvp
    def refuse(_primals: Any, _tangents: Any) -> Any:
        raise UnrecordedGradientError(reason)

    return once
