"""Interpretation: the entries of a structure run one by one, on the host (:mod:`tape.ops.hosting`), or each kernel compiled on its own.

Kernels that are to be compiled are so before, two at a time: the compiler does not hold Python's lock, so the thread of
:mod:`tape.programs.background` takes half of them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.configuration import checks_results
from tape.graph.wengert import last_uses, needed
from tape.programs import background
from tape.programs.failures import StoppedError
from tape.programs.handing import to_jax

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
    if at_home(leaves):
        return _on_host(state, keep, leaves)
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


def at_home(leaves: Sequence[Any]) -> bool:
    """Tell whether all arrays are in the host's memory anyway, and JAX would put the results there too."""
    found = False
    for x in leaves:
        if isinstance(x, jax.Array):
            if x.committed or not _on_cpu(x.sharding):
                return False
            found = True
    if checks_results() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return False
    return found or (jax.config.jax_default_device is None and jax.default_backend() == "cpu")  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def _on_cpu(sharding: jax.sharding.Sharding) -> bool:
    devices: set[Any] = sharding.device_set
    return isinstance(sharding, jax.sharding.SingleDeviceSharding) and all(d.platform == "cpu" for d in devices)


_REFUSALS = (LookupError, TypeError, ValueError, AttributeError)


def _on_host(state: State, keep: tuple[int, ...], leaves: Sequence[Any]) -> tuple[list[Any], int]:
    """:func:`interpret` where NumPy runs the kernels that it can: it has run three before JAX has called one."""
    table = state.table
    given: dict[int, Any] = {}  # what JAX has: leaves, and results of XLA
    values: dict[int, Any] = {}  # what NumPy has
    reached = set(keep)
    apart, reach = reached.isdisjoint, reached.update
    steps: list[tuple[Step, Any]] = []  # entries, with what runs them and is light, or what no other one reads after them
    left = len(leaves)
    cold = 0
    for step in reversed(state.path()):
        kernel, slots = step.kernel, step.slots
        if kernel is None:
            if slots:
                left -= 1
                slot = slots[0]
                given[slot] = leaf = leaves[left]
                if slot in reached and isinstance(dtype := table[slot].kind.aval.dtype, np.dtype):
                    values[slot] = np.asarray(leaf, dtype)
        elif not apart(slots):
            inputs = step.inputs
            if kernel.light:
                steps.append((step, None))
            else:
                cold += kernel.cold
                steps.append((step, [s for s in inputs if s not in reached]))
            reach(inputs)
    steps.reverse()
    if cold > 1:
        _prepare([step for step, _ in steps], dict(given))
    read = values.__getitem__
    done = 0

    def fetched(s: int) -> Any:
        """Return a value as NumPy has it."""
        if s not in values:
            values[s] = np.asarray(given[s])
        return values[s]

    def again(host: Any, inputs: Sequence[int]) -> tuple[Any, Any]:
        """Run with what only JAX had so far; should NumPy refuse it, XLA is to."""
        operands = list(map(fetched, inputs))
        try:
            return host, host(*operands)
        except _REFUSALS:
            return None, None

    def to_give(s: int) -> Any:
        """Return a value as JAX has it."""
        if s not in given:
            given[s] = to_jax(values[s], table[s].kind.aval)
        return given[s]

    try:
        with np.errstate(all="ignore"):  # NumPy warns where XLA does not
            for step, ends in steps:
                inputs, slots, kernel = step.inputs, step.slots, step.kernel
                host = kernel._host if ends is None else kernel.host
                if host:
                    try:
                        results = host(*map(read, inputs))
                    except _REFUSALS:
                        host, results = again(host, inputs)
                if host:
                    if len(slots) == 1:
                        values[slots[0]] = results
                    else:
                        values.update(zip(slots, results, strict=True))
                else:
                    kernel.leave_to_xla()
                    given.update(zip(slots, kernel.executable(*map(to_give, inputs)), strict=True))
                if ends:  # so that big values are freed as by plain Python
                    for s in ends:
                        values.pop(s, None)
                        given.pop(s, None)
                done += 1
            return [to_give(s) for s in keep], len(steps)
    except Exception as error:
        for s in values:
            to_give(s)
        raise StoppedError(done, given) from error


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
