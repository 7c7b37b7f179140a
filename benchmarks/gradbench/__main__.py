"""``python -m benchmarks.gradbench [tool]``: a tool for GradBench's harness, on standard input and output."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from benchmarks.gradbench.protocol import serve

TOOLS = ("tape", "jax", "torch", "autograd")


def main() -> None:
    """Speak the protocol until the eval closes the pipe."""
    parser = argparse.ArgumentParser("python -m benchmarks.gradbench", description=__doc__)
    parser.add_argument("tool", nargs="?", default="tape", choices=TOOLS, help="which library computes (default: %(default)s)")
    options = parser.parse_args()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no response
    if options.tool in {"tape", "jax"}:
        import jax  # noqa: PLC0415 - the other tools need none

        jax.config.update("jax_enable_x64", True)  # the evals are in double precision
    try:
        serve(importlib.import_module(f"benchmarks.gradbench.on_{options.tool}").TOOL, sys.stdin, out)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
