"""Quick compilation: XLA's options for programs that run a few times on little data, where the compiler takes longer than all runs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

# In the order of their worth; XLA's older emitter of loops takes half the time of its new one.
_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@functools.cache
def quick_options(platform: str) -> dict[str, Any] | None:
    """Return those of the options that this version of XLA knows."""
    if platform != "cpu":
        return None
    lowered = jax.jit(lambda x: x).lower(np.float32(0))

    def known(options: dict[str, Any]) -> bool:
        try:
            lowered.compile(options)
        except Exception:  # noqa: BLE001 - whatever a version of XLA says of a name that it does not know
            return False
        return True

    if known(_OPTIONS):
        return dict(_OPTIONS)
    return {name: value for name, value in _OPTIONS.items() if known({name: value})}
