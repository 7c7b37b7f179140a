"""``python -m benchmarks [name ...]``: the figures of the library, each beside its peers in one run.

Gradients are compared before anything is timed; systems take turns in batches, and ratios are medians of the ratios of batches that ran
side by side, so that a machine whose speed drifts does not change them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import accuracy, compute, dispatch, dynamic, looks
from benchmarks.bridges import BRIDGES, bridges
from benchmarks.checker import WORKLOADS as CHECKS
from benchmarks.checker import checker
from benchmarks.facade import PROGRAMS, facade
from benchmarks.facade import document as table_of_facade
from benchmarks.first_steps import WORKLOADS as FIRSTS
from benchmarks.first_steps import first_steps
from benchmarks.gradbench import runner as gradbench
from benchmarks.long_loops import WORKLOADS as LOOPS
from benchmarks.long_loops import long_loops
from benchmarks.looking import looping
from benchmarks.memory import WORKLOADS as MEMORIES
from benchmarks.memory import memory
from benchmarks.recording import OPS, recording
from benchmarks.report import Report, machine
from benchmarks.scale import WORKLOADS as SCALES
from benchmarks.scale import scale
from benchmarks.sharded import LAYOUTS, sharded
from benchmarks.startup import WORKLOADS as STARTS
from benchmarks.startup import startup
from benchmarks.steady import compute_bound, dispatch_bound
from benchmarks.structures import WORKLOADS as STRUCTURES
from benchmarks.structures import structures
from benchmarks.timing import Effort
from benchmarks.under_jit import MODELS, under_jit
from benchmarks.varying import dynamic_steps
from tape.terminal.progress import progress, working_on

KINDS: dict[str, tuple[Callable[[Report, Effort, frozenset[str]], None], frozenset[str]]] = {
    "dispatch": (dispatch_bound, frozenset(w.name for w in dispatch.WORKLOADS)),
    "compute": (compute_bound, frozenset(w.name for w in compute.WORKLOADS)),
    "dynamic": (dynamic_steps, frozenset(w.name for w in dynamic.WORKLOADS)),
    "looks": (looping, frozenset(w.name for w in looks.WORKLOADS)),
    "structures": (structures, frozenset(w.name for w in STRUCTURES)),
    "scale": (scale, SCALES),
    "loops": (long_loops, LOOPS),
    "startup": (startup, STARTS),
    "first_steps": (first_steps, FIRSTS),
    "memory": (memory, MEMORIES),
    "recording": (recording, frozenset(OPS)),
    "under_jit": (under_jit, frozenset(MODELS)),
    "checker": (checker, CHECKS),
    "accuracy": (accuracy.accuracy, accuracy.WORKLOADS),
    "autograd": (facade, frozenset(PROGRAMS)),
    "bridges": (bridges, frozenset(BRIDGES)),
    "sharded": (sharded, frozenset(LAYOUTS)),
}
DOCUMENTS = {"accuracy": accuracy.document, "autograd": table_of_facade}
QUICK = Effort(rounds=5, batch_seconds=0.003, warm_seconds=0.1, quick=True)


def chosen_of(name: str) -> frozenset[str]:
    """Return the workloads of a class, or those whose names contain ``name``."""
    if name in KINDS:
        return KINDS[name][1]
    return frozenset(w for _, workloads in KINDS.values() for w in workloads if name.lower() in w.lower())


def main() -> None:
    """Run every class of benchmarks, or the classes and workloads named."""
    if sys.argv[1:2] == ["gradbench"]:
        gradbench.main(sys.argv[2:])
        return
    workloads = sorted(name for _, names in KINDS.values() for name in names)
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        nargs="*",
        help=f"a class ({', '.join(KINDS)}) or part of a workload's name ({', '.join(workloads)}); gradbench has options of its own",
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, and without the long cases")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--picture", metavar="FILE", help="draw the ratios there (needs matplotlib)")
    parser.add_argument(
        "--docs", metavar="FILE", help="write the table of class accuracy there, as a page, or that of class autograd into a guide"
    )
    options = parser.parse_args()
    for name in options.name:
        if not chosen_of(name):
            parser.error(f"unknown name {name!r}; known: {', '.join([*KINDS, *workloads])}")
    chosen = frozenset().union(*map(chosen_of, options.name))
    report, effort = Report(), QUICK if options.quick else Effort()
    for key, value in machine().items():
        print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    asked = []
    for kind, (run, known) in KINDS.items():
        whole = not chosen or kind in options.name
        if whole or known & chosen:
            asked.append((kind, run, frozenset() if whole else known & chosen))
    for kind, run, only in progress(asked, "benchmarks"):
        working_on(kind)
        run(report, effort, only)
    report.summarize()
    if options.json:
        report.write(options.json)
    for kind, document in DOCUMENTS.items():
        if options.docs and kind in report.figures:
            document(report, options.docs)
    if options.picture:
        from benchmarks.picture import draw  # noqa: PLC0415 - matplotlib is optional

        draw(report, options.picture)
    if report.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
