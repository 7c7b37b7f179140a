"""Interpretation: the entries of a structure run one by one, each kernel compiled on its own and shared by all.

Kernels that never ran are compiled before, two at a time: the compiler does not hold Python's lock, so the thread of
:mod:`tape.programs.background` takes half of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.graph.wengert import last_uses, needed
from tape.programs import background
from tape.programs.failures import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tape.graph.trie import State, Step


def needed_entries(state: State, keep: Iterable[int]) -> tuple[list[Step], list[int]]:
    """Return the entries that ``keep`` depends on, in order, and the slots of all leaves."""
    path = state.path()
    leaves = [slot for step in path if step.kernel is None for slot in step.slots]
    return [step for step in needed(path, set(keep)) if step.kernel is not None], leaves


def evaluate(
    entries: Iterable[Step], values: dict[int, Any], keep: Sequence[int], call: Callable[[Step], Callable[..., Sequence[Any]]]
) -> list[Any]:
    """Return the values of the slots ``keep``, with the function that ``call`` gives for each entry; ``values`` is used up.

    What no entry reads any more is dropped, so that big values are freed as by plain Python.
    """
    entries = list(entries)
    last = {**last_uses(entries), **dict.fromkeys(keep, len(entries))}
    for i, entry in enumerate(entries):
        inputs = entry.inputs
        results = call(entry)(*[values[s] for s in inputs])
        for s in inputs:
            if last[s] == i:
                values.pop(s, None)
        values.update([(s, result) for s, result in zip(entry.slots, results, strict=True) if s in last])
    return [values[s] for s in keep]


def interpret(state: State, keep: tuple[int, ...], leaves: Sequence[Any]) -> tuple[list[Any], int]:
    """Return the values of ``keep``, and how many entries ran for that; should one fail, StoppedError tells which."""
    entries, slots = needed_entries(state, keep)
    values = dict(zip(slots, leaves, strict=True))
    _prepare(entries, values)
    done = 0

    def executable(entry: Step) -> Callable[..., Sequence[Any]]:
        nonlocal done
        done += 1
        return entry.kernel.executable  # type: ignore[no-any-return]

    try:
        return evaluate(entries, values, keep, executable), len(entries)
    except Exception as error:
        raise StoppedError(done - 1, values) from error


def _prepare(entries: Sequence[Step], values: dict[int, Any]) -> None:
    """Compile the kernels that never ran, for leaves of these values."""
    cold = {entry.kernel for entry in entries if entry.kernel.cold and not entry.kernel.pinned}
    if len(cold) < 2 or jax.config.jax_disable_jit or not all(map(on_one_device, values.values())):  # type: ignore[attr-defined]
        return
    known = {slot: jaxapi.described(value) for slot, value in values.items()}
    jobs = []
    for entry in entries:
        inputs = [known[s] for s in entry.inputs]
        kernel = entry.kernel
        if kernel in cold:
            cold.remove(kernel)
            jobs.append(background.compiling(kernel.executable, inputs))
        committed = next((x.sharding for x in inputs if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None), None)
        for s, aval in zip(entry.slots, kernel.out_avals, strict=True):
            known[s] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=committed, weak_type=aval.weak_type)
    for job in reversed(jobs):  # the last ones here, while the other thread is at the first ones
        with contextlib.suppress(Exception):  # the run raises it where it belongs
            job.wait()


def on_one_device(value: object) -> bool:
    """Tell whether JAX puts what is computed from a value where the value is."""
    return not isinstance(value, jax.Array) or isinstance(value.sharding, jax.sharding.SingleDeviceSharding)
