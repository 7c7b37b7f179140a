"""What JAX says about its own compilations: seconds spent tracing, lowering and compiling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.monitoring

__all__ = ["Compiles", "watching"]

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
    "/jax/core/compile/backend_compile_duration": "compiled",
}


@dataclass(eq=False)
class Compiles:
    """Seconds of each trace, lowering and compilation while watching."""

    traced: list[float] = field(default_factory=list)
    lowered: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)

    @property
    def longest(self) -> float:
        """Seconds of the longest compilation."""
        return max(self.compiled, default=0.0)


_WATCHING: list[Compiles] = []


def _hear(event: str, duration_secs: float, **_: Any) -> None:
    if event in _EVENTS:
        for compiles in _WATCHING:
            getattr(compiles, _EVENTS[event]).append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_hear)  # for good: a listener cannot be taken off by public names


@contextlib.contextmanager
def watching() -> Iterator[Compiles]:
    """Gather what JAX traces, lowers and compiles, in any thread."""
    compiles = Compiles()
    _WATCHING.append(compiles)
    try:
        yield compiles
    finally:
        _WATCHING.remove(compiles)
