"""``python -m benchmarks [name ...]``: the figures of the library, each beside its peers in one run.

Gradients are compared before anything is timed; systems take turns in batches, and ratios are medians of the ratios of batches that ran
side by side, so that a machine whose speed drifts does not change them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import compute, dispatch, dynamic
from benchmarks.report import Report, machine
from benchmarks.scale import WORKLOADS as SCALES
from benchmarks.scale import scale
from benchmarks.steady import compute_bound, dispatch_bound
from benchmarks.timing import Effort
from benchmarks.under_jit import MODELS, under_jit
from benchmarks.varying import dynamic_steps

KINDS: dict[str, tuple[Callable[[Report, Effort, frozenset[str]], None], frozenset[str]]] = {
    "dispatch": (dispatch_bound, frozenset(w.name for w in dispatch.WORKLOADS)),
    "compute": (compute_bound, frozenset(w.name for w in compute.WORKLOADS)),
    "dynamic": (dynamic_steps, frozenset(w.name for w in dynamic.WORKLOADS)),
    "scale": (scale, SCALES),
    "under_jit": (under_jit, frozenset(MODELS)),
}
QUICK = Effort(rounds=5, batch_seconds=0.003, warm_seconds=0.1, quick=True)


def main() -> None:
    """Run every class of benchmarks, or the classes and workloads named."""
    names = sorted({*KINDS, *(w for _, workloads in KINDS.values() for w in workloads)})
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="*", help=f"a class ({', '.join(KINDS)}) or a workload: {', '.join(n for n in names if n not in KINDS)}"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, and without the long cases")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--picture", metavar="FILE", help="draw the ratios there (needs matplotlib)")
    options = parser.parse_args()
    unknown = [name for name in options.name if name not in names]
    if unknown:
        parser.error(f"unknown name {unknown[0]!r}; known: {', '.join(names)}")
    chosen = frozenset(options.name)
    report, effort = Report(), QUICK if options.quick else Effort()
    for key, value in machine().items():
        print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    for kind, (run, workloads) in KINDS.items():
        if not chosen or kind in chosen:
            run(report, effort, frozenset())
        elif workloads & chosen:
            run(report, effort, workloads & chosen)
    report.summarize()
    if options.json:
        report.write(options.json)
    if options.picture:
        from benchmarks.picture import draw  # noqa: PLC0415 - matplotlib is optional

        draw(report, options.picture)
    if report.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
