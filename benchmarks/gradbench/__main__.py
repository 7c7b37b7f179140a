"""``python -m benchmarks.gradbench [tool]``: a tool for GradBench's harness, on standard input and output."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from benchmarks.gradbench.protocol import serve

TOOLS = ("tape", "jax", "torch", "autograd")


def alone() -> None:
    """Hold this process, and the threads that it will start, to one core, and libraries to one thread."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def main() -> None:
    """Speak the protocol until the eval closes the pipe."""
    parser = argparse.ArgumentParser("python -m benchmarks.gradbench", description=__doc__)
    parser.add_argument("tool", nargs="?", default="tape", choices=TOOLS, help="which library computes (default: %(default)s)")
    parser.add_argument("--multithreaded", action="store_true", help="use all cores; without it one, as GradBench's tools do")
    options = parser.parse_args()
    if not options.multithreaded:
        alone()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no response
    if options.tool in {"tape", "jax"}:
        import jax  # noqa: PLC0415 - the other tools need none

        jax.config.update("jax_enable_x64", True)  # the evals are in double precision
    try:
        serve(importlib.import_module(f"benchmarks.gradbench.on_{options.tool}").TOOL, sys.stdin, out)
    except BrokenPipeError:  # the eval has gone
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
