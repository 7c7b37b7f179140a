"""What of a sweep JAX cannot see, where it differentiates the ops of a tape itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.recording.segment import Segment

__all__ = ["hides"]


def hides(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether a sweep from outputs to inputs (leaves) may meet a hook: on a Variable, or inside of a step of ``tape.jit``."""
    if any(v._extra is not None and v._extra.node is not None and v._extra.node.hooks for v in inputs):
        return True
    stack: list[Segment] = [v._segment for v in outputs if v._segment is not None]
    seen: set[int] = set()
    while stack:
        segment = stack.pop()
        if id(segment) in seen:
            continue
        seen.add(id(segment))
        if any(segment.hooks.values()) or any(getattr(step.kernel, "hooked", False) for step in segment.state.path()):
            return True
        stack.extend(origin[0] for origin in segment.origins.values() if isinstance(origin, tuple))
    return False
