"""What of a sweep JAX cannot see, or refuses, where it differentiates the ops of a tape itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape import jaxapi
from tape.ops.linear import equations_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tape.graph.segment import Segment

__all__ = ["hides", "refuses"]

_SCATTER_MUL = jaxapi.primitive("scatter_mul")


def hides(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether a sweep from outputs to inputs (leaves) may meet a hook: on a Variable, or inside of a step of ``tape.jit``."""
    if any(v._extra is not None and v._extra.node is not None and v._extra.node.hooks for v in inputs):
        return True
    return any(
        any(segment.hooks.values()) or any(getattr(step.kernel, "hooked", False) for step in segment.state.path())
        for segment in _behind(outputs)
    )


def refuses(outputs: Sequence[Any]) -> bool:
    """Tell whether JAX has no derivative of what leads to outputs, though the tape has: of a product at places that may repeat."""
    return any(
        eqn.primitive is _SCATTER_MUL and not eqn.params["unique_indices"]
        for segment in _behind(outputs)
        for step in segment.state.path()
        if step.kernel is not None
        for eqn in equations_in(step.kernel.jaxpr.jaxpr)
    )


def _behind(outputs: Sequence[Any]) -> Iterator[Segment]:
    """Return the segments that lead to outputs."""
    stack: list[Segment] = [v._segment for v in outputs if v._segment is not None]
    seen: set[int] = set()
    while stack:
        segment = stack.pop()
        if id(segment) not in seen:
            seen.add(id(segment))
            yield segment
            stack.extend(origin[0] for origin in segment.origins.values() if isinstance(origin, tuple))
