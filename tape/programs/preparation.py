"""Preparation: kernels that are about to run for the first time, compiled two at a time before the run.

Interpreting a structure of new kernels would compile them one after the other, each when its turn comes.  The compiler does not hold
Python's lock, so the thread of :mod:`tape.programs.background` compiles half of them meanwhile.  What runs stays the same.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.configuration import applying, configuration
from tape.programs import background

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["prepare"]


def prepare(entries: Sequence[Any], slots: Sequence[int], leaves: Sequence[Any]) -> None:
    """Compile the kernels of ``entries`` that never ran.

    Args:
        entries: what is to run, in order.
        slots: the slots of the leaves.
        leaves: their values.

    """
    cold = {entry.kernel for entry in entries if entry.kernel.cold and not entry.kernel.pinned}
    if len(cold) < 2 or jax.config.jax_disable_jit or not all(map(_on_one_device, leaves)):  # type: ignore[attr-defined]
        return
    known = dict(zip(slots, map(jaxapi.described, leaves), strict=True))
    settings = configuration()
    jobs = []
    for entry in entries:
        inputs = [known[s] for s in entry.inputs]
        kernel = entry.kernel
        if kernel in cold:
            cold.remove(kernel)
            jobs.append(background.submit(_compiling(kernel.executable, inputs, settings)))
        committed = next((x.sharding for x in inputs if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None), None)
        for s, aval in zip(entry.slots, kernel.out_avals, strict=True):
            known[s] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=committed, weak_type=aval.weak_type)
    for job in reversed(jobs):  # the last ones here, while the other thread is at the first ones
        with contextlib.suppress(Exception):  # the run raises it where it belongs
            job.wait()


def _on_one_device(value: Any) -> bool:
    """Tell whether JAX puts what is computed from a value where the value is."""
    return not isinstance(value, jax.Array) or isinstance(value.sharding, jax.sharding.SingleDeviceSharding)


def _compiling(executable: Any, inputs: Sequence[Any], settings: Any) -> Callable[[], None]:
    def compiled() -> None:
        with applying(settings):
            executable.lower(*inputs).compile()  # a call finds what was compiled before for the same shapes, dtypes and devices

    return compiled
