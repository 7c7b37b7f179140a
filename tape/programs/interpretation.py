"""Interpretation: the entries of a structure run one by one, on the host (:mod:`tape.ops.hosting`), or each kernel compiled on its own.

Kernels that are to be compiled are so before, two at a time: the compiler does not hold Python's lock, so the thread of
:mod:`tape.programs.background` takes half of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi, layout
from tape.configuration import checks_results
from tape.graph.kinds import Place
from tape.graph.trie import State, Step
from tape.graph.wengert import E, last_uses, needed
from tape.ops.hosting import REFUSALS
from tape.programs import background
from tape.programs.devices import settled, settling, there_are_several
from tape.programs.failures import StoppedError
from tape.programs.handing import to_jax


def needed_entries(state: State, keep: Iterable[int]) -> tuple[list[Step], list[int]]:
    """Return the entries that ``keep`` depends on, in order, and the slots of all leaves."""
    path = state.path()
    leaves: list[int] = []
    if layout.NATIVE is not None:
        walked: list[Step] | None = layout.NATIVE.needed(path, set(keep), leaves)
        if walked is not None:
            return walked, leaves
    leaves = [slot for step in path if step.kernel is None for slot in step.slots]
    return [step for step in needed(path, set(keep)) if step.kernel is not None], leaves


def evaluate(
    entries: Iterable[E], values: dict[Any, Any], keep: Sequence[int], call: Callable[[E], Callable[..., Sequence[Any]]]
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


def interpret(
    entries: Sequence[Step],
    slots: Sequence[int],
    table: Sequence[Place],
    keep: tuple[int, ...],
    leaves: Sequence[Any],
    hidden: Container[int],
    *,
    home: bool,
) -> list[Any]:
    """Run the entries that ``keep`` needs, on leaves of some slots; return its values.  Should one fail, StoppedError tells which.

    Nobody but sweeps sees those in slots that are ``hidden``; ``home`` is what :func:`at_home` says of the leaves.
    """
    if home and any(entry.kernel.hosting() for entry in entries):
        return _on_host(entries, slots, table, keep, leaves, hidden)
    _prepare(entries, dict(zip(slots, leaves, strict=True)))
    waits = there_are_several()
    return one_by_one(entries, slots, keep, leaves, lambda entry: settling(entry.kernel.executable) if waits else entry.kernel.executable)


def one_by_one(
    entries: Sequence[Step],
    slots: Sequence[int],
    keep: tuple[int, ...],
    leaves: Sequence[Any],
    call: Callable[[Step], Callable[..., Sequence[Any]]],
) -> list[Any]:
    """:func:`interpret` on JAX's arrays, with the function that ``call`` gives for each entry."""
    values = dict(zip(slots, leaves, strict=True))
    done = 0

    def executable(entry: Step) -> Callable[..., Sequence[Any]]:
        nonlocal done
        done += 1
        return call(entry)

    try:
        return evaluate(entries, values, keep, executable)
    except Exception as error:
        raise StoppedError(done - 1, values) from error


def at_home(leaves: Sequence[Any]) -> bool:
    """Tell whether all arrays are in the host's memory anyway, and JAX would put the results there too."""
    known = None
    for x in leaves:
        if _is_array(x.__class__):
            sharding = x.sharding
            if x.committed or not (sharding is known or _on_cpu(sharding)):
                return False
            known = sharding
    if checks_results() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return False
    return known is not None or (jax.config.jax_default_device is None and jax.default_backend() == "cpu")  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def _is_array(kind: type) -> bool:
    return issubclass(kind, jax.Array)


@functools.lru_cache(maxsize=256)
def _on_cpu(sharding: jax.sharding.Sharding) -> bool:
    devices: set[Any] = sharding.device_set
    return isinstance(sharding, jax.sharding.SingleDeviceSharding) and all(d.platform == "cpu" for d in devices)


SMALL = 1 << 16  # bytes: to put a smaller array on the device costs more than to copy it twice


