"""Scale: long tapes, an array that thousands of entries read, and the longest compilation."""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.comparison import agree
from benchmarks.compiles import watching
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.steady import one_thread
from benchmarks.systems import System
from benchmarks.timing import Effort, Times, interleave, ratio

__all__ = ["WORKLOADS", "scale"]

WORKLOADS = frozenset({"long chains", "wide fan-out"})
LIMITS = {"jax.grad": 1_000, "jax.jit": 1_000, "tape.jit": 1_000, "HIPS autograd": 10_000, "MyGrad": 10_000}  # minutes beyond
START = np.full(8, 0.5, np.float32)
WARM = 7  # steps in which the tape compiles
ROUNDS = 7
SKIPPED = "tape, look first"


@dataclass(frozen=True)
class _Long:
    """A program of any length, and its gradient by hand."""

    title: str
    body: Callable[[Any, Any, int], Any]
    gradient: Callable[[Any, int], Any]

    def program(self, length: int) -> Callable[..., Any]:
        """Return the program of so many ops."""
        return lambda xp, p: xp.value_and_grad(lambda p: xp.sum(self.body(xp, p[0], length)), p)


def _chain(xp: Any, x: Any, length: int) -> Any:
    for _ in range(length):
        x = xp.sin(x)
    return x


def _chain_gradient(x: Any, length: int) -> Any:
    slope = np.ones_like(x)
    for _ in range(length):
        slope, x = slope * np.cos(x), np.sin(x)
    return slope


def _fan(xp: Any, x: Any, length: int) -> Any:
    total = x
    for _ in range(length // 2):  # each turn records two entries
        total = total + xp.sin(x)
    return total


CHAIN = _Long("chain of sin on 8 floats", _chain, _chain_gradient)
FAN = _Long("fan-out of one array", _fan, lambda x, length: 1 + length // 2 * np.cos(x))


def _begin(long: _Long, length: int, system: System) -> tuple[Callable[[], Any], float]:
    """Return a warm step whose gradient is right, and the seconds of the first one."""
    step = system.step(long.program(length), system.parameters([START]))
    started = time.perf_counter()
    results = step()
    system.wait(results)
    first = time.perf_counter() - started
    for _ in range(WARM):
        results = step()
    agree(system.numpy(results)[1:], [long.gradient(START.astype(float), length)], system.name)
    return step, first


def _measure(long: _Long, lengths: tuple[int, ...], report: Report) -> tuple[dict[int, Times], float]:
    """Enter tables of microseconds per op; return the tape's by length, and the seconds of its longest compilation."""
    names = [name for name in systems() if name != SKIPPED]
    steps, firsts, longest = {}, {}, 0.0
    for length in lengths:
        for name in names:
            if length > LIMITS.get(name, length):
                continue
            try:
                with watching() as compiles:
                    step, firsts[length, name] = _begin(long, length, systems()[name])
            except Exception as e:  # noqa: BLE001 - whatever a system raises is its result
                report.failed(f"scale: {long.title}: {name} at {length}: {type(e).__name__}: {e}")
                continue
            steps[f"{name} {length}"] = (step, systems()[name].wait)
            if name == "tape":
                longest = max(longest, compiles.longest)
    times = interleave(steps, Effort(rounds=ROUNDS, batch_seconds=0.005, warm_seconds=0.0))
    per_op = {key: Times(tuple(us / int(key.split()[-1]) for us in found.rounds)) for key, found in times.items()}
    for title, cell in (
        (f"{long.title}, us per op", lambda length, name: per_op[f"{name} {length}"].spread.median),
        (f"{long.title}, first step, us per op", lambda length, name: firsts[length, name] / length * 1e6),
    ):
        rows = [{"ops": n, **{name: cell(n, name) if f"{name} {n}" in per_op else "-" for name in names}} for n in lengths]
        report.tabled("scale", title, rows)
    print(f"  peak memory so far: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
    return {length: per_op[f"tape {length}"] for length in lengths if f"tape {length}" in per_op}, longest


def _parts(lengths: tuple[int, ...], report: Report) -> None:
    """Enter where the tape's time on long chains goes."""
    import tape  # noqa: PLC0415 - the one function here that is not over a namespace
    import tape.numpy as tnp  # noqa: PLC0415 - the same

    rows = []
    for length in lengths:
        found = []
        for _ in range(WARM + 3):
            gc.collect()
            x = tape.Variable(jax.numpy.full(8, 0.5))
            marks = [time.perf_counter()]
            y = x
            for _ in range(length):
                y = tnp.sin(y)
            marks.append(time.perf_counter())
            y.backward(tnp.ones(8))
            assert x.grad is not None
            jax.block_until_ready(x.grad.value)
            marks.append(time.perf_counter())
            del y
            marks.append(time.perf_counter())
            found.append([(b - a) / length * 1e6 for a, b in itertools.pairwise(marks)])
        parts = [statistics.median(part) for part in zip(*found[-3:], strict=True)]
        rows.append({"ops": length, **dict(zip(("record", "sweep and run", "free"), parts, strict=True))})
    report.tabled("scale", "parts of the tape's chains, us per op", rows)


def scale(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure the cost per op from short tapes to long ones."""
    most = 10_000 if effort.quick else 100_000
    longest: dict[str, float] = {}
    grown: dict[str, float] = {}
    with one_thread():
        for name, long, lengths in (("long chains", CHAIN, (100, 1_000, 10_000, most)), ("wide fan-out", FAN, (100, 1_000, 10_000))):
            if not chosen or name in chosen:
                ours, longest[name] = _measure(long, tuple(sorted(set(lengths))), report)
                if {1_000, max(lengths)} <= ours.keys():
                    grown[f"{name}, {max(lengths)}"] = ratio(ours[max(lengths)], ours[1_000]).median
        if not chosen or "long chains" in chosen:
            _parts(tuple(sorted({1_000, 10_000, most})), report)
    report.scored(
        "scale",
        Score("cost per op / that at 1000", grown, 1.3, 1.3),
        Score("longest compile of the tape, s", {name: max(s, 1e-9) for name, s in longest.items()}, 5.0, 5.0),
    )
