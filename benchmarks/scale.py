"""Scale: long tapes, an array that thousands of entries read, and the longest compilation."""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.compiles import watching
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.steady import one_thread
from benchmarks.timing import Effort

__all__ = ["WORKLOADS", "scale"]

WORKLOADS = frozenset({"long chains", "wide fan-out"})
LIMITS = {"jax.grad": 1_000, "jax.jit": 1_000}  # un-jitted JAX takes minutes beyond, and so does XLA's compilation
REPEATS = 6  # the first ones compile; the last three count


def _chain(length: int) -> Callable[..., Any]:
    def program(xp: Any, p: list[Any]) -> Any:
        def loss(p: list[Any]) -> Any:
            y = p[0]
            for _ in range(length):
                y = xp.sin(y)
            return xp.sum(y)

        return xp.value_and_grad(loss, p)

    return program


def _fan(width: int) -> Callable[..., Any]:
    def program(xp: Any, p: list[Any]) -> Any:
        def loss(p: list[Any]) -> Any:
            x, total = p[0], p[0]
            for _ in range(width // 2):  # each turn records two entries
                total = total + xp.sin(x)
            return xp.sum(total)

        return xp.value_and_grad(loss, p)

    return program


def _measure(
    title: str, make: Callable[[int], Callable[..., Any]], lengths: tuple[int, ...], report: Report
) -> tuple[dict[int, float], float]:
    """Enter a table of microseconds per op; return the tape's by length, and the seconds of its longest compilation."""
    rows, ours, longest, value = [], {}, 0.0, np.full(8, 0.5, np.float32)
    for length in lengths:
        row: dict[str, Any] = {"ops": length}
        for name, system in systems().items():
            if name == "tape, look first":
                continue
            if length > LIMITS.get(name, length) or (not system.varies and length > 1_000):
                row[name] = row[f"{name}, first"] = "-"
                continue
            gc.collect()
            with watching() as compiles:
                try:
                    step = system.step(make(length), system.parameters([value]))
                    found = []
                    for _ in range(REPEATS):
                        started = time.perf_counter()
                        results = step()
                        system.wait(results)
                        del results
                        found.append((time.perf_counter() - started) / length * 1e6)
                except Exception as e:  # noqa: BLE001 - whatever a system raises is its result
                    report.failed(f"scale: {title}: {name} at {length}: {type(e).__name__}: {e}")
                    row[name] = row[f"{name}, first"] = "-"
                    continue
            row[f"{name}, first"], row[name] = found[0], statistics.median(found[-3:])
            if name == "tape":
                ours[length] = row[name]
                row["longest compile s"] = compiles.longest
                longest = max(longest, compiles.longest)
        row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        rows.append(row)
    report.tabled("scale", f"{title}, us per op", [{key: row[key] for key in _order(rows)} for row in rows])
    return ours, longest


def _order(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns: repeated steps first, then first steps."""
    keys = list(rows[0])
    return sorted(keys, key=lambda k: (k != "ops", k.endswith(", first"), k in {"longest compile s", "peak MB"}, keys.index(k)))


def _parts(lengths: tuple[int, ...], report: Report) -> None:
    """Enter where the tape's time on long chains goes."""
    import tape  # noqa: PLC0415 - the one function here that is not over a namespace
    import tape.numpy as tnp  # noqa: PLC0415 - the same

    rows = []
    for length in lengths:
        found = []
        for _ in range(REPEATS):
            gc.collect()
            x = tape.Variable(jax.numpy.full(8, 0.5))
            marks = [time.perf_counter()]
            y = x
            for _ in range(length):
                y = tnp.sin(y)
            marks.append(time.perf_counter())
            y.backward(tnp.ones(8))
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
    lengths = (100, 1_000, 10_000) if effort.quick else (100, 1_000, 10_000, 100_000)
    longest = {}
    with one_thread():
        if not chosen or "long chains" in chosen:
            ours, longest["long chains"] = _measure("chain of sin on 8 floats", _chain, lengths, report)
            _parts(lengths, report)
            if len(ours) == len(lengths):
                grown = f"chain of {lengths[-1]}"
                report.scored("scale", Score("cost per op / that at 1000", {grown: ours[lengths[-1]] / ours[1_000]}, 1.3))
        if not chosen or "wide fan-out" in chosen:
            ours, longest["wide fan-out"] = _measure("fan-out of one array", _fan, (100, 1_000, 10_000), report)
            if len(ours) == 3:
                report.scored("scale", Score("fan-out, cost per op / that at 1000", {"fan-out of 10000": ours[10_000] / ours[1_000]}, 1.3))
    report.scored("scale", Score("longest compile of the tape, s", {name: max(s, 1e-9) for name, s in longest.items()}, 5.0, 5.0))
