"""The steady state of steps whose structure repeats: dispatch-bound and compute-bound workloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import compute, dispatch
from benchmarks.comparison import compare
from benchmarks.peers import found_torch
from benchmarks.report import Report, Score, ratios
from benchmarks.timing import Effort
from tape.terminal.progress import working_on

__all__ = ["compute_bound", "dispatch_bound", "one_thread"]

# Steps until programs come in which numbers are constants: of small arrays, and of large ones.
SETTLED, SETTLED_LARGE = 2500, 100


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread, which is its fastest on small arrays."""
    torch = found_torch()
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def dispatch_bound(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps on small arrays."""
    effort = replace(effort, settle_steps=SETTLED)
    with one_thread():
        for workload in dispatch.WORKLOADS:
            if not chosen or workload.name in chosen:
                working_on(workload.name)
                report.compared("dispatch", compare(workload, effort))
    found = report.comparisons.get("dispatch", [])
    report.scored(
        "dispatch",
        Score("tape / jax.jit", ratios(found, "tape", "jax.jit"), 1.5),
        Score("tape.jit / jax.jit", ratios(found, "tape.jit", "jax.jit"), 1.1),
        Score("PyTorch / tape", ratios(found, "PyTorch", "tape"), 4.0, 1.0, at_least=True),
        Score("MLX / tape", ratios(found, "MLX", "tape"), 1.0, at_least=True),
        Score("MLX, compiled / tape.jit", ratios(found, "MLX, compiled", "tape.jit"), 1.0, at_least=True),
        Score("jax.grad / tape", ratios(found, "jax.grad", "tape"), 50.0, at_least=True),
    )


def compute_bound(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps on large arrays."""
    effort = replace(effort, batch_seconds=5 * effort.batch_seconds, settle_steps=SETTLED_LARGE)
    for workload in compute.WORKLOADS:
        if not chosen or workload.name in chosen:
            working_on(workload.name)
            report.compared("compute", compare(workload, effort))
    found = report.comparisons.get("compute", [])
    report.scored(
        "compute",
        Score("tape / jax.jit", ratios(found, "tape", "jax.jit"), 1.03, 1.10),
        Score("tape.jit / jax.jit", ratios(found, "tape.jit", "jax.jit"), 1.03, 1.10),
        Score("look first / fused", ratios(found, "tape, look first", "tape", compute.LOOKED), 1.15, 1.15),
    )
