"""``python -m benchmarks.fresh``: one measurement in a process of its own, printed as JSON; started by the classes that need one."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["measure_fresh"]

ROOT = pathlib.Path(__file__).parent.parent
TURNS = 10


def measure_fresh(what: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run one measurement of this module in a new process.

    Args:
        what: a key of ``MEASUREMENTS``.
        arguments: its arguments.
        environment: variables of the environment that the process has besides those of this one.

    Returns:
        What it found.

    Raises:
        RuntimeError: the process failed; the message ends with what it said.

    """
    command = [sys.executable, "-m", "benchmarks.fresh", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=_environment() | environment)  # noqa: S603 - our own module
    if done.returncode:
        msg = f"{' '.join(command[2:])}: {done.stderr.strip()[-500:]}"
        raise RuntimeError(msg)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tape-bytecode-")


def _environment() -> dict[str, str]:
    """Return the environment of a new process: it keeps bytecode, as that of a user does; without, importing is compiling."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": _bytecode().name} if "PYTHONDONTWRITEBYTECODE" in os.environ else kept


def imports() -> dict[str, Any]:
    """Return the seconds that ``import tape`` adds to ``import jax``."""
    import jax  # noqa: F401, PLC0415 - imports are what is measured

    started = time.perf_counter()
    import tape  # noqa: F401, PLC0415 - the same

    return {"seconds": time.perf_counter() - started}


def steps(name: str, system: str, count: str = str(TURNS)) -> dict[str, Any]:
    """Return the milliseconds of the first ``count`` steps of a workload, and what JAX spent on tracing, lowering and compiling."""
    import jax  # noqa: PLC0415 - after the imports that are measured

    from benchmarks import compute, dispatch, dynamic  # noqa: PLC0415 - the same
    from benchmarks.comparison import stepping_of  # noqa: PLC0415 - the same
    from benchmarks.compiles import watching  # noqa: PLC0415 - the same
    from benchmarks.peers import systems  # noqa: PLC0415 - the same
    from benchmarks.steady import one_thread  # noqa: PLC0415 - the same
    from benchmarks.workloads import CONSTANTS, Dynamic  # noqa: PLC0415 - the same

    its = systems()[system]
    jax.block_until_ready(jax.numpy.zeros(8) + 1)  # the backend starts before the clock
    rng, workload = np.random.default_rng(0), {w.name: w for w in (*dispatch.WORKLOADS, *compute.WORKLOADS, *dynamic.WORKLOADS)}[name]
    if isinstance(workload, Dynamic):
        arrays, samples = workload.make(rng), workload.samples(rng)
    else:
        arrays, fixed = workload.make(rng, False)
        samples = iter([fixed] * int(count))
    operands = getattr(workload, "operands", CONSTANTS)
    data, parameters = [its.given(next(samples), operands) for _ in range(int(count))], its.parameters(arrays)
    times = []
    with contextlib.nullcontext() if workload in compute.WORKLOADS else one_thread(), watching() as compiles:
        step = its.step(workload.program, parameters) if isinstance(workload, Dynamic) else stepping_of(workload, its, parameters)
        for sample in data:
            started = time.perf_counter()
            its.wait(step(*sample))
            times.append((time.perf_counter() - started) * 1e3)
    spent = {"trace": sum(compiles.traced), "lower": sum(compiles.lowered), "compile": sum(compiles.compiled)}
    return {"steps": times, "spent": {key: s * 1e3 for key, s in spent.items()}, "compiles": len(compiles.compiled)}


def peak(name: str, system: str) -> dict[str, Any]:
    """Return MB of resident memory before and at the peak of some steps of a workload."""
    from benchmarks import compute  # noqa: PLC0415 - as above
    from benchmarks.peers import systems  # noqa: PLC0415 - as above

    its = systems()[system]
    workload = {w.name: w for w in compute.WORKLOADS}[name]
    arrays, data = workload.make(np.random.default_rng(0), False)
    parameters, data = its.parameters(arrays), its.data(data)
    before = resident()
    step = its.step(workload.program, parameters)
    for _ in range(TURNS):
        its.wait(step(*data))
    return {"before": before, "peak": highest()}


def growth(system: str, count: str) -> dict[str, Any]:
    """Return MB of resident memory at tenths of many steps whose structure never repeats."""
    from benchmarks.loops import parameters, program, structures  # noqa: PLC0415 - as above
    from benchmarks.peers import systems  # noqa: PLC0415 - as above

    its, rng = systems()[system], np.random.default_rng(0)
    step, total = its.step(program, its.parameters(parameters(rng))), int(count)
    marks, found = structures(rng), []
    started = time.perf_counter()
    for i in range(total):
        its.wait(step(next(marks)))
        if (i + 1) % (total // 10) == 0:
            gc.collect()
            found.append(resident())
    return {"resident": found, "seconds": time.perf_counter() - started, "objects": len(gc.get_objects())}


def resident() -> float:
    """Return MB of resident memory now."""
    return _status("VmRSS")


def highest() -> float:
    """Return MB of resident memory at its peak."""
    return _status("VmHWM")  # getrusage would return the peak of the process that started this one, if that was higher


def _status(field: str) -> float:
    text = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(f"{field}:"))


def recorded_ops() -> dict[str, Any]:
    """Return the microseconds of recording one op, by what it is."""
    from benchmarks.recording import recorded_ops  # noqa: PLC0415 - as above

    return recorded_ops()


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "imports": imports,
    "steps": steps,
    "peak": peak,
    "growth": growth,
    "recorded_ops": recorded_ops,
}

if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]](*sys.argv[2:])))