def _on_host(
    entries: Sequence[Step],
    leaf_slots: Sequence[int],
    table: Sequence[Place],
    keep: tuple[int, ...],
    leaves: Sequence[Any],
    hidden: Container[int],
) -> list[Any]:
    """:func:`interpret` where NumPy runs the kernels that it can: it has run three before JAX has called one."""
    given = dict(zip(leaf_slots, leaves, strict=True))  # what JAX has: leaves, and results of XLA
    heavy = [entry for entry in entries if not entry.kernel.light]
    if sum([entry.kernel.cold for entry in heavy]) > 1:
        _prepare(entries, dict(given))
    last = _read_last(entries, keep) if heavy else {}
    values: dict[int, Any] = {}  # what NumPy has
    for slot in set().union(*[entry.inputs for entry in entries]).intersection(given):
        leaf = given[slot]
        if isinstance(dtype := table[slot].kind.aval.dtype, np.dtype):  # which an array has, and to ask for it takes NumPy a quarter longer
            values[slot] = np.asarray(leaf) if _is_array(leaf.__class__) else np.asarray(leaf, dtype)
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
        except REFUSALS:
            return None, None

    def to_give(slots: Iterable[int]) -> list[Any]:
        """Return values as JAX has them."""
        if missing := list(dict.fromkeys([s for s in slots if s not in given])):
            given.update(zip(missing, to_jax([values[s] for s in missing], [table[s].kind.aval for s in missing]), strict=True))
        return [given[s] for s in slots]

    def to_keep(s: int) -> Any:
        """Return a value for sweeps, in memory of its own: as NumPy has it, where it is small, as what is interpreted now often is then."""
        aval = table[s].kind.aval
        if s in given or aval.weak_type or values[s].nbytes > SMALL:
            return to_give([s])[0]
        return np.array(values[s], aval.dtype, order="C")

    waits = there_are_several()
    try:
        with np.errstate(all="ignore"):  # NumPy warns where XLA does not
            while (done := ran(entries, done, values)) < len(entries):
                step = entries[done]
                inputs, slots, kernel = step.inputs, step.slots, step.kernel
                light = kernel.light
                host = kernel._host if light else kernel.host
                if host:
                    try:
                        results = host(*map(read, inputs))
                    except REFUSALS:
                        host, results = again(host, inputs)
                if host:
                    values.update(zip(slots, (results,) if len(slots) == 1 else results, strict=True))
                else:
                    kernel.leave_to_xla()
                    results = kernel.executable(*to_give(inputs))
                    given.update(zip(slots, settled(results) if waits else results, strict=True))
                if not light and step in last:  # so that big values are freed as by plain Python
                    for s in last[step]:
                        values.pop(s, None)
                        given.pop(s, None)
                done += 1
            to_give([s for s in keep if s not in hidden])
            return [to_keep(s) if s in hidden else given[s] for s in keep]
    except Exception as error:
        to_give(values)
        raise StoppedError(done, given) from error


def _ran(entries: Sequence[Step], first: int, values: dict[int, Any]) -> int:
    """Run entries from a number on as long as NumPy runs them; add their results to the values, and return the number of the next one."""
    for number in range(first, len(entries)):
        step = entries[number]
        kernel, slots = step.kernel, step.slots
        if not kernel.light:
            return number
        try:
            results = kernel._host(*[values[s] for s in step.inputs])
            values.update(zip(slots, (results,) if len(slots) == 1 else results, strict=True))
        except Exception:  # noqa: BLE001 - it is run again by whoever called, who says what was wrong
            return number
    return len(entries)


ran = layout.chosen("ran", _ran)


def _read_last(entries: Sequence[Step], keep: Iterable[int]) -> dict[Step, list[int]]:
    """Return for each entry that is not light what it reads and no later one does."""
    reached = set(keep)
    last = {}
    for entry in reversed(entries):
        if not entry.kernel.light:
            last[entry] = [s for s in entry.inputs if s not in reached]
        reached.update(entry.inputs)
    return last


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
