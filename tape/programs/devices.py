"""Several devices: what runs on more than one is compiled sooner, by rules that do not ask the clock, and waited for on CPU.

Processes that share devices must launch the same programs in the same order, or their collectives wait for each other for good; so there
nothing may depend on when a compiler was done.  And XLA's CPU devices run programs on a pool of threads in which collectives of programs
that are under way at the same time may hold all threads while they wait for more: so of those there is one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from tape import jaxapi


def several(values: Iterable[Any]) -> bool:
    """Tell whether one of some values is on several devices, or other processes may take part in what is computed."""
    return there_are_several() and (jax.process_count() > 1 or any(map(spread, values)))


def there_are_several() -> bool:
    """Tell whether JAX has several devices now: as many as it likes may be there after ``jax.extend.backend.clear_backends()``."""
    return jax.device_count() > 1


def spread(value: Any) -> bool:
    """Tell whether a value lies on several devices."""
    return isinstance(value, jax.Array) and not isinstance(value, jaxapi.Tracer) and len(value.sharding.device_set) > 1


def settling(program: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Return a program that waits for its results where they are on several CPU devices: as it is where there is one device."""
    return (lambda *given: settled(program(*given))) if there_are_several() else program


def settled(results: Sequence[Any]) -> Sequence[Any]:
    """Wait for the results of a program, where there are several devices, if they are on several CPU devices; all of them come at once."""
    for x in results:
        if isinstance(x, jax.Array) and not isinstance(x, jaxapi.Tracer) and _on_cpus(x.sharding):
            x.block_until_ready()
            break
    return results


@functools.lru_cache(maxsize=1024)
def _on_cpus(sharding: jax.sharding.Sharding) -> bool:
    devices: set[Any] = sharding.device_set
    return len(devices) > 1 and all(d.platform == "cpu" for d in devices)
