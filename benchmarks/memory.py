"""Memory: the peak of resident memory beside other systems, and growth over many steps whose structure never repeats."""

from __future__ import annotations

from benchmarks.fresh import measure_fresh
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.timing import Effort

__all__ = ["WORKLOADS", "memory"]

WORKLOADS = frozenset({"peak", "growth"})
PEAKS = ("wide MLP", "CNN", "transformer block")
BESIDE = ("jax.jit", "tape", "tape, look first", "tape.jit", "PyTorch")


def _peaks(report: Report, names: tuple[str, ...]) -> None:
    rows = []
    for name in names:
        found = {}
        for system in (s for s in BESIDE if s in systems()):
            try:
                found[system] = measure_fresh("peak", name, system)
            except RuntimeError as e:
                report.failed(f"memory: {name}: {system}: {e}")
        rows += [
            {"MB": f"{name}, {s}", "before": f["before"], "peak": f["peak"], "added": f["peak"] - f["before"]} for s, f in found.items()
        ]
    report.tabled("memory", "resident memory of ten steps, processes of their own", rows)


def _growth(report: Report, count: int) -> None:
    try:
        found = measure_fresh("growth", "tape", str(count))
    except RuntimeError as e:
        report.failed(f"memory: growth: {e}")
        return
    sizes = found["resident"]
    row = {"steps": count, **{f"{10 * (i + 1)} %": round(mb, 1) for i, mb in enumerate(sizes)}}
    row |= {"us/step": found["seconds"] / count * 1e6, "objects": found["objects"]}
    report.tabled("memory", "resident MB over steps whose structure never repeats", [row])
    report.scored("memory", Score("resident memory at the end / at three tenths", {f"{count} steps": sizes[-1] / sizes[2]}, 1.05))


def memory(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure memory."""
    if not chosen or "peak" in chosen:
        _peaks(report, PEAKS[:1] if effort.quick else PEAKS)
    if not chosen or "growth" in chosen:
        _growth(report, 2_000 if effort.quick else 100_000)
